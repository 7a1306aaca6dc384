//! The time of a log line, as RFC 3339 writes it: UTC, to the nanosecond.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A moment, held as what passed since the start of 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamp(Duration);

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        // A clock set before 1970 reads as 1970: a wrong time in a log is better than no log.
        Self(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let nanos = self.0.subsec_nanos();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
    }
}

/// Year, month and day of the month, so many days after the first of January 1970.
fn date(days: u64) -> (u64, u64, u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64, nanos: u32) -> String {
        Timestamp(Duration::new(seconds, nanos)).to_string()
    }

    #[test]
    fn known_moments_are_written_as_rfc_3339_does() {
        assert_eq!(after(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(after(951_782_399, 999_999_999), "2000-02-28T23:59:59.999999999Z");
        assert_eq!(after(951_782_400, 1), "2000-02-29T00:00:00.000000001Z");
        assert_eq!(after(1_234_567_890, 0), "2009-02-13T23:31:30.000000000Z");
        assert_eq!(after(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
        assert_eq!(after(253_402_300_799, 0), "9999-12-31T23:59:59.000000000Z");
    }

    #[test]
    fn a_clock_before_1970_reads_as_1970() {
        let early = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(early).to_string(), after(0, 0));
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
