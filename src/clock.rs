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

/// A moment as RFC 3339 writes it: UTC, to the millisecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc3339(pub Time);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_utc(f, self.0.seconds(), format_args!("{:03}", self.0.micros() / 1000 % 1000))
    }
}

/// Writes a moment as RFC 3339 does: seconds since 1970, and the digits of their fraction.
///
/// # Errors
/// When it cannot be written.
pub fn write_utc(f: &mut fmt::Formatter<'_>, seconds: u64, fraction: fmt::Arguments<'_>) -> fmt::Result {
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction}Z")
}

/// Year, month and day of the month, so many days after the first of January 1970.
#[must_use]
pub fn date(days: u64) -> (u64, u64, u64) {
    // Years are counted from a first of March, so that the day a leap year adds is the last of its year,
    // and in eras of 400 years, after which the calendar repeats. 719,468 days lie between the first of
    // March of the year 0 and the start of 1970.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    // Takes from the days those that leap years added before them: one in 4 years, but not in 100.
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on the months' lengths repeat every five months, which have 153 days.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_rfc_3339_does() {
        let written = |micros| Rfc3339(Time::from_micros(micros)).to_string();
        assert_eq!(written(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(written(951_782_399_999_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(written(951_782_400_000_000), "2000-02-29T00:00:00.000Z");
    }

    #[test]
    fn days_follow_each_other_as_in_the_calendar() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..366 * 500 {
            assert_eq!(date(days), (year, month, day), "day {days}");
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (month, day) = if day < length { (month, day + 1) } else { (month + 1, 1) };
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }
}
