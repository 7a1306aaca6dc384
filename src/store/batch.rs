//! What a store is asked for one request: checks, each with the key of a counter, and what they say.
//!
//! The limiter writes a batch and reads it again; the store in between sets the outcomes.

use std::{ops::Range, time::Instant};

use smallvec::SmallVec;

use crate::{
    algorithm::{Hits, Verdict, fixed_window},
    rules::Limit,
};

/// The checks of one request.
#[derive(Debug, Default)]
pub struct Batch<'r> {
    /// The keys of all checks in full, one behind the other, so that a request costs one allocation.
    keys: String,
    checks: SmallVec<[Check<'r>; 4]>,
    /// What is added when a check is or would be over its limit.
    pub counting: Counting,
    /// When an answer is of no use to the caller any more, where that is known.
    pub until: Option<Instant>,
}

/// Whether a refused request counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// Every hit counts, also those of a request that is refused.
    #[default]
    Always,
    /// When a check would go over its limit, only such checks count; the others look.
    StopWhenOver,
    /// Every check looks: one that is not in the batch is known to be over.
    Look,
}

/// One counter that is asked, and what it says.
#[derive(Clone, Debug)]
pub struct Check<'r> {
    full_key: Range<usize>,
    /// Where the part ends by which a store that others share knows the counter.
    key_end: usize,
    /// What is held against the counter.
    pub limit: &'r Limit,
    /// What is added to it.
    pub hits: Hits,
    /// What it says; set by the store.
    pub outcome: Outcome,
}

/// What a counter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A fixed window's count afterwards.
    Counted(u64),
    /// The verdict of any other algorithm.
    Judged(Verdict),
}

impl<'r> Batch<'r> {
    /// A batch that puts its keys behind what `keys` holds.
    #[must_use]
    pub fn with_space(keys: String) -> Self {
        Self { keys, ..Self::default() }
    }

    /// Space for a key, to be written behind what is there and handed to [`push`](Self::push).
    pub fn keys(&mut self) -> &mut String {
        &mut self.keys
    }

    /// Adds a check whose full key was written from `start` on, and returns its place.
    pub fn push(&mut self, start: usize, limit: &'r Limit, hits: Hits) -> usize {
        self.push_with_key(start..self.keys.len(), limit, hits)
    }

    /// Adds a check whose full key was written from the start of `key` on, of which `key` is the part by which a
    /// store that others share knows the counter.
    pub fn push_with_key(&mut self, key: Range<usize>, limit: &'r Limit, hits: Hits) -> usize {
        let (place, outcome) = (self.checks.len(), Outcome::Counted(0));
        let full_key = key.start..self.keys.len();
        self.checks.push(Check { full_key, key_end: key.end, limit, hits, outcome });
        place
    }

    /// The counter's key in a store that others share.
    #[must_use]
    pub fn key(&self, check: &Check<'_>) -> &str {
        self.keys.get(check.full_key.start..check.key_end).unwrap_or_default()
    }

    /// The counter's key within this process, which no other counter has.
    #[must_use]
    pub fn full_key(&self, check: &Check<'_>) -> &str {
        self.keys.get(check.full_key.clone()).unwrap_or_default()
    }

    /// The checks in the order in which they were added.
    #[must_use]
    pub fn checks(&self) -> &[Check<'r>] {
        &self.checks
    }

    /// Keeps the checks for which `keep` holds, given the full key; each is asked about once, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Check<'r>) -> bool) {
        let Self { keys, checks, .. } = self;
        checks.retain(|check| keep(keys.get(check.full_key.clone()).unwrap_or_default(), check));
    }

    /// True when there is nothing to ask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Sets the outcome of the check at this place.
    pub fn set(&mut self, place: usize, outcome: Outcome) {
        if let Some(check) = self.checks.get_mut(place) {
            check.outcome = outcome;
        }
    }

    /// Sets each outcome to what `outcome` makes of the check and its full key.
    pub fn answer(&mut self, mut outcome: impl FnMut(&str, &Check<'r>) -> Outcome) {
        for check in &mut self.checks {
            let key = self.keys.get(check.full_key.clone()).unwrap_or_default();
            check.outcome = outcome(key, check);
        }
    }

    /// The hits that count by [`Counting::StopWhenOver`], once each outcome is what a look without any found.
    pub(super) fn hits_after_look(&self) -> impl Fn(usize, &Check<'_>) -> Hits + use<> {
        let over: SmallVec<[bool; 8]> =
            self.checks.iter().map(|check| check.would_be_over(check.outcome)).collect();
        let any_over = over.contains(&true);
        move |place, check| match over.get(place) {
            Some(false) if any_over => looking(check.hits),
            _ => check.hits,
        }
    }
}

impl Check<'_> {
    /// True when it was not within the limit.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self.outcome {
            Outcome::Counted(after) => after > u64::from(self.limit.requests_per_unit),
            Outcome::Judged(verdict) => !verdict.admitted,
        }
    }

    /// True when these hits would not be within the limit, given what was seen by a look without any.
    #[must_use]
    pub fn would_be_over(&self, seen: Outcome) -> bool {
        match seen {
            Outcome::Counted(now) => {
                fixed_window::count(now, self.hits) > u64::from(self.limit.requests_per_unit)
            }
            Outcome::Judged(seen) => self.hits.taken() > u64::from(seen.remaining),
        }
    }
}

/// Hits that are not to be counted; what is given back is given back all the same.
pub(super) fn looking(hits: Hits) -> Hits {
    match hits {
        Hits::Take(_) => Hits::Take(0),
        Hits::GiveBack(_) => hits,
    }
}
