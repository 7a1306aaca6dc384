//! What a store is asked for one request: checks, each with the key of a counter, and what they say.
//!
//! The limiter writes a batch and reads it again; the store in between sets the outcomes.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::{ops::Range, time::Instant};

use smallvec::SmallVec;

use crate::{
    limiter::algorithm::{Hits, Verdict, fixed_window},
    rules::Limit,
};

/// The checks of one request.
#[derive(Debug, Default)]
pub struct Batch<'r> {
    /// The keys of all checks in full, one behind the other, so that a request costs one allocation.
    keys: String,
    checks: SmallVec<[Check<'r>; 4]>,
    /// Some checks are members of a group.
    has_groups: bool,
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
    /// Whether it counts by itself.
    pub member: Member,
    /// What it says; set by the store.
    pub outcome: Outcome,
}

/// Whether a check counts by itself or in a group: the limits of one rule that has several. A group is all or
/// nothing: hits that one of its limits refuses are counted by none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Member {
    /// The only limit of its rule. A fixed window counts what it refuses, as in the Go service.
    Alone,
    /// The first check of a group, which may have no other.
    First,
    /// Belongs to the group of the check before it.
    Next,
}

/// What a counter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A fixed window's count afterwards.
    Counted(u64),
    /// A fixed window's count, to which the hits of a group were not added because they do not fit.
    NotCounted(u64),
    /// The verdict of any other algorithm.
    Decided(Verdict),
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
        self.checks.push(Check { full_key, key_end: key.end, limit, hits, member: Member::Alone, outcome });
        place
    }

    /// Makes a group of the checks from this place on.
    pub fn group(&mut self, first: usize) {
        for (at, check) in self.checks.iter_mut().enumerate().skip(first) {
            check.member = if at == first { Member::First } else { Member::Next };
            self.has_groups = true;
        }
    }

    /// True when some checks are members of a group.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.has_groups
    }

    /// The places of the group that begins at `first`; of that one check where it is alone. None at the end.
    #[must_use]
    pub fn group_at(&self, first: usize) -> Option<Range<usize>> {
        let others = self.checks.get(first..)?.iter().skip(1);
        let others = others.take_while(|check| check.member == Member::Next).count();
        (first < self.checks.len()).then(|| first..first.saturating_add(1).saturating_add(others))
    }

    /// The places of every group, and of every check that is alone.
    pub fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let group = self.group_at(next)?;
            next = group.end;
            Some(group)
        })
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

    /// The checks at these places; none where there are fewer.
    #[must_use]
    pub fn checks_at(&self, places: Range<usize>) -> &[Check<'r>] {
        self.checks.get(places).unwrap_or_default()
    }

    /// Keeps the checks at the places for which `keep` holds.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut places = 0..;
        self.checks.retain(|_| places.next().is_some_and(&keep));
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
    /// A group of which nothing is to count is told so, and has none.
    pub(super) fn hits_after_look(&mut self) -> NextHits {
        let over = |check: &Check<'_>| check.would_be_over(check.outcome);
        let any_over = self.checks.iter().any(over);
        let hits = self.checks.iter().map(|check| match check.member {
            Member::Alone if any_over && !over(check) => Some(looking(check.hits)),
            Member::First | Member::Next if any_over && check.takes() => None,
            _ => Some(check.hits),
        });
        let hits = hits.collect();
        if any_over && self.has_groups {
            self.checks.iter_mut().filter(|check| check.member != Member::Alone).for_each(Check::refuse);
        }
        hits
    }

    /// The hits of the checks at these places, which are of groups, once each outcome is what a look found: all
    /// of a group, or none where one of its limits would refuse, which is told so.
    pub(super) fn hits_that_fit(&mut self, looked: impl Fn(usize) -> bool) -> NextHits {
        let mut plan: NextHits = self.checks.iter().map(|_| None).collect();
        let mut next = 0;
        while let Some(group) = self.group_at(next) {
            next = group.end;
            let Some(checks) = self.checks.get_mut(group.clone()) else { break };
            if !looked(group.start) || !checks.iter().all(Check::takes) {
                continue;
            }
            if checks.iter().any(|check| check.would_be_over(check.outcome)) {
                checks.iter_mut().for_each(Check::refuse);
            } else {
                let planned = plan.get_mut(group).unwrap_or_default();
                planned.iter_mut().zip(checks).for_each(|(hits, check)| *hits = Some(check.hits));
            }
        }
        plan
    }

    /// What is to be given back of the hits that were `planned`: all of a group of which one limit has refused
    /// after all, because others came between the look and the hits.
    pub(super) fn hits_to_give_back(&self, planned: &NextHits) -> NextHits {
        let mut plan: NextHits = self.checks.iter().map(|_| None).collect();
        for group in self.groups() {
            let (Some(checks), Some(planned)) = (self.checks.get(group.clone()), planned.get(group.clone()))
            else {
                break;
            };
            let takes_together = |check: &Check<'_>| check.member != Member::Alone && check.takes();
            if !checks.iter().all(takes_together)
                || planned.contains(&None)
                || !checks.iter().any(Check::is_over)
            {
                continue;
            }
            for (hits, check) in plan.get_mut(group).unwrap_or_default().iter_mut().zip(checks) {
                let was_counted = !matches!(check.outcome, Outcome::Decided(Verdict { consumed: false, .. }));
                *hits = was_counted.then(|| Hits::Refund(check.hits.taken()));
            }
        }
        plan
    }

    /// Tells groups that have given back their hits that they were refused: `over` says by which limits.
    pub(super) fn refuse_given_back(&mut self, given_back: &NextHits, over: &[bool]) {
        for (at, check) in self.checks.iter_mut().enumerate() {
            let was_given_back = given_back.get(at).is_some_and(Option::is_some);
            if let (Outcome::Counted(count), true, Some(true)) = (check.outcome, was_given_back, over.get(at))
            {
                // Though others may have made room again meanwhile.
                check.outcome = Outcome::NotCounted(count);
            }
        }
    }
}

