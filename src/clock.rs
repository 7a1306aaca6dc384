//! Time as an argument: [`Time`] is a moment, [`Clock`] is where moments come from.
//!
//! The edges read the clock once a request and hand the moment on; nothing below them asks for the
//! time again, so that a test can say what time it is.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// A moment, in microseconds since the start of 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The moment this many microseconds after the start of 1970.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The moment this many seconds after the start of 1970.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Whole seconds since the start of 1970, which is what windows are cut by.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Microseconds since the start of 1970.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.seconds(), self.0 % 1_000_000)
    }
}

/// Where moments come from.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Time;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        // A clock set before 1970 reads as 1970: a wrong window is better than a dead service.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `time`.
    #[must_use]
    pub fn at(time: Time) -> Self {
        Self(AtomicU64::new(time.micros()))
    }

    /// Sets the clock, forwards or backwards.
    pub fn set(&self, time: Time) {
        self.0.store(time.micros(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.0.load(Ordering::Relaxed))
    }
}
