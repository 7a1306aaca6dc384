//! What a limit's counter says about a request, and which limit of a descriptor governs its status.
//!
//! `conclude` calls this for each descriptor once the store has set the outcomes of its checks.

use super::plan::{CounterSource, LimitCheck, Limited};
use crate::{
    clock::Time,
    limiter::algorithm::{FixedWindow, Hits, Verdict, fixed_window::MAX_HITS},
    rules::Limit,
    store::{self, Batch},
};

/// The values that a counter is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Above this the counter is over the limit.
    pub limit: u64,
    /// From here on it is near the limit.
    pub near: u64,
}

/// What one counter says about one request, and the hits that the statistics count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// The limit is exceeded.
    pub over: bool,
    /// Hits left within the limit.
    pub remaining: u32,
    /// The part of the hits beyond the limit.
    pub over_hits: u64,
    /// The part of the hits between the near threshold and the limit.
    pub near_hits: u64,
    /// The hits of a request within the limit.
    pub within_hits: u64,
}

impl Thresholds {
    /// The thresholds of a limit, with `NEAR_LIMIT_RATIO`. The product has 32-bit precision, as in the Go service,
    /// so that both services count the same during a migration.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the loss is the required behaviour; a cast saturates"
    )]
    pub fn new(requests_per_unit: u32, near_ratio: f32) -> Self {
        let near = (requests_per_unit as f32 * near_ratio).floor() as u64;
        Self { limit: u64::from(requests_per_unit), near }
    }
}

/// Compares a counter with its thresholds. `after` is its value once these hits are counted.
#[must_use]
pub fn decide(thresholds: Thresholds, hits: Hits, after: u64) -> Decision {
    let Thresholds { limit, near } = thresholds;
    let over = after > limit;
    let remaining = u32::try_from(limit.saturating_sub(after)).unwrap_or(u32::MAX);
    let Hits::Take(hits) = hits else { return Decision { over, remaining, ..Decision::default() } };
    // Where STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT did not count the hits this wraps around, as in the Go service:
    // then all of them lie beyond every threshold that is passed.
    let counted = hits.min(MAX_HITS);
    let before = after.wrapping_sub(counted);
    if over && before >= limit {
        Decision { over, remaining, over_hits: hits, ..Decision::default() }
    } else if over {
        let near_hits = limit.saturating_sub(near.max(before));
        let over_hits = after.saturating_sub(limit).saturating_add(hits.saturating_sub(counted));
        Decision { over, remaining, over_hits, near_hits, within_hits: 0 }
    } else {
        let near_hits = match after > near {
            true if before >= near => hits,
            true => after.saturating_sub(near),
            false => 0,
        };
        Decision { over, remaining, over_hits: 0, near_hits, within_hits: hits }
    }
}

/// The outcome of one limit for a descriptor's hits.
#[derive(Clone, Copy)]
pub(super) struct LimitOutcome<'r> {
    pub(super) limit: &'r Limit,
    pub(super) source: CounterSource,
    pub(super) verdict: Verdict,
    pub(super) decision: Decision,
}

/// The outcome of the limit that governs a descriptor, and that its status shows; `None` only without limits.
///
/// Among limits that reject the request it is the one that frees last, because the request cannot pass before.
/// Otherwise it is the one with the smallest part remaining, because it will be the first to reject.
pub(super) fn governing<'r>(
    limited: &Limited<'r>,
    batch: &Batch<'_>,
    near_ratio: f32,
    now: Time,
) -> Option<LimitOutcome<'r>> {
    let outcomes = limited.limits.iter().map(|check| outcome(check, limited.hits, batch, near_ratio, now));
    outcomes.reduce(|first, next| if next.governs(&first) { next } else { first })
}

/// The outcome of one limit.
pub(super) fn outcome<'r>(
    check: &LimitCheck<'r>,
    hits: Hits,
    batch: &Batch<'_>,
    near_ratio: f32,
    now: Time,
) -> LimitOutcome<'r> {
    let LimitCheck { limit, source } = *check;
    let over = Decision { over: true, over_hits: hits.taken(), ..Decision::default() };
    let (verdict, decision) = match source {
        CounterSource::Store(index) => match batch.checks().get(index).map(|check| check.outcome) {
            Some(store::Outcome::Decided(verdict)) if verdict.admitted => {
                // Converted to a count, so that the near threshold applies as it does to a counter.
                let capacity = limit.algorithm.capacity();
                let after = u64::from(capacity.saturating_sub(verdict.remaining));
                (verdict, decide(Thresholds::new(capacity, near_ratio), hits, after))
            }
            Some(store::Outcome::Decided(verdict)) => (verdict, over),
            Some(store::Outcome::NotCounted(count)) => {
                let fixed = FixedWindow { limit: limit.requests_per_unit, window: limit.window() };
                (fixed.rejected(count, hits, now), over)
            }
            counted => {
                let after = if let Some(store::Outcome::Counted(after)) = counted { after } else { 0 };
                let fixed = FixedWindow { limit: limit.requests_per_unit, window: limit.window() };
                let thresholds = Thresholds::new(limit.requests_per_unit, near_ratio);
                (fixed.verdict(after, hits, now), decide(thresholds, hits, after))
            }
        },
        CounterSource::KnownOver(verdict) => (verdict, over),
        CounterSource::Blocked(wait) => {
            let reset = wait.unwrap_or_default();
            (Verdict { admitted: false, consumed: false, remaining: 0, reset, retry_after: wait }, over)
        }
        // Which hits are near or beyond the limit is unknown, so the statistics count none.
        CounterSource::Assumed { over } => {
            (limit.algorithm.assumed(over, hits, now), Decision { over, ..Decision::default() })
        }
    };
    LimitOutcome { limit, source, verdict, decision }
}

