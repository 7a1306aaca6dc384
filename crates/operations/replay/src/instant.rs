//! Times of log lines: RFC 3339, or seconds.

use clock::{Rfc3339, Time};

/// A time in RFC 3339, from 1970 on, to the microsecond.
pub(crate) fn parse(text: &str) -> Option<Time> {
    let Rfc3339(time) = text.parse().ok()?;
    // The reader takes a time before 1970 for 1970.
    (time > Time::default()).then_some(time)
}

/// Seconds since 1970, as `%START_TIME(%s.%3f)%` writes them.
pub(crate) fn seconds(text: &str) -> Option<Time> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
    if !(1..=9).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let micros: u64 = format!("{digits:0<6.6}").parse().ok()?;
    Some(Time::from_micros(whole.checked_mul(1_000_000)?.checked_add(micros)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_seconds_with_any_fraction() {
        let micros = |text| seconds(text).map(Time::micros);
        for (text, expected) in
            [("7", 7_000_000), ("7.5", 7_500_000), ("7.000001", 7_000_001), ("7.123456789", 7_123_456)]
        {
            assert_eq!(micros(text), Some(expected), "{text}");
        }
        for text in ["", "x", "7.", "7.x", "7.1234567890", "7.-1", "18446744073709551615"] {
            assert_eq!(micros(text), None, "{text}");
        }
    }

    #[test]
    fn reads_offsets_and_refuses_the_rest() {
        let seconds = |text| parse(text).map(Time::micros);
        assert_eq!(seconds("1970-01-01T01:00:01+01:00"), Some(1_000_000));
        assert_eq!(seconds("1970-01-01T00:00:00.1234567Z"), Some(123_456));
        for text in ["", "x", "2026-02-29T00:00:00Z", "2026-01-01T00:00:00.Z", "1969-12-31T23:59:59Z"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
