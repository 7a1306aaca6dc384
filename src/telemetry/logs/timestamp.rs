//! The time of a log line, as RFC 3339 writes it: UTC, to the nanosecond.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::clock::date;

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
}
