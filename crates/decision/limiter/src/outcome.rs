//! What a limit's verdict means for the statistics, and the limit of a descriptor that governs its status.
//!
//! `conclude` calls this for each descriptor once the store has set the verdicts of its checks.

use super::plan::{LimitCheck, Limited, Scope};
use counters::{Batch, Check, Decider, Held};
use limit::{Hits, Limit, Verdict, fixed_window::MAX_HITS};

/// The decision by one counter, and the hits for the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LimitDecision {
    pub(super) over: bool,
    pub(super) over_hits: u64,
    /// The part of the hits between the near threshold and the limit.
    pub(super) near_hits: u64,
    pub(super) within_hits: u64,
}

/// The counter from which on a limit is near. The product has 32-bit precision, as in the Go service, so that both
/// services count the same during a migration. Limits that the Go service cannot load have 64 bits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the loss is the required behaviour, and limits are below 2⁵³; a cast saturates"
)]
fn near_threshold(limit: u64, near_ratio: f32) -> u64 {
    match u32::try_from(limit) {
        Ok(limit) => (limit as f32 * near_ratio).floor() as u64,
        // A 32-bit float has seven decimals of what was set.
        Err(_) => (limit as f64 * ((f64::from(near_ratio) * 1e7).round() / 1e7)).floor() as u64,
    }
}

/// What a counter's verdict means for the statistics.
fn decide(capacity: u64, near_ratio: f32, hits: Hits, verdict: Verdict) -> LimitDecision {
    match hits {
        // A refund is never over, even if the counter still is.
        Hits::Refund(_) => LimitDecision::default(),
        Hits::Take(hits) if verdict.admitted || verdict.consumed => {
            by_count(capacity, near_threshold(capacity, near_ratio), hits, verdict.count)
        }
        Hits::Take(hits) => LimitDecision { over: true, over_hits: hits, ..LimitDecision::default() },
    }
}

/// Compares a counter with its limit. `after` is its value once these hits are counted.
// A difference follows its comparison; `before` is below `limit`, so the sum is below `hits`.
fn by_count(limit: u64, near: u64, hits: u64, after: u64) -> LimitDecision {
    let over = after > limit;
    // If STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT did not count the hits this wraps around, as in the Go service: then
    // all of them are above every threshold that is passed.
    let counted = hits.min(MAX_HITS);
    let before = after.wrapping_sub(counted);
    if over && before >= limit {
        LimitDecision { over, over_hits: hits, ..LimitDecision::default() }
    } else if over {
        // Rounding may take the threshold above the limit.
        let near_hits = limit.saturating_sub(near.max(before));
        let over_hits = (after - limit) + (hits - counted);
        LimitDecision { over, over_hits, near_hits, within_hits: 0 }
    } else {
        let near_hits = match after > near {
            true if before >= near => hits,
            true => after - near,
            false => 0,
        };
        LimitDecision { over, over_hits: 0, near_hits, within_hits: hits }
    }
}

#[derive(Clone, Copy)]
pub(super) struct LimitOutcome<'a> {
    pub(super) limit: &'a Limit,
    /// The same, as it is written.
    pub(super) written: &'a Limit,
    /// `None` if an override blocks the descriptor.
    pub(super) check: Option<&'a Check>,
    pub(super) verdict: Verdict,
    pub(super) decision: LimitDecision,
}

/// The outcome of the limit that governs a descriptor, and that its status shows; `None` only without limits.
///
/// Among limits that reject the request it is the one with the longest wait. Otherwise it is the one with the smallest
/// part remaining, because it will be the first to reject.
pub(super) fn governing<'a>(
    scope: Scope<'a>,
    limited: &'a Limited,
    batch: &'a Batch,
) -> Option<LimitOutcome<'a>> {
    let outcomes = limited.limits.iter().map(|check| outcome(scope, limited, check, batch));
    outcomes.reduce(|first, next| if next.governs(&first) { next } else { first })
}

pub(super) fn outcome<'a>(
    scope: Scope<'a>,
    limited: &'a Limited,
    check: &LimitCheck,
    batch: &'a Batch,
) -> LimitOutcome<'a> {
    let written = scope.limit(limited, check);
    let limit = written.at(scope.now);
    let Some(index) = check.check else {
        let decision =
            LimitDecision { over: true, over_hits: limited.hits.taken(), ..LimitDecision::default() };
        return LimitOutcome { limit, written, check: None, verdict: limited.blocked(), decision };
    };
    let check = batch.check(index);
    // Without the store, it may be this replica's share.
    let capacity = check.limit.algorithm.capacity();
    // A report reads how many requests are under way.
    let is_read = !scope.ask.counts() || check.hold.as_ref().is_some_and(|hold| hold.estimate.is_none());
    let hits = match check.hits {
        Hits::Take(_) if is_read && check.verdict.admitted => Hits::Take(0),
        // An estimate is cut to the limit.
        Hits::Take(hits) if check.hold.is_some() && check.verdict.admitted => Hits::Take(hits.min(capacity)),
        hits => hits,
    };
    let decision = match check.decider() {
        // Which hits are near or beyond the limit is unknown, so the statistics count none.
        Some(Decider::Policy { over }) => LimitDecision { over, ..LimitDecision::default() },
        Some(Decider::Neighbor | Decider::Block) => LimitDecision::default(),
        _ => decide(capacity, scope.policy.near_limit_ratio, hits, check.verdict),
    };
    LimitOutcome { limit, written, check: Some(check), verdict: check.verdict, decision }
}

