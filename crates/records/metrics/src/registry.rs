//! The counters of all rules by name, within the bound that `room` describes.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::{
    OVERFLOW,
    directory::{Directory, Named},
    labels::Labels,
    names::RuleCounter,
    room::{Place, Room, cut},
    rule::{Caller, Overflow, RuleStats},
    shard::Counter,
};
use clock::Time;

/// Maximum number of domains with their own overflow series. Domains come from the rules, so they are few; the bound
/// matters only after many changes of the rules.
const OVERFLOWING_DOMAINS: usize = 1_000;

/// Names made by limit overrides get one part in this many of the room for callers' series, so that the rest is
/// available for the metrics that an operator wants.
const OVERRIDES_SHARE: usize = 10;

pub(super) struct Registry {
    stats: Directory<RuleStats>,
    /// The part of the room for names made by limit overrides.
    pub(super) room_for_overrides: Arc<Room>,
    overflows: Directory<Overflow>,
    /// Counts domains beyond [`OVERFLOWING_DOMAINS`].
    last_overflow: Arc<Overflow>,
    /// Names of rules that are not forgotten.
    rules: AtomicUsize,
    /// The number of names that starts a search for removed rules.
    forget_at: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sums {
    pub(super) counts: [u64; RuleCounter::ALL.len()],
    /// One of the names is of the rules: then all series are shown once one is; else those above 0.
    pub(super) is_of_rules: bool,
}

impl Registry {
    pub(super) fn new(room: Arc<Room>) -> Self {
        let forget_at = AtomicUsize::new(room.max);
        let room_for_overrides = Room::part(&room, room.max.div_ceil(OVERRIDES_SHARE));
        let stats = Directory::new(room);
        Self {
            last_overflow: Arc::new(Overflow::new(OVERFLOW, None, &stats)),
            stats,
            room_for_overrides,
            overflows: Directory::new(Room::new(OVERFLOWING_DOMAINS)),
            rules: AtomicUsize::new(0),
            forget_at,
        }
    }

    pub(super) fn rule(&self, domain: &str, full_key: &str) -> Arc<RuleStats> {
        self.stats.get(full_key).unwrap_or_else(|| {
            let stats = self.stats.get_or_make(full_key, || {
                self.rules.fetch_add(1, Relaxed);
                RuleStats::new(domain, full_key, None)
            });
            if self.rules.load(Relaxed) > self.forget_at.load(Relaxed) {
                self.forget_vanished();
            }
            stats
        })
    }

    pub(super) fn dynamic(&self, domain: &str, full_key: &str, now: Time) -> Arc<RuleStats> {
        self.admit(domain, full_key, &self.stats.room, now).unwrap_or_else(|| {
            let overflow = self.overflow(domain, now);
            overflow.refused.increment();
            overflow.stats.clone()
        })
    }

    /// The counters of a full key made by a limit override; `None` if such keys have taken their part of the room.
    pub(super) fn of_override(&self, domain: &str, full_key: &str, now: Time) -> Option<Arc<RuleStats>> {
        self.admit(domain, full_key, &self.room_for_overrides, now)
    }

    /// The counters of a full key, made in the room if there are none.
    fn admit(&self, domain: &str, full_key: &str, room: &Arc<Room>, now: Time) -> Option<Arc<RuleStats>> {
        let rest = full_key.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.'));
        let name = match rest.map(cut) {
            Some(Cow::Owned(rest)) => Cow::Owned([domain, ".", &rest].concat()),
            _ => Cow::Borrowed(full_key),
        };
        self.stats.touch(&name, now).or_else(|| {
            if room.refuses() {
                return None;
            }
            // Before the name's table is locked, which may be that of the overflow too.
            let overflow = self.overflow(domain, now);
            let make = |place| RuleStats::new(domain, &name, Some(Caller { place, overflow }));
            self.stats.admit(&name, room, now, make)
        })
    }

    fn overflow(&self, domain: &str, now: Time) -> Arc<Overflow> {
        let make = |place| Overflow::new(domain, Some(place), &self.stats);
        self.overflows
            .admit(domain, &self.overflows.room, now, make)
            .unwrap_or_else(|| self.last_overflow.clone())
    }

    /// Forgets names of callers that were idle for an hour, in whole series: the sum of the names with the same labels
    /// must not shrink while one of them is in use.
    pub(super) fn make_room(&self, now: Time) {
        self.stats.make_room(now, |stats| stats.series);
    }

    /// Forgets removed rules, in whole series like [`make_room`](Self::make_room).
    fn forget_vanished(&self) {
        let left = self.stats.forget_unheld(|stats| stats.series, RuleStats::is_of_caller);
        let mut callers = 0;
        self.stats.for_each(|stats| callers += usize::from(stats.is_of_caller()));
        // Callers may have added names since.
        let rules = left.saturating_sub(callers);
        self.rules.store(rules, Relaxed);
        // The next search follows when their number has doubled, so that its cost per rule is negligible.
        self.forget_at.store(rules + rules.max(self.stats.room.max), Relaxed);
    }

