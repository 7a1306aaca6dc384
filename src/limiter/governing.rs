//! Which of a descriptor's limits governs: the one whose verdict its status tells.
//!
//! Of those that refuse it is the one that frees last, because nothing passes before; else the one of which
//! the smallest part remains, because it will refuse first.

use super::{
    decision::{Decision, Thresholds, decide},
    plan::{CounterSource, LimitCheck, Limited},
};
use crate::{
    clock::Time,
    limiter::algorithm::{FixedWindow, Hits, Verdict},
    rules::Limit,
    store::{Batch, Outcome},
};

/// What one limit says of a descriptor's hits.
#[derive(Clone, Copy)]
pub(super) struct LimitOutcome<'r> {
    pub(super) limit: &'r Limit,
    /// Who says so.
    pub(super) asked: CounterSource,
    pub(super) verdict: Verdict,
    /// What the statistics make of it.
    pub(super) decision: Decision,
}

/// The ruling of the limit that governs; none only where there is no limit.
pub(super) fn governing<'r>(
    limited: &Limited<'r>,
    batch: &Batch<'_>,
    near_ratio: f32,
    now: Time,
) -> Option<LimitOutcome<'r>> {
    let rulings = limited.limits.iter().map(|held| ruling(held, limited.hits, batch, near_ratio, now));
    rulings.reduce(|first, next| if next.governs(&first) { next } else { first })
}

fn ruling<'r>(
    held: &LimitCheck<'r>,
    hits: Hits,
    batch: &Batch<'_>,
    near_ratio: f32,
    now: Time,
) -> LimitOutcome<'r> {
    let LimitCheck { limit, asked } = *held;
    let over = Decision { over: true, over_hits: hits.taken(), ..Decision::default() };
    let (verdict, decision) = match asked {
        CounterSource::Store(place) => match batch.checks().get(place).map(|check| check.outcome) {
            Some(Outcome::Judged(verdict)) if verdict.admitted => {
                // As if it were a counter, so that its hits are near the limit when a counter's would be.
                let whole = limit.algorithm.whole();
                let after = u64::from(whole.saturating_sub(verdict.remaining));
                (verdict, decide(Thresholds::new(whole, near_ratio), hits, after))
            }
            Some(Outcome::Judged(verdict)) => (verdict, over),
            Some(Outcome::Refused(count)) => {
                let fixed = FixedWindow { limit: limit.requests_per_unit, window: limit.window() };
                (fixed.refusal(count, hits, now), over)
            }
            counted => {
                let after = if let Some(Outcome::Counted(after)) = counted { after } else { 0 };
                let fixed = FixedWindow { limit: limit.requests_per_unit, window: limit.window() };
                let thresholds = Thresholds::new(limit.requests_per_unit, near_ratio);
                (fixed.verdict(after, hits, now), decide(thresholds, hits, after))
            }
        },
        CounterSource::KnownOver(verdict) => (verdict, over),
        // Which of the hits are near or beyond the limit nobody knows, so none is counted.
        CounterSource::Nobody { over } => {
            (limit.algorithm.supposed(over, hits, now), Decision { over, ..Decision::default() })
        }
    };
    LimitOutcome { limit, asked, verdict, decision }
}

impl LimitOutcome<'_> {
    /// True when it goes before another one of the same descriptor.
    fn governs(&self, other: &Self) -> bool {
        match (self.decision.over, other.decision.over) {
            (true, true) => self.wait() > other.wait(),
            (false, false) => {
                self.left().saturating_mul(other.whole()) < other.left().saturating_mul(self.whole())
            }
            (over, _) => over,
        }
    }

    /// Microseconds until the hits would be admitted; for ever where they never would.
    pub(super) fn wait(&self) -> u64 {
        self.verdict.retry_after.unwrap_or(u64::MAX)
    }

    fn left(&self) -> u64 {
        self.verdict.remaining.into()
    }

    fn whole(&self) -> u64 {
        self.limit.algorithm.whole().into()
    }

    /// Whole seconds until the limit is whole again.
    pub(super) fn seconds_until_reset(&self) -> u64 {
        self.verdict.reset.div_ceil(1_000_000)
    }

    /// Whole seconds until more would be admitted than now: for hits that are refused until they would be.
    pub(super) fn seconds_until_more(&self) -> u64 {
        self.retry_after().filter(|_| self.decision.over).unwrap_or_else(|| self.seconds_until_reset())
    }

    /// Whole seconds until the hits would be admitted; none where they never would.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.verdict.retry_after.map(|wait| wait.div_ceil(1_000_000))
    }
}
