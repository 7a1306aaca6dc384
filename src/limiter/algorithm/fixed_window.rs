//! Fixed windows: a counter for each whole window of time since 1970, begun at 0 and never refused a hit.
//!
//! The state is the count. The window's start is part of the counter's key, as in the Go service, so
//! that a new window is a new counter, and both services count in the same one.

use super::{Hits, State, Verdict, Window, micros_until};
use crate::clock::Time;

/// So many requests in each window. What is refused counts all the same, unless several limits stand on one rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedWindow {
    /// How many are admitted.
    pub limit: u32,
    /// In what time.
    pub window: Window,
}

impl FixedWindow {
    /// Counts these hits.
    #[must_use]
    pub fn ask(self, state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let after = count(state.number, hits);
        let end = self.window.end(now);
        let state = if after == state.number { state } else { State { number: after, end } };
        (state, self.verdict(after, hits, now))
    }

    /// What a counter says that stands at `after` with these hits.
    #[must_use]
    pub fn verdict(self, after: u64, hits: Hits, now: Time) -> Verdict {
        let limit = u64::from(self.limit);
        let admitted = after <= limit;
        let reset = micros_until(now, self.window.end(now).micros());
        Verdict {
            admitted,
            consumed: hits.taken() > 0,
            remaining: u32::try_from(limit.saturating_sub(after)).unwrap_or(self.limit),
            reset,
            retry_after: if admitted { Some(0) } else { (hits.taken() <= limit).then_some(reset) },
        }
    }
}

impl FixedWindow {
    /// What a counter says of hits that do not fit and were not added to it.
    #[must_use]
    pub fn refusal(self, count: u64, hits: Hits, now: Time) -> Verdict {
        let (limit, reset) = (u64::from(self.limit), micros_until(now, self.window.end(now).micros()));
        Verdict {
            admitted: false,
            consumed: false,
            remaining: u32::try_from(limit.saturating_sub(count)).unwrap_or(self.limit),
            reset,
            retry_after: (hits.taken() <= limit).then_some(reset),
        }
    }
}

/// Hits of one request beyond this add no more to a counter. So a counter that cannot grow any more still tells
/// whether it was over its limit before the last hits: it was, by all that the counter has beyond them.
pub const MOST_HITS: u64 = 1 << 63;

/// The count after these hits.
#[must_use]
pub const fn count(before: u64, hits: Hits) -> u64 {
    match hits {
        Hits::Take(hits) => before.saturating_add(if hits < MOST_HITS { hits } else { MOST_HITS }),
        Hits::Refund(hits) => before.saturating_sub(hits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_neither_overflows_nor_falls_below_nothing() {
        assert_eq!(count(u64::MAX, Hits::Take(1)), u64::MAX);
        assert_eq!(count(3, Hits::Refund(5)), 0);
    }

    #[test]
    fn what_is_refused_counts_and_may_come_back_in_the_next_window() {
        let limit = FixedWindow { limit: 10, window: Window::of_seconds(60).unwrap() };
        let now = Time::from_micros(125_900_000);
        let (state, within) = limit.ask(State::default(), Hits::Take(8), now);
        assert_eq!((within.admitted, within.remaining, within.retry_after), (true, 2, Some(0)));
        let (state, over) = limit.ask(state, Hits::Take(3), now);
        assert_eq!(state, State { number: 11, end: Time::from_seconds(180) });
        let refused = Verdict {
            admitted: false,
            consumed: true,
            remaining: 0,
            reset: 54_100_000,
            retry_after: Some(54_100_000),
        };
        assert_eq!(over, refused);
        assert_eq!(limit.ask(state, Hits::Take(11), now).1.retry_after, None);
    }
}
