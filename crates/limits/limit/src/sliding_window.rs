//! Sliding windows: the current window's count plus the previous window's, weighted by its overlap with a window
//! that ends now. Close to the exact log, at the cost of two counts.
//!
//! Rejected hits are not counted, so both counts are at most the largest limit that they had. Below 2³² they share one
//! number, a [`State`]; stores keep larger [`Counts`] apart, and move them when a limit is raised or lowered. The overlap
//! is an integral number of millionths of the window, and counts are multiplied in two parts, so that all products stay
//! below 2⁵³ and the Lua scripts in Redis, which compute with doubles, get the same results. A partly overlapping hit
//! does not count: otherwise a client that sends exactly its limit, evenly spaced, would be rejected now and then.

use super::{Hits, LEEWAY, State, Verdict, Window, micros_until};
use clock::Time;

/// The overlap is measured in millionths of a window. One is as many microseconds as the window has seconds.
const OVERLAP_SCALE: u64 = 1_000_000;

/// A number of requests in a window that ends now, estimated from two counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingWindow {
    pub limit: u64,
    pub window: Window,
}

/// The hits of the current window and of the previous one. The default is that of an unused counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub start: Time,
    pub this: u64,
    pub last: u64,
}

impl SlidingWindow {
    /// True if its hits may need counts of more than 32 bits.
    pub const fn is_wide(self) -> bool {
        self.limit > u32::MAX as u64
    }

    /// Takes hits, or refunds them, by a state of a limit that is not wide.
    #[expect(clippy::expect_used, reason = "hits are taken up to a limit below 2³²")]
    pub fn apply(self, state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let before = self.counts(state);
        let (after, verdict) = self.count(before, hits, now);
        let packed = || self.state(after).expect("the counts of a narrow limit have 32 bits");
        (if after == before { state } else { packed() }, verdict)
    }

    pub fn count(self, counts: Counts, hits: Hits, now: Time) -> (Counts, Verdict) {
        let mut counts = counts;
        if counts.start.micros() > now.micros().saturating_add(LEEWAY) {
            counts.start = self.window.start(now);
        }
        let before = self.at(counts, now);
        let (after, admitted) = self.take(before, hits, now);
        (if after == before { counts } else { after }, self.verdict(after, admitted, hits, now))
    }

    /// The verdict of these counts after the hits were admitted or not.
    pub fn verdict(self, counts: Counts, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let counted = counts.this.saturating_add(self.overlapping(counts, now));
        let admitted_after = |hits| self.admits_at(counts, hits).map(|then| micros_until(now, then));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            remaining: self.limit.saturating_sub(counted),
            reset: admitted_after(self.limit).filter(|_| counted > 0).unwrap_or_default(),
            retry_after: if admitted { Some(0) } else { admitted_after(hits.taken()) },
        }
    }

    /// The stored counts, moved on to the window of `now`.
    fn at(self, counts: Counts, now: Time) -> Counts {
        let start = self.window.start(now);
        if counts.start >= start {
            // A window that begins slightly later: time stops at its start.
            counts
        } else if counts.start.seconds().saturating_add(self.window.seconds()) >= start.seconds() {
            Counts { start, this: 0, last: counts.this }
        } else {
            Counts { start, this: 0, last: 0 }
        }
    }

    /// The hits of the previous window that still count.
    // A window has at least a second, and no product exceeds the count or 2⁴⁰.
    fn overlapping(self, counts: Counts, now: Time) -> u64 {
        let elapsed = micros_until(counts.start, now.micros()) / self.window.seconds();
        let overlap = OVERLAP_SCALE.saturating_sub(elapsed);
        // The quotient is exact, so only the rest is rounded.
        counts.last / OVERLAP_SCALE * overlap + counts.last % OVERLAP_SCALE * overlap / OVERLAP_SCALE
    }

    fn take(self, before: Counts, hits: Hits, now: Time) -> (Counts, bool) {
        match hits {
            Hits::Take(0) => (before, true),
            Hits::Take(hits) => {
                let room = self.limit.saturating_sub(self.overlapping(before, now));
                match before.this.checked_add(hits) {
                    Some(this) if this <= room => (Counts { this, ..before }, true),
                    _ => (before, false),
                }
            }
            Hits::Refund(hits) => {
                let older = hits.saturating_sub(before.this);
                let this = before.this.saturating_sub(hits);
                (Counts { this, last: before.last.saturating_sub(older), ..before }, true)
            }
        }
    }

    /// The first microsecond at which the hits would be admitted; `None` if they never fit.
    fn admits_at(self, counts: Counts, hits: u64) -> Option<u64> {
        let room = self.limit.checked_sub(hits)?;
        let start = counts.start.micros();
        let (begun, count, room) = match room.checked_sub(counts.this) {
            Some(room) => (start, counts.last, room),
            None => (start.saturating_add(self.window.micros()), counts.this, room),
        };
        Some(begun.saturating_add(self.faded_after(count, room)))
    }

    /// Microseconds after a window's start until at most `room` hits of the previous window count.
    fn faded_after(self, count: u64, room: u64) -> u64 {
        // The next hit counts once its millionths do.
        let next = u128::from(room).saturating_add(1).saturating_mul(OVERLAP_SCALE.into()).saturating_sub(1);
        let overlap = match u64::try_from(next) {
            Ok(next) => next.checked_div(count),
            Err(_) => next.checked_div(count.into()).and_then(|overlap| u64::try_from(overlap).ok()),
        };
        OVERLAP_SCALE.saturating_sub(overlap.unwrap_or(OVERLAP_SCALE)).saturating_mul(self.window.seconds())
    }

    /// The second from which these counts equal unused ones: two windows after the start.
    pub fn end(self, counts: Counts) -> Time {
        Time::from_seconds(counts.start.seconds().saturating_add(self.window.seconds().saturating_mul(2)))
    }

    /// The counts that start two windows before this end.
    pub fn ending(self, end: Time, this: u64, last: u64) -> Counts {
        let start = end.seconds().saturating_sub(self.window.seconds().saturating_mul(2));
        Counts { start: Time::from_seconds(start), this, last }
    }

    /// The state that stores these counts, if they have 32 bits.
    pub fn state(self, counts: Counts) -> Option<State> {
        let is_narrow = counts.this >> 32 == 0 && counts.last >> 32 == 0;
        is_narrow.then(|| State { number: counts.last << 32 | counts.this, end: self.end(counts) })
    }

    pub fn counts(self, state: State) -> Counts {
        self.ending(state.end, state.number & u64::from(u32::MAX), state.number >> 32)
    }
}
