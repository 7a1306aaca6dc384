//! What a limit is and how it counts: its rate, unit, calendar, schedule and hold rule, and the algorithms as plain
//! functions: a state, a time and hits in; a verdict and a state out.
//!
//! There is no I/O and no clock here, and only integer arithmetic, so every store that implements an
//! algorithm gets the same results. A store keeps the state and makes updates atomic; the caller reads the verdict.
//!
//! ```
//! use limit::{Bucket, Hits, State, Window};
//! use clock::Time;
//!
//! // Two requests a minute, as a token bucket.
//! let minute = Window::of_seconds(60).unwrap();
//! let bucket = Bucket::token(2, minute, None);
//! let now = Time::from_seconds(1_800_000_000);
//!
//! let (state, first) = bucket.apply(State::default(), Hits::Take(2), now);
//! assert!(first.admitted && first.remaining == 0);
//! let (state, second) = bucket.apply(state, Hits::Take(1), now);
//! assert!(!second.admitted);
//! assert_eq!(second.retry_after, Some(30_000_000)); // microseconds
//!
//! // A refund restores the state.
//! let (_, third) = bucket.apply(state, Hits::Refund(1), now);
//! assert_eq!(third.remaining, 1);
//! ```
//!
//! | algorithm | state | admits |
//! |---|---|---|
//! | [`FixedWindow`] | [`State`] | the limit in each window of a [`Period`] |
//! | [`SlidingWindow`] | [`State`] | the limit in any window, estimated from two counts |
//! | [`SlidingLog`] | [`Log`](sliding_log::Log) | the limit in any window, exactly |
//! | [`Bucket`] | [`State`] | a burst, then the rate (GCRA) |
//!
//! A [`State`] fits a slot of a hash table. A store may drop a state at its end, and need not write an unchanged one.
//! Except in fixed windows, rejected hits are not counted and 0 hits are never rejected. A refund right after the hits
//! restores the state, so the limits of one rule can be checked as one.
//!
//! A [`Limit`] names one of them with its number of requests and its window, which [`calendar`] may give; the compiler of
//! rules creates those of rules, the limiter those of overrides. Rules, stores and callers are unknown here.
//!
//! [`lease`] decides how many hits a replica takes from a shared counter ahead of time. [`kind`] has the names of the
//! algorithms in rules. The feature `testing` adds random histories for the property tests of stores.

pub mod calendar;
pub mod fixed_window;
mod gcra;
pub mod holds;
mod kind;
pub mod lease;
mod limit;
mod period;
mod refusal;
mod share;
pub mod sliding_log;
pub mod sliding_window;
mod unit;

#[cfg(any(test, feature = "testing"))]
#[path = "tests/steps.rs"]
pub mod steps;
#[cfg(test)]
mod tests;

pub use fixed_window::FixedWindow;
pub use gcra::Bucket;
pub use holds::{HoldRule, MostHeld};
pub use kind::{Algorithm, Kind};
pub use limit::{
    Countable, CountingMode, InForce, Limit, Limits, MAX_ENTRIES, Rate, Schedule, in_words, too_large,
};
pub use period::Period;
pub use refusal::{Fit, Over, Refusal};
pub use share::Share;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use unit::Unit;

use clock::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hits {
    /// Adds hits; 0 reads the counter without changing it.
    Take(u64),
    /// Gives hits back; a counter never falls below 0.
    Refund(u64),
}

impl Hits {
    /// The hits added; 0 for a refund.
    pub const fn taken(self) -> u64 {
        match self {
            Self::Take(hits) => hits,
            Self::Refund(_) => 0,
        }
    }
}

/// The result of applying hits to a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub admitted: bool,
    pub consumed: bool,
    /// Hits that were counted and still matter; a fixed window counts those above its limit too.
    pub count: u64,
    pub remaining: u64,
    /// Microseconds until the full limit is available, if nothing more is taken.
    pub reset: u64,
    /// Microseconds until these hits would be admitted; 0 if they are, `None` if they never fit.
    pub retry_after: Option<u64>,
}

/// As long as nothing was asked: the limit rejects nothing.
impl Default for Verdict {
    fn default() -> Self {
        Self { admitted: true, consumed: false, count: 0, remaining: 0, reset: 0, retry_after: Some(0) }
    }
}

/// The state of a counter; the default is that of an unused one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// A count, two counts or a tick, depending on the algorithm.
    pub number: u64,
    /// The second from which the state equals that of an unused counter.
    pub end: Time,
}

/// The largest limit of any [`Kind`]: 2⁵³−1, up to which doubles have every integer. The Lua scripts in Redis, JSON and
/// protobuf's `Struct` know no other numbers.
pub const MAX_LIMIT: u64 = (1 << 53) - 1;

/// How far a state may be in the future, in microseconds.
///
/// Threads may reach a state in another order than they read the clock, and clocks are adjusted in small steps: then
/// time stops until the clock has caught up. A state further ahead was written before the clock was set back. It is
/// treated as written now, so that no caller waits for as long as the clock was wrong.
const LEEWAY: u64 = 1_000_000;

/// Microseconds from `now` until `then`; 0 if it is past.
const fn micros_until(now: Time, then: u64) -> u64 {
    then.saturating_sub(now.micros())
}

/// The length of a limit's window: one second to ten years.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window(u32);

// A window has 1 to 315,360,000 seconds, and a time is less than 2⁴⁵ seconds after 1970.
impl Window {
    /// Ten years of 365 days.
    pub const MAX: Self = Self(315_360_000);

    /// A window of 1 to [`MAX`](Self::MAX) seconds.
    #[expect(clippy::cast_possible_truncation, reason = "the match arm bounds the value")]
    pub const fn of_seconds(seconds: u64) -> Option<Self> {
        match seconds {
            1..=315_360_000 => Some(Self(seconds as u32)),
            _ => None,
        }
    }

    pub const fn seconds(self) -> u64 {
        self.0 as u64
    }

    pub const fn micros(self) -> u64 {
        self.seconds() * 1_000_000
    }

    /// The start of the window that contains `now`. Windows are aligned to the Unix epoch.
    pub const fn start(self, now: Time) -> Time {
        Time::from_seconds(now.seconds() - now.seconds() % self.seconds())
    }

    /// The end of the window that contains `now`.
    #[inline]
    pub const fn end(self, now: Time) -> Time {
        Time::from_seconds(self.start(now).seconds() + self.seconds())
    }
}
