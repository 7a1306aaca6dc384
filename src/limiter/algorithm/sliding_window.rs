//! Sliding windows: the present window's count, and the last one's for as much of it as a window that ends
//! now still overlaps. Close to the exact log, at the price of two counts.
//!
//! Both counts are below 2³² because what is refused is not counted, so they share one number; when the
//! present window began follows from the state's end, two windows later. The overlap is told in whole
//! millionths of the window, so that all products stay below 2⁵³: a script that has only doubles comes to
//! the same answers. A hit that overlaps in part does not count: else a client that sends exactly what it
//! may, evenly, would be refused now and then.

use super::{Hits, LEEWAY, State, Verdict, Window, micros_until};
use crate::clock::Time;

/// The parts of a window that the overlap is told in. One is as many microseconds as the window
/// has seconds.
const WHOLE: u64 = 1_000_000;

/// So many requests in a window that ends now, as far as two counts can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingWindow {
    /// How many are admitted.
    pub limit: u32,
    /// In what time.
    pub window: Window,
}

/// What is counted: hits of the present window, and of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// The moment at which the present window began.
    pub start: Time,
    /// Hits since then.
    pub this: u32,
    /// Hits of the window before.
    pub last: u32,
}

impl SlidingWindow {
    /// Counts these hits if they are admitted.
    #[must_use]
    pub fn ask(self, state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let told = self.counts(state);
        let state = if told.start.micros() > now.micros().saturating_add(LEEWAY) {
            self.state(Counts { start: self.window.start(now), ..told })
        } else {
            state
        };
        let before = self.at(self.counts(state), now);
        let (after, admitted) = self.take(before, hits, now);
        let state = if after == before { state } else { self.state(after) };
        (state, self.verdict(after, admitted, hits, now))
    }

    /// What counts say after these hits were admitted or not.
    #[must_use]
    pub fn verdict(self, counts: Counts, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let counted = u64::from(counts.this).saturating_add(self.overlapping(counts, now));
        let admitted_after = |hits| self.admits_at(counts, hits).map(|then| micros_until(now, then));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            remaining: u32::try_from(u64::from(self.limit).saturating_sub(counted)).unwrap_or(self.limit),
            reset: admitted_after(u64::from(self.limit)).filter(|_| counted > 0).unwrap_or_default(),
            retry_after: if admitted { Some(0) } else { admitted_after(hits.taken()) },
        }
    }

    /// The counts as they are now, told by what was kept.
    fn at(self, kept: Counts, now: Time) -> Counts {
        let start = self.window.start(now);
        if kept.start >= start {
            // It may also begin in a moment: then time stands still at its start.
            kept
        } else if kept.start.seconds().saturating_add(self.window.seconds()) >= start.seconds() {
            Counts { start, this: 0, last: kept.this }
        } else {
            Counts { start, this: 0, last: 0 }
        }
    }

    /// How many hits of the last window count.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a window has at least a second, and a count is below 2³²"
    )]
    fn overlapping(self, counts: Counts, now: Time) -> u64 {
        let elapsed = micros_until(counts.start, now.micros()) / self.window.seconds();
        u64::from(counts.last) * WHOLE.saturating_sub(elapsed) / WHOLE
    }

    fn take(self, before: Counts, hits: Hits, now: Time) -> (Counts, bool) {
        match hits {
            Hits::Take(0) => (before, true),
            Hits::Take(hits) => {
                let room = u64::from(self.limit).saturating_sub(self.overlapping(before, now));
                match u32::try_from(u64::from(before.this).saturating_add(hits)) {
                    Ok(this) if u64::from(this) <= room => (Counts { this, ..before }, true),
                    _ => (before, false),
                }
            }
            Hits::Refund(hits) => {
                let hits = u32::try_from(hits).unwrap_or(u32::MAX);
                let older = hits.saturating_sub(before.this);
                let this = before.this.saturating_sub(hits);
                (Counts { this, last: before.last.saturating_sub(older), ..before }, true)
            }
        }
    }

    /// The first microsecond at which so many hits would be admitted, if they ever fit.
    fn admits_at(self, counts: Counts, hits: u64) -> Option<u64> {
        let room = u64::from(self.limit).checked_sub(hits)?;
        let start = counts.start.micros();
        let (begun, count, room) = match room.checked_sub(u64::from(counts.this)) {
            Some(room) => (start, counts.last, room),
            None => (start.saturating_add(self.window.micros()), counts.this, room),
        };
        Some(begun.saturating_add(self.faded_after(count, room)))
    }

    /// How long after a window's start the count of the window before it counts for no more than `room`.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`room` is below 2³², and a window has fewer than 2²⁹ seconds"
    )]
    fn faded_after(self, count: u32, room: u64) -> u64 {
        let overlap = (room * WHOLE + WHOLE - 1).checked_div(u64::from(count)).unwrap_or(WHOLE);
        WHOLE.saturating_sub(overlap) * self.window.seconds()
    }

    /// What is kept of these counts.
    #[must_use]
    pub fn state(self, counts: Counts) -> State {
        State {
            number: u64::from(counts.last) << 32 | u64::from(counts.this),
            end: Time::from_seconds(counts.start.seconds().saturating_add(self.two_windows())),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half of the number is a count")]
    fn counts(self, state: State) -> Counts {
        Counts {
            start: Time::from_seconds(state.end.seconds().saturating_sub(self.two_windows())),
            this: state.number as u32,
            last: (state.number >> 32) as u32,
        }
    }

    /// The seconds of two windows.
    const fn two_windows(self) -> u64 {
        self.window.seconds().saturating_mul(2)
    }
}
