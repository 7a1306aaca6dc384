//! The counters of all rules by name, and what bounds their number. The room's page tells the policy.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    OVERFLOW, StatsOptions,
    bounded::{Bounded, totals},
    directory::Named,
    labels::Labels,
    rule::{Origin, RuleCounter, RuleStats},
    shard::{Counter, ShardCount},
};

/// Domains that have an overflow series of their own. The domains are those of the rules, so few; the
/// bound is for a service whose rules have come and gone for a year.
const OVERFLOWING_DOMAINS: usize = 1_000;

/// The counters of all rules.
#[derive(Debug)]
pub(super) struct Registry {
    stats: Bounded<RuleStats>,
    overflows: Bounded<Overflow>,
    /// Stands in for domains beyond [`OVERFLOWING_DOMAINS`].
    last_overflow: Overflow,
    /// Names made for rules and not forgotten yet.
    rules: AtomicUsize,
    /// The number of them at which it is worth looking for rules that have vanished.
    forget_at: AtomicUsize,
    shards: ShardCount,
}

/// Where the hits of a domain go whose names found no room.
#[derive(Debug)]
struct Overflow {
    domain: Box<str>,
    stats: Arc<RuleStats>,
    /// How often a name found no room.
    refused: Counter,
}

impl Registry {
    pub(super) fn new(options: StatsOptions) -> Self {
        let StatsOptions { max_series, shards } = options;
        let stats = Bounded::new(max_series);
        Self {
            last_overflow: Overflow::new(OVERFLOW, &stats, shards),
            stats,
            overflows: Bounded::new(OVERFLOWING_DOMAINS),
            rules: AtomicUsize::new(0),
            forget_at: AtomicUsize::new(max_series),
            shards,
        }
    }

    pub(super) fn rule(&self, full_key: &str) -> Arc<RuleStats> {
        self.stats.names().get(full_key).unwrap_or_else(|| {
            let make = || {
                self.rules.fetch_add(1, Relaxed);
                RuleStats::new(full_key, Origin::Rules, self.shards)
            };
            let stats = self.stats.names().get_or_make(full_key, make);
            if self.rules.load(Relaxed) > self.forget_at.load(Relaxed) {
                self.forget_vanished();
            }
            stats
        })
    }

    pub(super) fn dynamic(&self, domain: &str, full_key: &str) -> Arc<RuleStats> {
        let make = || RuleStats::new(full_key, Origin::Request, self.shards);
        self.stats.admit(full_key, make).unwrap_or_else(|| self.overflow(domain))
    }

    fn overflow(&self, domain: &str) -> Arc<RuleStats> {
        let own = self.overflows.admit(domain, || Overflow::new(domain, &self.stats, self.shards));
        let overflow = own.as_deref().unwrap_or(&self.last_overflow);
        overflow.refused.increment();
        Arc::clone(&overflow.stats)
    }

    /// Forgets rules that are gone, series by series: what rules with the same labels have counted is
    /// one sum, which must not shrink while one of them lives.
    fn forget_vanished(&self) {
        let from_request = |stats: &RuleStats| stats.origin() == Origin::Request;
        let left = self.stats.names().forget_unheld(|stats| Labels::of(stats.full_key()), from_request);
        let rules = left.saturating_sub(self.stats.admitted());
        self.rules.store(rules, Relaxed);
        // Looking again only when as many have come as were left makes a look cost nothing per rule.
        self.forget_at.store(rules + rules.max(self.stats.max()), Relaxed);
    }

    /// The counts of each series that has any, in the order of its labels.
    pub(super) fn totals(&self) -> BTreeMap<Labels, [u64; RuleCounter::ALL.len()]> {
        let mut totals = BTreeMap::<_, [u64; RuleCounter::ALL.len()]>::new();
        self.for_each(|full_key, counts| {
            let sums = totals.entry(Labels::of(full_key)).or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
        });
        totals
    }

    /// Shows the full key and the counts of every rule that has any. Rules are not forgotten meanwhile, so
    /// `show` is not to wait for anybody.
    pub(super) fn for_each(&self, mut show: impl FnMut(&str, [u64; RuleCounter::ALL.len()])) {
        self.stats.names().for_each(|stats| {
            if let Some(counts) = stats.counts() {
                show(stats.full_key(), counts);
            }
        });
    }

    /// How often names of each domain found no room.
    pub(super) fn refused(&self) -> BTreeMap<String, u64> {
        totals(&self.overflows, &self.last_overflow, |overflow| overflow.refused.get())
    }

