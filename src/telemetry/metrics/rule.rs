//! The six counters of a rule, and the name they are kept by.
//!
//! The limiter adds to them through a handle that it got when the rules were published; the exposition
//! reads them. What a counter means, and when it counts, is the limiter's to say.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    bounded::Placed,
    directory::Named,
    labels::Labels,
    room::Place,
    shard::{Cells, Counter, ShardCount},
};

named! {
    /// The counters of a rule, by their statsd names.
    pub enum RuleCounter {
        /// Hits, before the decision.
        TotalHits = "total_hits",
        /// Hits over the limit.
        OverLimit = "over_limit",
        /// Hits between the near threshold and the limit.
        NearLimit = "near_limit",
        /// Hits within the limit.
        WithinLimit = "within_limit",
        /// Hits over the limit that the local cache answered without the store.
        OverLimitWithLocalCache = "over_limit_with_local_cache",
        /// Hits over the limit that passed because the rule is in shadow mode.
        ShadowMode = "shadow_mode",
    }
}

impl RuleCounter {
    /// The series of the page that show this counter. Three counters are shown by `tollgate_rule_hits_total` too.
    pub(super) const fn series(self) -> usize {
        match self {
            Self::OverLimit | Self::WithinLimit | Self::ShadowMode => 2,
            Self::TotalHits | Self::NearLimit | Self::OverLimitWithLocalCache => 1,
        }
    }
}

/// The counters kept under one name. Shared by all who count on it.
#[derive(Debug)]
pub struct RuleStats {
    full_key: Box<str>,
    /// How many of the name's bytes are the domain.
    domain_bytes: usize,
    /// Distinguishes these counters from others that had the name before.
    number: u64,
    /// The same for all that share the labels of their series.
    series: u64,
    /// Of a name that a caller's values made.
    caller: Option<Caller>,
    cells: Cells<{ RuleCounter::ALL.len() }>,
}

/// What a name that a caller's values made has beside its counters.
#[derive(Debug)]
pub(in crate::telemetry) struct Caller {
    pub(super) place: Place,
    /// Counts what finds no room.
    pub(in crate::telemetry) overflow: Arc<Overflow>,
}

/// Where the hits of a domain go that found no room.
#[derive(Debug)]
pub(in crate::telemetry) struct Overflow {
    pub(in crate::telemetry) domain: Box<str>,
    pub(in crate::telemetry) stats: Arc<RuleStats>,
    /// How often a name or a series found no room.
    pub(in crate::telemetry) refused: Counter,
}

impl RuleStats {
    /// Counters by a name of the rules.
    pub(in crate::telemetry) fn of_rules(domain: &str, full_key: &str, shards: ShardCount) -> Self {
        Self::new(domain, full_key, None, shards)
    }

    /// Counters by a name that a caller's values made.
    pub(in crate::telemetry) fn of_caller(
        domain: &str,
        full_key: &str,
        caller: Caller,
        shards: ShardCount,
    ) -> Self {
        Self::new(domain, full_key, Some(caller), shards)
    }

    fn new(domain: &str, full_key: &str, caller: Option<Caller>, shards: ShardCount) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let mut series = DefaultHasher::new();
        Labels::of(full_key).hash(&mut series);
        let (full_key, domain_bytes, series) = (full_key.into(), domain.len(), series.finish());
        Self { full_key, domain_bytes, number, series, caller, cells: Cells::new(shards) }
    }

    /// Adds to one of the counters; of a name that a caller's values made, to the overflow of its domain where
    /// the counter's series finds no room.
    pub fn add(&self, counter: RuleCounter, n: u64) {
        match &self.caller {
            Some(caller) if n > 0 && !caller.place.has_series(counter) => {
                caller.overflow.refused.increment();
                caller.overflow.stats.add(counter, n);
            }
            _ => self.cells.add(counter as usize, n),
        }
    }

    /// What a counter holds.
    #[must_use]
    pub fn get(&self, counter: RuleCounter) -> u64 {
        self.cells.get(counter as usize)
    }

    /// The name: the domain and each level's text, joined by dots.
    #[must_use]
    pub fn full_key(&self) -> &str {
        &self.full_key
    }

    /// The domain, and each level's text behind it, joined by dots.
    pub(in crate::telemetry) fn path(&self) -> (&str, &str) {
        let (domain, rule) =
            self.full_key.split_at_checked(self.domain_bytes).unwrap_or(("", &self.full_key));
        (domain, rule.strip_prefix('.').unwrap_or(rule))
    }

    /// True for a name that a caller's values made.
    pub(in crate::telemetry) fn is_of_caller(&self) -> bool {
        self.caller.is_some()
    }

    /// Distinguishes these counters from others that had the name before.
    pub(in crate::telemetry) fn number(&self) -> u64 {
        self.number
    }

    /// The same number for all that share the labels of their series.
    pub(in crate::telemetry) fn series(&self) -> u64 {
        self.series
    }

    /// All counters in the order of [`RuleCounter::ALL`], unless nothing was counted yet.
    pub(in crate::telemetry) fn counts(&self) -> Option<[u64; RuleCounter::ALL.len()]> {
        self.cells.touched().then(|| self.cells.all())
    }
}

impl Named for RuleStats {
    fn name(&self) -> &str {
        &self.full_key
    }
}

impl Placed for RuleStats {
    fn place(&self) -> Option<&Place> {
        self.caller.as_ref().map(|caller| &caller.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_number_of_its_own() {
        for (number, counter) in RuleCounter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, number);
        }
    }

    #[test]
    fn a_rule_that_was_only_looked_at_has_no_counts() {
        let stats = RuleStats::of_rules("d", "d.k", ShardCount::for_workers(2));
        stats.add(RuleCounter::TotalHits, 0);
        assert_eq!(stats.counts(), None);
        stats.add(RuleCounter::NearLimit, 7);
        assert_eq!(stats.counts(), Some([0, 0, 7, 0, 0, 0]));
        assert_eq!(stats.get(RuleCounter::NearLimit), 7);
    }
}
