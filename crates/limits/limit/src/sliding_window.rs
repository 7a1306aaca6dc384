//! Sliding windows: the current window's count plus the previous window's, weighted by its overlap with a window
//! that ends now. Close to the exact log, at the cost of two counts.
//!
//! Rejected hits are not counted, so both counts are at most the largest limit that they had, below 2³², and share one
//! number, a [`State`]. The overlap is an integral number of millionths of the window, so that all products stay below 2⁵³
//! and the Lua scripts in Redis, which compute with doubles, get the same results. A partly overlapping hit does not count:
//! otherwise a client that sends exactly its limit, evenly spaced, would be rejected now and then.

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

/// The hits of the current window and of the previous one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowCounts {
    pub start: Time,
    pub this: u32,
    pub last: u32,
}

impl SlidingWindow {
    /// The largest limit, which a count holds.
    pub const MOST: u64 = u32::MAX as u64;

    pub fn apply(self, mut state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let mut counts = self.counts(state);
        if counts.start.micros() > now.micros().saturating_add(LEEWAY) {
            counts.start = self.window.start(now);
            state = self.state(counts);
        }
        let before = self.at(counts, now);
        let (after, admitted) = self.take(before, hits, now);
        let state = if after == before { state } else { self.state(after) };
        (state, self.verdict(after, admitted, hits, now))
    }

    /// The verdict of these counts after the hits were admitted or not.
    pub fn verdict(self, counts: WindowCounts, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let counted = u64::from(counts.this) + self.overlapping(counts, now);
        let admitted_after = |hits| self.admits_at(counts, hits).map(|then| micros_until(now, then));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            count: counted.min(self.limit),
            remaining: self.limit.saturating_sub(counted),
            reset: admitted_after(self.limit).filter(|_| counted > 0).unwrap_or_default(),
            retry_after: if admitted { Some(0) } else { admitted_after(hits.taken()) },
        }
    }

    /// The stored counts, moved on to the window of `now`.
    fn at(self, counts: WindowCounts, now: Time) -> WindowCounts {
        let start = self.window.start(now);
        if counts.start >= start {
            // A window that begins slightly later: time stops at its start.
            counts
        } else if counts.start.seconds().saturating_add(self.window.seconds()) >= start.seconds() {
            WindowCounts { start, this: 0, last: counts.this }
        } else {
            WindowCounts { start, this: 0, last: 0 }
        }
    }

    /// The hits of the previous window that still count.
    // A window has at least a second, and a count is below 2³².
    fn overlapping(self, counts: WindowCounts, now: Time) -> u64 {
        let elapsed = micros_until(counts.start, now.micros()) / self.window.seconds();
        u64::from(counts.last) * OVERLAP_SCALE.saturating_sub(elapsed) / OVERLAP_SCALE
    }

    fn take(self, before: WindowCounts, hits: Hits, now: Time) -> (WindowCounts, bool) {
        match hits {
            Hits::Take(0) => (before, true),
            Hits::Take(hits) => {
                let room = self.limit.saturating_sub(self.overlapping(before, now));
                match u32::try_from(u64::from(before.this).saturating_add(hits)) {
                    Ok(this) if u64::from(this) <= room => (WindowCounts { this, ..before }, true),
                    _ => (before, false),
                }
            }
            Hits::Refund(hits) => {
                let hits = u32::try_from(hits).unwrap_or(u32::MAX);
                let older = hits.saturating_sub(before.this);
                let this = before.this.saturating_sub(hits);
                (WindowCounts { this, last: before.last.saturating_sub(older), ..before }, true)
            }
        }
    }

    /// The first microsecond at which the hits would be admitted; `None` if they never fit.
    fn admits_at(self, counts: WindowCounts, hits: u64) -> Option<u64> {
        let room = self.limit.checked_sub(hits)?;
        let start = counts.start.micros();
        let (begun, count, room) = match room.checked_sub(counts.this.into()) {
            Some(room) => (start, counts.last, room),
            None => (start.saturating_add(self.window.micros()), counts.this, room),
        };
        Some(begun.saturating_add(self.faded_after(count, room)))
    }

    /// Microseconds after a window's start until at most `room` hits of the previous window count.
    // `room` is below 2³², and a window has fewer than 2²⁹ seconds.
    fn faded_after(self, count: u32, room: u64) -> u64 {
        // The next hit counts once its millionths do.
        let overlap =
            (room * OVERLAP_SCALE + OVERLAP_SCALE - 1).checked_div(count.into()).unwrap_or(OVERLAP_SCALE);
        OVERLAP_SCALE.saturating_sub(overlap) * self.window.seconds()
    }

    fn state(self, counts: WindowCounts) -> State {
        self.beginning(counts.start, u64::from(counts.last) << 32 | u64::from(counts.this))
    }

    /// The state of a window that begins at `start`: the number has the count of the previous window above its own, and the
    /// end is two windows later.
    pub fn beginning(self, start: Time, number: u64) -> State {
        let end = start.seconds().saturating_add(self.window.seconds() * 2);
        State { number, end: Time::from_seconds(end) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half of the number is a count")]
    fn counts(self, state: State) -> WindowCounts {
        let start = Time::from_seconds(state.end.seconds().saturating_sub(self.window.seconds() * 2));
        WindowCounts { start, this: state.number as u32, last: (state.number >> 32) as u32 }
    }
}