    /// Names made from requests that have counters of their own, and how many may have.
    pub(super) fn room(&self) -> (usize, usize) {
        (self.stats.admitted(), self.stats.max())
    }
}

impl Overflow {
    fn new(domain: &str, all: &Bounded<RuleStats>, shards: ShardCount) -> Self {
        let full_key = format!("{domain}.{OVERFLOW}");
        let make = || RuleStats::new(&full_key, Origin::Rules, shards);
        let stats = all.names().get_or_make(&full_key, make);
        Self { domain: domain.into(), stats, refused: Counter::new(shards) }
    }
}

impl Named for Overflow {
    fn name(&self) -> &str {
        &self.domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(max_series: usize) -> Registry {
        Registry::new(StatsOptions { max_series, shards: ShardCount::for_workers(2) })
    }

    fn hit(stats: &RuleStats, n: u64) {
        stats.add(RuleCounter::TotalHits, n);
    }

    fn total(registry: &Registry, full_key: &str) -> Option<u64> {
        registry.totals().get(&Labels::of(full_key)).map(|counts| counts[0])
    }

    #[test]
    fn a_key_has_one_set_of_counters_however_it_is_asked_for() {
        let registry = registry(10);
        let rule = registry.rule("d.k");
        assert!(Arc::ptr_eq(&rule, &registry.rule("d.k")));
        assert!(Arc::ptr_eq(&rule, &registry.dynamic("d", "d.k")));
        assert_eq!(registry.room(), (0, 10));
    }

    #[test]
    fn names_beyond_the_bound_land_in_one_series_for_each_domain() {
        let registry = registry(1);
        for (domain, full_key) in [("d", "d.a"), ("d", "d.b"), ("d", "d.c"), ("e", "e.a"), ("d", "d.a")] {
            hit(&registry.dynamic(domain, full_key), 1);
        }
        let found = ["d.a", "d.b", "d.__overflow__", "e.__overflow__"].map(|key| total(&registry, key));
        assert_eq!(found, [Some(2), None, Some(2), Some(1)]);
        assert_eq!(registry.refused(), [("d".to_owned(), 2), ("e".to_owned(), 1)].into());
    }

    #[test]
    fn overflow_series_are_bounded_as_well() {
        let registry = registry(0);
        for n in 0..OVERFLOWING_DOMAINS + 5 {
            hit(&registry.dynamic(&n.to_string(), &format!("{n}.k")), 1);
        }
        assert_eq!(registry.totals().len(), OVERFLOWING_DOMAINS + 1);
        assert_eq!(total(&registry, "__overflow__.__overflow__"), Some(5));
    }

    #[test]
    fn rules_find_room_when_requests_have_taken_all_of_it() {
        let registry = registry(1);
        registry.dynamic("d", "d.a");
        hit(&registry.rule("d.rule"), 3);
        assert_eq!(total(&registry, "d.rule"), Some(3));
    }

    #[test]
    fn rules_with_the_same_labels_add_up() {
        let registry = registry(10);
        for (key, n) in
            [("d.a.b.c", 1), ("d.a.b.d", 2), ("d.a.b", 4), ("d.a", 8), ("d.a:b", 16), ("d.a|b", 32)]
        {
            hit(&registry.rule(key), n);
        }
        assert_eq!(["d.a.b", "d.a", "d.a_b"].map(|key| total(&registry, key)), [Some(7), Some(8), Some(48)]);
    }

    #[test]
    fn vanished_rules_are_forgotten_when_there_are_too_many_and_nothing_shrinks() {
        let registry = registry(20);
        let living = registry.rule("d.living.x.1");
        hit(&living, 1);
        hit(&registry.rule("d.living.x.2"), 2);
        hit(&registry.dynamic("d", "d.request"), 4);
        hit(&registry.dynamic("d", "d.overflow"), 8);
        for n in 0..200 {
            hit(&registry.rule(&format!("d.gone{n}")), 1);
        }
        assert!(registry.totals().len() <= 20 + 20 + 5, "{} series are left", registry.totals().len());
        let kept = ["d.living.x", "d.request", "d.overflow"].map(|key| total(&registry, key));
        assert_eq!(kept, [Some(3), Some(4), Some(8)]);
        assert!(Arc::ptr_eq(&living, &registry.rule("d.living.x.1")));
    }
}
