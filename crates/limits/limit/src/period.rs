//! How a fixed window divides time: into windows of one length, or by a calendar.

use crate::calendar::Calendar;
use clock::Time;

use super::Window;

/// The seconds by which clocks of processes that share counters may differ.
const MAX_CLOCK_LEAD: u64 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Period {
    /// Windows of this length, aligned to the Unix epoch.
    Length(Window),
    /// The days, weeks, months or years of a time zone.
    Calendar(Calendar),
}

// A window contains `now`, and ends after it starts.
impl Period {
    /// Start and end of the window that contains `now`.
    #[inline]
    pub fn window(self, now: Time) -> (Time, Time) {
        match self {
            Self::Length(window) => (window.start(now), window.end(now)),
            Self::Calendar(calendar) => calendar.window(now),
        }
    }

    #[inline]
    pub fn start(self, now: Time) -> Time {
        self.window(now).0
    }

    #[inline]
    pub fn end(self, now: Time) -> Time {
        self.window(now).1
    }

    /// The length in seconds of the window that contains `now`.
    #[inline]
    pub fn seconds(self, now: Time) -> u64 {
        match self {
            Self::Length(window) => window.seconds(),
            Self::Calendar(calendar) => {
                let (start, end) = calendar.window(now);
                end.seconds() - start.seconds()
            }
        }
    }

    /// Seconds until the window that contains `now` ends; at least 1.
    #[inline]
    pub fn seconds_left(self, now: Time) -> u64 {
        self.end(now).seconds() - now.seconds()
    }

    /// Seconds for which a shared store keeps a counter that is created now: the length of the window, as in the Go service,
    /// or for a calendar the rest of it, and longer: the clock of this process may be ahead of those that still count in it.
    pub fn seconds_kept(self, now: Time) -> u64 {
        match self {
            Self::Length(window) => window.seconds(),
            Self::Calendar(_) => self.seconds_left(now) + MAX_CLOCK_LEAD,
        }
    }

    #[inline]
    pub const fn calendar(self) -> Option<Calendar> {
        match self {
            Self::Length(_) => None,
            Self::Calendar(calendar) => Some(calendar),
        }
    }
}

impl From<Window> for Period {
    fn from(window: Window) -> Self {
        Self::Length(window)
    }
}