impl LimitOutcome<'_> {
    /// True when it takes precedence over another limit of the same descriptor.
    fn governs(&self, other: &Self) -> bool {
        match (self.decision.over, other.decision.over) {
            (true, true) => self.wait() > other.wait(),
            (false, false) => {
                // Both factors are below 2³², so no product overflows.
                let part = |one: &Self, two: &Self| one.remaining().saturating_mul(two.capacity());
                part(self, other) < part(other, self)
            }
            (over, _) => over,
        }
    }

    /// Microseconds until the hits would be admitted; the maximum if they never fit.
    pub(super) fn wait(&self) -> u64 {
        self.verdict.retry_after.unwrap_or(u64::MAX)
    }

    fn remaining(&self) -> u64 {
        self.verdict.remaining.into()
    }

    fn capacity(&self) -> u64 {
        self.limit.algorithm.capacity().into()
    }

    /// Seconds until the full limit is available, rounded up.
    pub(super) fn seconds_until_reset(&self) -> u64 {
        self.verdict.reset.div_ceil(1_000_000)
    }

    /// Seconds until more is available than now: for rejected hits until they would be admitted.
    pub(super) fn seconds_until_more(&self) -> u64 {
        self.retry_after().filter(|_| self.decision.over).unwrap_or_else(|| self.seconds_until_reset())
    }

    /// Seconds until the hits would be admitted, rounded up; `None` if they never fit.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.verdict.retry_after.map(|wait| wait.div_ceil(1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limiter::algorithm::fixed_window;

    /// The reference: classifies every hit on its own.
    fn count_hit_by_hit(thresholds: Thresholds, hits: u64, after: u64) -> Decision {
        let over = after > thresholds.limit;
        let mut model = Decision { over, ..Decision::default() };
        model.remaining = if over { 0 } else { u32::try_from(thresholds.limit - after).unwrap() };
        for hit in after - hits..after {
            if hit >= thresholds.limit {
                model.over_hits += 1;
            } else if hit >= thresholds.near {
                model.near_hits += 1;
            }
        }
        model.within_hits = if over { 0 } else { hits };
        model
    }

    proptest! {
        #[test]
        fn classifies_each_hit_as_if_it_came_alone(
            limit in 0..60_u32, ratio in 0.0..=1.0_f32, before in 0..100_u64, hits in 0..50_u64,
        ) {
            let thresholds = Thresholds::new(limit, ratio);
            let after = before + hits;
            prop_assert_eq!(decide(thresholds, Hits::Take(hits), after), count_hit_by_hit(thresholds, hits, after));
        }

        #[test]
        fn accepts_any_numbers(limit: u32, ratio in 0.0..=1.0_f32, hits: u64, after: u64, back: bool) {
            let hits = if back { Hits::Refund(hits) } else { Hits::Take(hits) };
            let decision = decide(Thresholds::new(limit, ratio), hits, after);
            prop_assert_eq!(decision.over, after > u64::from(limit));
            prop_assert!(decision.remaining <= limit);
        }
    }

    #[test]
    fn hits_near_the_integer_maximum_count_once() {
        for hits in [1 << 32, 1 << 63, u64::MAX] {
            let thresholds = Thresholds::new(10, 0.8);
            let (mut counter, mut near) = (3, 0);
            for n in 0..4 {
                counter = fixed_window::count(counter, Hits::Take(hits));
                let decision = decide(thresholds, Hits::Take(hits), counter);
                near += decision.near_hits;
                // Three hits came before: seven more fit, of which two are near the limit.
                let over = if n == 0 { hits - 7 } else { hits };
                assert_eq!((decision.over, decision.over_hits), (true, over), "{hits} {n}");
            }
            assert_eq!(near, 2, "{hits}");
        }
    }

    #[test]
    fn the_near_threshold_has_32_bit_precision() {
        assert_eq!(Thresholds::new(10, 0.8).near, 8);
        assert_eq!(Thresholds::new(16_777_217, 1.0).near, 16_777_216);
    }

    #[test]
    fn refunds_count_nowhere() {
        let decision = decide(Thresholds::new(5, 0.8), Hits::Refund(3), 2);
        assert_eq!(decision, Decision { remaining: 3, ..Decision::default() });
    }
}
