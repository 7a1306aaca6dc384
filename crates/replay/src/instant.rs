//! Times of log lines: RFC 3339.
//!
//! The form that nearly all lines have, UTC with up to nine digits of a fraction, is read by hand, because a replay
//! reads one per request; everything else as the rest of the program reads it.

use clock::{Rfc3339, Time};

/// A time in RFC 3339, from 1970 on, to the microsecond.
pub(crate) fn parse(text: &str) -> Option<Time> {
    utc(text.as_bytes()).or_else(|| {
        // The reader takes a time before 1970 for 1970.
        let Rfc3339(time) = text.parse().ok()?;
        (time > Time::default()).then_some(time)
    })
}

/// Seconds since 1970, as `%START_TIME(%s.%3f)%` writes them.
pub(crate) fn seconds(text: &str) -> Option<Time> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
    let micros = fraction(format!(".{digits}Z").as_bytes())?;
    let whole: u64 = whole.parse().ok()?;
    Some(Time::from_micros(whole.checked_mul(1_000_000)?.checked_add(micros)?))
}

/// `2026-11-01T00:00:00.123Z`
fn utc(text: &[u8]) -> Option<Time> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2, rest @ ..] =
        text
    else {
        return None;
    };
    let two = |tens: &u8, ones: &u8| Some(digit(*tens)? * 10 + digit(*ones)?);
    let year = two(y1, y2)? * 100 + two(y3, y4)?;
    let (month, day, hour) = (two(m1, m2)?, two(d1, d2)?, two(h1, h2)?);
    let (minute, second) = (two(n1, n2)?, two(s1, s2)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if year < 1970 || !(1..=longest).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let micros = fraction(rest)?;
    // The days since 1970, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    Some(Time::from_micros(seconds * 1_000_000 + micros))
}

/// The microseconds of `.123Z`, or of `Z`.
fn fraction(rest: &[u8]) -> Option<u64> {
    let digits = match rest {
        [b'Z'] => return Some(0),
        [b'.', digits @ .., b'Z'] if (1..=9).contains(&digits.len()) => digits,
        _ => return None,
    };
    let mut micros = 0;
    for at in 0..6 {
        micros = micros * 10 + digits.get(at).map_or(Some(0), |one| digit(*one))?;
    }
    digits.iter().all(u8::is_ascii_digit).then_some(micros)
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reads_what_the_program_writes(micros in 0..4_102_444_800_000_000_u64) {
            let whole = Time::from_micros(micros / 1000 * 1000);
            let text = Rfc3339(whole).to_string();
            prop_assert_eq!(utc(text.as_bytes()), Some(whole));
            prop_assert_eq!(text.parse().ok(), Some(Rfc3339(whole)));
        }

        #[test]
        fn agrees_with_the_other_reader(text in "[12][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,9})?Z") {
            if let Some(time) = utc(text.as_bytes()) {
                prop_assert_eq!(text.parse().ok(), Some(Rfc3339(time)));
            }
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
