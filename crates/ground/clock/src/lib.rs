//! Time as an argument: [`Time`] is a point in time, [`Clock`] is its source. The edges read the clock once per request
//! and pass the time as an argument; nothing below them reads it, so tests can set it.

pub mod timer;

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// A point in time, in microseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The time this many microseconds after the start of 1970.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The time this many seconds after the start of 1970.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Whole seconds since the start of 1970.
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Microseconds since the start of 1970.
    pub const fn micros(self) -> u64 {
        self.0
    }
}

/// A time in RFC 3339: UTC, to the millisecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc3339(pub Time);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_utc(f, self.0.seconds(), format_args!("{:03}", self.0.micros() / 1000 % 1000))
    }
}

impl FromStr for Rfc3339 {
    type Err = prost_types::TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at: prost_types::Timestamp = text.parse()?;
        let seconds = u64::try_from(at.seconds).unwrap_or_default();
        let micros = u64::try_from(at.nanos / 1_000).unwrap_or_default();
        Ok(Self(Time(Time::from_seconds(seconds).0.saturating_add(micros))))
    }
}

/// Writes a time in RFC 3339: seconds since 1970, and the digits of their fraction.
pub fn write_utc(f: &mut fmt::Formatter<'_>, seconds: u64, fraction: fmt::Arguments<'_>) -> fmt::Result {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    // Without a fraction, which it would write with 0, 3, 6 or 9 digits.
    let second = prost_types::Timestamp { seconds, nanos: 0 }.to_string();
    write!(f, "{}.{fraction}Z", second.trim_end_matches('Z'))
}

pub trait Clock: Send + Sync {
    fn now(&self) -> Time;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        // A clock set before 1970 reads as 1970: a wrong window is better than a panic.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

/// A clock that changes only when it is set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn at(time: Time) -> Self {
        Self(AtomicU64::new(time.micros()))
    }

    pub fn set(&self, time: Time) {
        self.0.store(time.micros(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_rfc_3339_to_the_millisecond() {
        let written = |micros| Rfc3339(Time::from_micros(micros)).to_string();
        assert_eq!(written(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(written(951_782_399_999_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(written(951_782_400_000_000), "2000-02-29T00:00:00.000Z");
        let read = "2000-02-28T23:59:59.999Z".parse().map(|Rfc3339(time)| time.micros());
        assert_eq!(read, Ok(951_782_399_999_000));
        let is_refused = |text: &str| text.parse::<Rfc3339>().is_err();
        assert!(["x", "", "2000-02-30T00:00:00Z", "2000-02-28T25:00:00Z"].into_iter().all(is_refused));
    }
}
