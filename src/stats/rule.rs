//! The six counters of a rule, and the name they are kept by.
//!
//! The limiter adds to them through a handle that it got when the rules were published; the exposition
//! reads them. What a counter means, and when it counts, is the limiter's to say.

use super::{
    directory::Named,
    shard::{Cells, ShardCount},
};

/// What is counted of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RuleCounter {
    /// Hits, before the decision.
    TotalHits,
    /// Hits beyond the limit.
    OverLimit,
    /// Hits between the near threshold and the limit.
    NearLimit,
    /// Hits within the limit.
    WithinLimit,
    /// Hits beyond the limit that the local cache answered without the store.
    OverLimitWithLocalCache,
    /// Hits beyond the limit that passed because the rule is in shadow mode.
    ShadowMode,
}

impl RuleCounter {
    /// Every counter, each at its own number.
    pub const ALL: [Self; 6] = [
        Self::TotalHits,
        Self::OverLimit,
        Self::NearLimit,
        Self::WithinLimit,
        Self::OverLimitWithLocalCache,
        Self::ShadowMode,
    ];
}

/// The counters kept under one name. Shared by all who count on it.
#[derive(Debug)]
pub struct RuleStats {
    full_key: Box<str>,
    origin: Origin,
    cells: Cells<{ RuleCounter::ALL.len() }>,
}

/// Where a name comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// From the rules, which the operator bounds.
    Rules,
    /// From a request, which nobody bounds but we.
    Request,
}

impl RuleStats {
    pub(super) fn new(full_key: &str, origin: Origin, shards: ShardCount) -> Self {
        Self { full_key: full_key.into(), origin, cells: Cells::new(shards) }
    }

    /// Adds to one of the counters.
    pub fn add(&self, counter: RuleCounter, n: u64) {
        self.cells.add(counter as usize, n);
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

    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// All counters in the order of [`RuleCounter::ALL`], unless nothing was counted yet.
    pub(super) fn counts(&self) -> Option<[u64; RuleCounter::ALL.len()]> {
        self.cells.touched().then(|| self.cells.all())
    }
}

impl Named for RuleStats {
    fn name(&self) -> &str {
        &self.full_key
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
        let stats = RuleStats::new("d.k", Origin::Rules, ShardCount::for_workers(2));
        stats.add(RuleCounter::TotalHits, 0);
        assert_eq!(stats.counts(), None);
        stats.add(RuleCounter::NearLimit, 7);
        assert_eq!(stats.counts(), Some([0, 0, 7, 0, 0, 0]));
        assert_eq!(stats.get(RuleCounter::NearLimit), 7);
    }
}
