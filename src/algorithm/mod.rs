//! The algorithms: state, time and hits in, verdict and state out. No I/O, no locks, no clock.
//!
//! A store keeps the state and lends atomicity; the limiter reads the verdict.

pub mod fixed_window;

/// What a request asks of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hits {
    /// Adds so many; 0 looks without counting.
    Take(u64),
    /// Gives so many back; a counter never falls below 0.
    GiveBack(u64),
}

impl Hits {
    /// What is taken.
    #[must_use]
    pub const fn taken(self) -> u64 {
        match self {
            Self::Take(hits) => hits,
            Self::GiveBack(_) => 0,
        }
    }
}
