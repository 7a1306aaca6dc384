//! The counters of a rule, under the rule's name.
//!
//! The limiter, which defines when each counts, adds to them through a handle from the publication of the rules; the
//! exposition reads them.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    directory::Named,
    labels::Labels,
    names::RuleCounter,
    room::Place,
    shard::{Cells, Counter},
};

#[derive(Debug)]
pub struct RuleStats {
    full_key: Box<str>,
    /// The length of the domain within the name.
    domain_bytes: usize,
    /// Distinguishes these counters from earlier ones of the name.
    pub number: u64,
    /// Equal for all names with the same labels.
    pub(super) series: u64,
    caller: Option<Caller>,
    cells: Cells<{ RuleCounter::ALL.len() }>,
}

/// The bound on a name made from a caller's values.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) place: Place,
    pub(super) overflow: Arc<Overflow>,
}

/// Counts the hits of a domain that found no room.
#[derive(Debug)]
pub(super) struct Overflow {
    pub(super) domain: Box<str>,
    pub(super) stats: Arc<RuleStats>,
    /// Names and series that found no room.
    pub(super) refused: Counter,
    pub(super) place: Option<Place>,
}

impl RuleStats {
    /// Counters of a name, with a bound if a caller's values made it.
    pub(super) fn new(domain: &str, full_key: &str, caller: Option<Caller>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let mut series = DefaultHasher::new();
        Labels::of(full_key).hash(&mut series);
        Self {
            full_key: full_key.into(),
            domain_bytes: domain.len(),
            number,
            series: series.finish(),
            caller,
            cells: Cells::default(),
        }
    }

    /// Adds to a counter. If a caller's values made the name and the counter's series finds no room, adds to the
    /// overflow of the domain.
    #[inline]
    pub fn add(&self, counter: RuleCounter, n: u64) {
        match &self.caller {
            Some(caller) if n > 0 && !caller.place.has_series(counter) => {
                caller.overflow.refused.increment();
                caller.overflow.stats.add(counter, n);
            }
            _ => self.cells.add(counter as usize, n),
        }
    }

    pub fn get(&self, counter: RuleCounter) -> u64 {
        self.cells.get(counter as usize)
    }

    /// The name: the domain and each level's text, joined by dots.
    pub fn full_key(&self) -> &str {
        &self.full_key
    }

    pub(super) fn path(&self) -> (&str, &str) {
        let (domain, rule) =
            self.full_key.split_at_checked(self.domain_bytes).unwrap_or(("", &self.full_key));
        (domain, rule.strip_prefix('.').unwrap_or(rule))
    }

    pub(super) fn is_of_caller(&self) -> bool {
        self.caller.is_some()
    }

    /// All counters in the order of [`RuleCounter::ALL`]; `None` before the first hit.
    pub(super) fn counts(&self) -> Option<[u64; RuleCounter::ALL.len()]> {
        self.cells.touched().then(|| self.cells.all())
    }
}

impl Named for RuleStats {
    fn name(&self) -> &str {
        &self.full_key
    }

    fn place(&self) -> Option<&Place> {
        self.caller.as_ref().map(|caller| &caller.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_without_hits_has_no_counts() {
        let stats = RuleStats::new("d", "d.k", None);
        stats.add(RuleCounter::TotalHits, 0);
        assert_eq!(stats.counts(), None);
        stats.add(RuleCounter::NearLimit, 7);
        assert_eq!(stats.counts(), Some([0, 0, 7, 0, 0, 0, 0]));
        assert_eq!(stats.get(RuleCounter::NearLimit), 7);
    }
}
