//! Fixed windows: one counter per window of a [`Period`], in which every hit is counted.
//!
//! The state is the count. The window's start is part of the counter's key, as in the Go service: a new window
//! is a new counter, and both services share it.

use super::{Hits, Period, State, Verdict, micros_until};
use clock::Time;

/// A number of requests per window. Rejected hits count too, unless the rule has several limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedWindow {
    pub limit: u64,
    pub period: Period,
}

impl FixedWindow {
    #[inline]
    pub fn apply(self, state: State, hits: Hits, now: Time) -> (State, u64) {
        let after = count(state.number, hits);
        let end = if after == state.number { state.end } else { self.period.end(now) };
        (State { number: after, end }, after)
    }

    /// The verdict of a counter whose value is `after` once these hits are counted.
    #[inline]
    pub fn verdict(self, after: u64, hits: Hits, now: Time) -> Verdict {
        let admitted = after <= self.limit;
        let reset = micros_until(now, self.period.end(now).micros());
        Verdict {
            admitted,
            consumed: hits.taken() > 0,
            count: after,
            remaining: self.limit.saturating_sub(after),
            reset,
            retry_after: if admitted { Some(0) } else { (hits.taken() <= self.limit).then_some(reset) },
        }
    }

    /// The verdict on hits that exceed the limit and were not added to the counter.
    #[inline]
    pub fn rejected(self, count: u64, hits: Hits, now: Time) -> Verdict {
        let over = self.verdict(u64::MAX, hits, now);
        Verdict { consumed: false, count, remaining: self.limit.saturating_sub(count), ..over }
    }
}

/// The maximum that one request adds to a counter. A saturated counter minus this is still above every limit, so its
/// value always shows whether it was over the limit before the last hits.
pub const MAX_HITS: u64 = 1 << 63;

/// The count after these hits; it saturates at both ends.
#[inline]
pub const fn count(before: u64, hits: Hits) -> u64 {
    match hits {
        Hits::Take(hits) => before.saturating_add(if hits < MAX_HITS { hits } else { MAX_HITS }),
        Hits::Refund(hits) => before.saturating_sub(hits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Window;

    #[test]
    fn a_counter_saturates_at_both_ends() {
        assert_eq!(count(u64::MAX, Hits::Take(1)), u64::MAX);
        assert_eq!(count(3, Hits::Refund(5)), 0);
    }

    #[test]
    fn rejected_hits_count_and_fit_again_in_the_next_window() {
        let limit = FixedWindow { limit: 10, period: Window::of_seconds(60).unwrap().into() };
        let now = Time::from_micros(125_900_000);
        let apply = |state, hits| {
            let (state, after) = limit.apply(state, hits, now);
            (state, limit.verdict(after, hits, now))
        };
        let (state, within) = apply(State::default(), Hits::Take(8));
        assert_eq!((within.admitted, within.remaining, within.retry_after), (true, 2, Some(0)));
        let (state, over) = apply(state, Hits::Take(3));
        assert_eq!(state, State { number: 11, end: Time::from_seconds(180) });
        let refused = Verdict {
            admitted: false,
            consumed: true,
            count: 11,
            remaining: 0,
            reset: 54_100_000,
            retry_after: Some(54_100_000),
        };
        assert_eq!(over, refused);
        assert_eq!(apply(state, Hits::Take(11)).1.retry_after, None);
    }
}