    /// The counts of each series that has any, in the order of its labels.
    pub(super) fn totals(&self) -> BTreeMap<Labels, Sums> {
        let mut totals = BTreeMap::<_, Sums>::new();
        self.for_each(|stats, counts| {
            let sums = totals.entry(Labels::of(stats.full_key())).or_default();
            sums.is_of_rules |= !stats.is_of_caller();
            for (sum, count) in sums.counts.iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
        });
        totals
    }

    /// Visits the counts of every name that has any. No name is forgotten meanwhile, so `visit` must not block.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&RuleStats, [u64; RuleCounter::ALL.len()])) {
        self.stats.for_each(|stats| {
            if let Some(counts) = stats.counts() {
                visit(stats, counts);
            }
        });
    }

    pub(super) fn refused(&self) -> BTreeMap<String, u64> {
        self.overflows.totals(&self.last_overflow, |overflow| overflow.refused.get())
    }
}

impl Overflow {
    fn new(domain: &str, place: Option<Place>, all: &Directory<RuleStats>) -> Self {
        let full_key = format!("{domain}.{OVERFLOW}");
        let stats = all.get_or_make(&full_key, || RuleStats::new(domain, &full_key, None));
        Self { domain: domain.into(), stats, refused: Counter::default(), place }
    }
}

impl Named for Overflow {
    fn name(&self) -> &str {
        &self.domain
    }

    fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_seconds(1_000_000);

    fn registry(max_series: usize) -> Registry {
        Registry::new(Room::new(max_series))
    }

    fn hit(stats: &RuleStats, n: u64) {
        stats.add(RuleCounter::TotalHits, n);
    }

    fn total(registry: &Registry, full_key: &str) -> Option<u64> {
        registry.totals().get(&Labels::of(full_key)).map(|sums| sums.counts[0])
    }

    #[test]
    fn rules_and_requests_share_the_counters_of_a_key() {
        let registry = registry(10);
        let rule = registry.rule("d", "d.k");
        assert!(Arc::ptr_eq(&rule, &registry.rule("d", "d.k")));
        assert!(Arc::ptr_eq(&rule, &registry.dynamic("d", "d.k", NOW)));
        assert_eq!(registry.stats.room.taken(), 0);
    }

    #[test]
    fn names_beyond_the_bound_count_in_one_series_per_domain() {
        let registry = registry(1);
        for (domain, full_key) in [("d", "d.a"), ("d", "d.b"), ("d", "d.c"), ("e", "e.a"), ("d", "d.a")] {
            hit(&registry.dynamic(domain, full_key, NOW), 1);
        }
        let found = ["d.a", "d.b", "d.__overflow__", "e.__overflow__"].map(|key| total(&registry, key));
        assert_eq!(found, [Some(2), None, Some(2), Some(1)]);
        assert_eq!(registry.refused(), [("d".to_owned(), 2), ("e".to_owned(), 1)].into());
    }

    #[test]
    fn names_of_limit_overrides_take_a_tenth_of_the_room() {
        let registry = registry(20);
        let names: Vec<_> = (0..5).map(|n| format!("d.k_{n}")).collect();
        let found = |now| {
            let found = names.iter().map(|name| registry.of_override("d", name, now).is_some());
            found.collect::<Vec<_>>()
        };
        assert_eq!(found(NOW), [true, true, false, false, false]);
        assert_eq!(registry.stats.room.taken(), 2, "they take part of the whole");
        assert!(registry.refused().is_empty(), "their hits count under another name");
        hit(&registry.dynamic("d", "d.k_3", NOW), 1);
        assert_eq!(found(NOW), [true, true, false, true, false], "a known name is not of the part");
        // Later, those that were idle make room.
        let later = Time::from_seconds(NOW.seconds() + 3600);
        assert!(registry.room_for_overrides.is_search_due(later));
        assert!(registry.of_override("d", "d.k_1", later).is_some());
        registry.make_room(later);
        assert_eq!(registry.stats.room.taken(), 1);
        assert!(registry.of_override("d", "d.k_4", later).is_some());
    }

    #[test]
    fn names_of_limit_overrides_find_no_room_in_a_full_whole() {
        let registry = registry(10);
        (0..10).for_each(|n| hit(&registry.dynamic("d", &format!("d.{n}"), NOW), 1));
        assert!(registry.of_override("d", "d.k_0", NOW).is_none());
        assert_eq!(registry.room_for_overrides.taken(), 0);
    }

    #[test]
    fn overflow_series_are_bounded() {
        let registry = registry(0);
        for n in 0..OVERFLOWING_DOMAINS + 5 {
            hit(&registry.dynamic(&n.to_string(), &format!("{n}.k"), NOW), 1);
        }
        assert_eq!(registry.totals().len(), OVERFLOWING_DOMAINS + 1);
        assert_eq!(total(&registry, "__overflow__.__overflow__"), Some(5));
    }