impl LimitOutcome<'_> {
    /// What decided it; `None` if an override blocks the descriptor.
    pub(super) fn decider(&self) -> Option<Decider> {
        self.check?.decider()
    }

    /// The check, if its counter was read.
    fn counted(&self) -> Option<&Check> {
        self.check.filter(|_| {
            matches!(self.decider(), Some(Decider::Store | Decider::Transient | Decider::Fallback))
        })
    }

    /// True when it takes precedence over another limit of the same descriptor, or of the same name.
    pub(super) fn governs(&self, other: &Self) -> bool {
        match (self.decision.over, other.decision.over) {
            (true, true) => self.wait() > other.wait(),
            (false, false) => {
                // Both factors are below 2⁶⁴.
                let part = |one: &Self, two: &Self| {
                    u128::from(one.verdict.remaining) * u128::from(two.limit.algorithm.capacity())
                };
                part(self, other) < part(other, self)
            }
            (over, _) => over,
        }
    }

    /// Microseconds until the hits would be admitted; the maximum if they never fit.
    pub(super) fn wait(&self) -> u64 {
        self.verdict.retry_after.unwrap_or(u64::MAX)
    }

    /// Microseconds until as many hits would be admitted after these, which a rejected request may have counted; the maximum
    /// if they never fit.
    pub(super) fn wait_again(&self, hits: Hits) -> u64 {
        match self.counted() {
            _ if self.decision.over => self.wait(),
            // A rejected request holds nothing.
            Some(_) if self.limit.hold.is_none() => {
                self.limit.algorithm.wait_after(self.verdict, hits.taken()).unwrap_or(u64::MAX)
            }
            _ => 0,
        }
    }

    /// Hits that were counted and still matter; `None` if no counter was read. A fixed window counts those above its limit
    /// too.
    pub(super) fn used(&self) -> Option<u64> {
        let check = self.counted()?;
        Some(check.held().map_or(check.verdict.count, |held| held.spent))
    }

    /// What is spent and held, of a limit that holds.
    pub(super) fn held(&self) -> Option<Held> {
        self.counted()?.held()
    }

    /// Seconds until the full limit is available, rounded up.
    pub(super) fn seconds_until_reset(&self) -> u64 {
        self.verdict.reset.div_ceil(1_000_000)
    }

    /// Seconds until more is available than now: for rejected hits until they would be admitted. `None` if that is never, or
    /// not known.
    pub(super) fn seconds_until_more(&self) -> Option<u64> {
        let retry_after = self.retry_after().filter(|_| self.decision.over);
        // When a concurrent request ends is not known: such a limit has no reset.
        let has_reset = self.limit.algorithm.capacity() > 0 && self.verdict.reset > 0;
        retry_after.or_else(|| has_reset.then(|| self.seconds_until_reset()))
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
    use clock::Time;
    use limit::{FixedWindow, Unit, Window, fixed_window};

    fn counted(limit: u64, ratio: f32, hits: Hits, after: u64) -> LimitDecision {
        let window = FixedWindow { limit, period: Window::from(Unit::Minute).into() };
        decide(limit, ratio, hits, window.verdict(after, hits, Time::from_seconds(0)))
    }

    /// The reference: classifies every hit on its own.
    fn count_hit_by_hit(limit: u64, ratio: f32, hits: u64, after: u64) -> LimitDecision {
        let over = after > limit;
        let mut model = LimitDecision { over, ..LimitDecision::default() };
        for hit in after - hits..after {
            if hit >= limit {
                model.over_hits += 1;
            } else if hit >= near_threshold(limit, ratio) {
                model.near_hits += 1;
            }
        }
        model.within_hits = if over { 0 } else { hits };
        model
    }

    proptest! {
        #[test]
        fn classifies_each_hit_as_if_it_came_alone(
            limit in 0..60_u64, ratio in 0.0..=1.0_f32, before in 0..100_u64, hits in 0..50_u64,
        ) {
            let after = before + hits;
            let model = count_hit_by_hit(limit, ratio, hits, after);
            prop_assert_eq!(counted(limit, ratio, Hits::Take(hits), after), model);
        }

        #[test]
        fn accepts_any_numbers(limit: u64, ratio in 0.0..=1.0_f32, hits: u64, after: u64, back: bool) {
            let hits = if back { Hits::Refund(hits) } else { Hits::Take(hits) };
            let decision = counted(limit, ratio, hits, after);
            prop_assert_eq!(decision.over, !back && after > limit);
        }
    }

    #[test]
    fn hits_near_the_integer_maximum_count_once() {
        for hits in [1 << 32, 1 << 63, u64::MAX] {
            let (mut counter, mut near) = (3, 0);
            for n in 0..4 {
                counter = fixed_window::count(counter, Hits::Take(hits));
                let decision = counted(10, 0.8, Hits::Take(hits), counter);
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
        assert_eq!(near_threshold(10, 0.8), 8);
        assert_eq!(near_threshold(16_777_217, 1.0), 16_777_216);
    }

    #[test]
    fn refunds_count_nowhere() {
        for after in [2, 5, 6, u64::MAX] {
            assert_eq!(counted(5, 0.8, Hits::Refund(3), after), LimitDecision::default());
        }
    }
}
