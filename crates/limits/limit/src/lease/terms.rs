//! The terms of a lease, and how long they let it last.

use super::pace::{LONGEST, float, whole};
use crate::{FixedWindow, Period};

/// A lease lasts at most the window divided by this.
const PART_OF_WINDOW: f64 = 20.0;

const PART_OF_LONG_WINDOW: f64 = 720.0;

/// A day in seconds. Leases of longer windows last no longer.
const SHORTEST_OF_CALENDARS: f64 = 86_400.0;

/// A counter over its limit is read again after this many durations of a lease, and after this many seconds at the
/// latest: hits may have been returned to it.
const OVER_FOR: f64 = 10.0;
const OVER_FOR_SECONDS: f64 = 5.0;

/// The terms of a lease: a limit per window of a period, and the round trip to the counter in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    pub limit: u64,
    pub period: Period,
    pub round_trip: f64,
}

/// How long the counter of a leased limit counts as over the limit for those without a lease, in microseconds.
pub fn over_for(FixedWindow { limit, period }: FixedWindow) -> u64 {
    whole(Terms { limit, period, round_trip: 0.0 }.over_for() * 1e6)
}

impl Terms {
    /// The duration of a lease in seconds. It is also the time constant of the averages.
    pub fn duration(&self) -> f64 {
        let window = match self.period {
            Period::Length(window) => float(window.seconds()),
            Period::Calendar(_) => SHORTEST_OF_CALENDARS,
        };
        let longest = (window / PART_OF_LONG_WINDOW).clamp(LONGEST[0], LONGEST[1]);
        (window / PART_OF_WINDOW).max(2.0 * self.round_trip).min(longest)
    }

    /// How long a counter counts as over its limit before it is read again, in seconds.
    pub(super) fn over_for(&self) -> f64 {
        (OVER_FOR * self.duration()).min(OVER_FOR_SECONDS)
    }
}