    #[test]
    fn rules_are_not_bounded_by_the_room_for_requests() {
        let registry = registry(1);
        let _ = registry.dynamic("d", "d.a", NOW);
        hit(&registry.rule("d", "d.rule"), 3);
        assert_eq!(total(&registry, "d.rule"), Some(3));
    }

    #[test]
    fn rules_with_the_same_labels_add_up() {
        let registry = registry(10);
        for (key, n) in
            [("d.a.b.c", 1), ("d.a.b.d", 2), ("d.a.b", 4), ("d.a", 8), ("d.a:b", 16), ("d.a|b", 32)]
        {
            hit(&registry.rule("d", key), n);
        }
        assert_eq!(["d.a.b", "d.a", "d.a_b"].map(|key| total(&registry, key)), [Some(7), Some(8), Some(48)]);
    }

    #[test]
    fn vanished_rules_beyond_the_bound_are_forgotten_and_no_counter_shrinks() {
        let registry = registry(20);
        let living = registry.rule("d", "d.living.x.1");
        hit(&living, 1);
        hit(&registry.rule("d", "d.living.x.2"), 2);
        hit(&registry.dynamic("d", "d.request", NOW), 4);
        hit(&registry.dynamic("d", "d.overflow", NOW), 8);
        for n in 0..200 {
            hit(&registry.rule("d", &format!("d.gone{n}")), 1);
        }
        assert!(registry.totals().len() <= 20 + 20 + 5, "{} series are left", registry.totals().len());
        let kept = ["d.living.x", "d.request", "d.overflow"].map(|key| total(&registry, key));
        assert_eq!(kept, [Some(3), Some(4), Some(8)]);
        assert!(Arc::ptr_eq(&living, &registry.rule("d", "d.living.x.1")));
    }

    #[test]
    fn every_series_of_a_caller_takes_room_or_overflows() {
        let registry = registry(4);
        let name = registry.dynamic("d", "d.a", NOW);
        let room = || registry.stats.room.taken();
        assert_eq!(room(), 1, "a name takes room before it has counted");
        for (counter, taken) in [
            (RuleCounter::TotalHits, 1),
            (RuleCounter::OverLimit, 3),
            (RuleCounter::OverLimit, 3),
            (RuleCounter::NearLimit, 4),
        ] {
            name.add(counter, 1);
            assert_eq!(room(), taken, "{counter:?}");
        }
        name.add(RuleCounter::WithinLimit, 0);
        assert!(registry.refused().is_empty(), "a counter that is 0 needs no room");
        name.add(RuleCounter::WithinLimit, 5);
        assert_eq!((room(), registry.refused()), (4, [("d".to_owned(), 1)].into()));
        let totals = registry.totals();
        let counts = |key: &str| totals[&Labels::of(key)].counts;
        assert_eq!((counts("d.a"), counts("d.__overflow__")), ([1, 2, 1, 0, 0, 0, 0], [0, 0, 0, 5, 0, 0, 0]));
    }

    #[test]
    fn names_idle_for_an_hour_are_forgotten_and_restart_at_zero() {
        let registry = registry(4);
        for (key, n) in [("d.idle", 1), ("d.used.x.1", 2), ("d.used.x.2", 4)] {
            hit(&registry.dynamic("d", key, NOW), n);
        }
        let held = registry.dynamic("d", "d.held", NOW);
        hit(&held, 8);
        let later = Time::from_seconds(NOW.seconds() + 3600);
        hit(&registry.dynamic("d", "d.used.x.2", later), 16);
        hit(&registry.dynamic("d", "d.new", later), 32);
        registry.make_room(later);
        let found =
            ["d.idle", "d.used.x", "d.held", "d.new", "d.__overflow__"].map(|key| total(&registry, key));
        assert_eq!(found, [None, Some(22), Some(8), None, Some(32)], "a series is forgotten as a whole");
        hit(&registry.dynamic("d", "d.idle", later), 64);
        assert_eq!(total(&registry, "d.idle"), Some(64));
    }

    #[test]
    fn long_names_are_cut_and_remain_distinct() {
        let registry = registry(100);
        for length in [198, 199, 200, 1_000_000] {
            for end in ["a", "é"] {
                let key = format!("d.{}{end}", "x".repeat(length));
                hit(&registry.dynamic("d", &key, NOW), 1);
                hit(&registry.dynamic("d", &key, NOW), 1);
            }
        }
        let totals = registry.totals();
        assert_eq!(totals.len(), 8, "{totals:?}");
        for (Labels { key1, .. }, sums) in &totals {
            assert!((199..=200).contains(&key1.len()) && sums.counts[0] == 2, "{key1}");
        }
        let uncut = totals.keys().filter(|labels| !labels.key1.contains('~')).count();
        assert_eq!(uncut, 3, "up to 200 bytes nothing is cut");
    }
}