/// The hits of each check, by its place; none where it is not asked.
pub(super) type NextHits = SmallVec<[Option<Hits>; 8]>;

impl Check<'_> {
    /// True when it was not within the limit.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self.outcome {
            Outcome::Counted(after) => after > u64::from(self.limit.requests_per_unit),
            Outcome::NotCounted(_) => true,
            Outcome::Decided(verdict) => !verdict.admitted,
        }
    }

    /// True when these hits would not be within the limit, given what was seen by a look without any.
    #[must_use]
    pub fn would_be_over(&self, seen: Outcome) -> bool {
        match seen {
            Outcome::Counted(now) => {
                fixed_window::count(now, self.hits) > u64::from(self.limit.requests_per_unit)
            }
            Outcome::NotCounted(_) => true,
            Outcome::Decided(seen) => self.hits.taken() > u64::from(seen.remaining),
        }
    }

    /// True when it takes hits, or looks; false when it gives some back.
    pub(super) fn takes(&self) -> bool {
        matches!(self.hits, Hits::Take(_))
    }

    /// Makes of what a look has found what these hits are told that do not fit, or of which nothing is counted.
    ///
    /// What only the algorithm itself knows, when they would fit, is told as when nothing would be taken any
    /// more: this is for stores that cannot ask the limits of a rule in one step.
    pub(super) fn refuse(&mut self) {
        if !self.would_be_over(self.outcome) {
            return;
        }
        self.outcome = match self.outcome {
            Outcome::Decided(seen) => {
                let ever = self.hits.taken() <= u64::from(self.limit.algorithm.capacity());
                let retry_after = ever.then_some(seen.reset.max(1));
                Outcome::Decided(Verdict { admitted: false, consumed: false, retry_after, ..seen })
            }
            Outcome::Counted(count) | Outcome::NotCounted(count) => Outcome::NotCounted(count),
        };
    }
}

/// Hits that are not to be counted; what is given back is given back all the same.
pub(super) fn looking(hits: Hits) -> Hits {
    match hits {
        Hits::Take(_) => Hits::Take(0),
        Hits::Refund(_) => hits,
    }
}
