//! The algorithms: state, time and hits in, verdict and state out. No I/O, no locks, no clock, and whole
//! numbers only, so that every store that translates one comes to the same answers.
//!
//! A store keeps the state and lends atomicity; the limiter reads the verdict. [`FixedWindow`],
//! [`SlidingWindow`] and [`Bucket`] keep a [`State`], which fits a slot of the memory store's table;
//! [`SlidingLog`] keeps a [`Log`](sliding_log::Log) beside it. A store may forget a state at its end, and
//! need not write one that is as it was. Outside a fixed window, hits that are refused are not counted and 0
//! hits are never refused; what was taken can be given back at once as if it had not been, so that
//! several limits can be asked as one.

pub mod fixed_window;
pub mod gcra;
pub mod kind;
pub mod sliding_log;
pub mod sliding_window;
pub mod window;

#[cfg(test)]
pub(crate) mod tests;

pub use fixed_window::FixedWindow;
pub use gcra::Bucket;
pub use kind::{Algorithm, Kind};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use window::Window;

use crate::clock::Time;

/// What a request asks of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hits {
    /// Adds so many; 0 looks without counting.
    Take(u64),
    /// Gives so many back; a counter never falls below 0.
    Refund(u64),
}

impl Hits {
    /// What is taken.
    #[must_use]
    pub const fn taken(self) -> u64 {
        match self {
            Self::Take(hits) => hits,
            Self::Refund(_) => 0,
        }
    }
}

/// What a limit says of these hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// They are within the limit.
    pub admitted: bool,
    /// They were counted.
    pub consumed: bool,
    /// How many more would be admitted now.
    pub remaining: u32,
    /// Microseconds until `remaining` is all that the limit gives, if nothing more is taken.
    pub reset: u64,
    /// Microseconds until these hits would be admitted, 0 where they are; none where they are more than
    /// ever fit.
    pub retry_after: Option<u64>,
}

/// What is kept for a key; the default is that of a key that was never seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// What the algorithm makes of it.
    pub number: u64,
    /// The moment, a whole second, from which on the key is as one that was never seen.
    pub end: Time,
}

/// How far, in microseconds, a state may lie in the future and be taken as it is.
///
/// Threads read the clock and then come to a state in another order, and clocks are corrected by little:
/// then time stands still until it has caught up. What lies further ahead was written before the clock was
/// set back, and is taken as if it were of now, so that nobody waits for the hour that the clock was wrong.
const LEEWAY: u64 = 1_000_000;

/// Microseconds from `now` until `then`; 0 where it is past.
const fn micros_until(now: Time, then: u64) -> u64 {
    then.saturating_sub(now.micros())
}
