//! Durations in Go's notation: `10s`, `150us`, `1h30m`, `1.5h`. Settings and the command line share it.

use std::time::Duration;

use super::parse::{InvalidValue, Value, by_function, integer};

/// A duration in Go's notation; `0` needs no unit.
///
/// # Errors
/// Any other text, and durations that are negative or longer than 292 years.
pub fn duration(text: &str) -> Result<Duration, InvalidValue> {
    let invalid =
        InvalidValue::new("a duration such as 10s, 150us, 1h30m or 1.5h, in ns, us, ms, s, m and h");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.starts_with('-') {
        return Err(invalid.with_hint("a duration cannot be negative"));
    }
    if rest.is_empty() {
        return Err(invalid);
    }
    let mut total = 0;
    while !rest.is_empty() {
        let Some((nanos, after)) = duration_part(rest) else {
            let is_number = rest.bytes().all(|byte| byte.is_ascii_digit());
            let hint = || format!("the unit is missing; {text}s is in seconds");
            return Err(if is_number { invalid.with_hint(hint()) } else { invalid });
        };
        total += nanos;
        if total > LONGEST {
            return Err(invalid.with_hint("the longest duration is about 292 years"));
        }
        rest = after;
    }
    // The bound above makes the conversion succeed.
    Ok(Duration::from_nanos(u64::try_from(total).unwrap_or(u64::MAX)))
}

by_function! { Duration: duration; }

/// A duration above 0.
pub(super) fn positive(text: &str) -> Result<Duration, InvalidValue> {
    let set = duration(text)?;
    if set.is_zero() { Err(InvalidValue::new("a duration above 0, such as 300ms")) } else { Ok(set) }
}

/// A number of seconds, up to `MOST`.
pub(super) fn seconds<const MOST: u64>(text: &str) -> Result<Duration, InvalidValue> {
    integer(text, 0..=MOST).map(Duration::from_secs)
}

/// A number of milliseconds, from `LEAST` to `MOST`.
pub(super) fn milliseconds<const LEAST: u64, const MOST: u64>(text: &str) -> Result<Duration, InvalidValue> {
    integer(text, LEAST..=MOST).map(Duration::from_millis)
}

/// The longest duration in Go: 2^63 - 1 nanoseconds, about 292 years.
const LONGEST: u128 = i64::MAX as u128;

/// The units of Go's durations in nanoseconds. `ms` must come before `m`.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),  // the micro sign
    ("\u{3bc}s", 1_000), // the Greek letter mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
];

/// Splits off a number with its unit: its nanoseconds, and the rest.
fn duration_part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, rest) =
        UNITS.into_iter().find_map(|(name, unit)| rest.strip_prefix(name).map(|rest| (unit, rest)))?;
    // A number that does not fit in a u128 is above every bound.
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u128>().unwrap_or(u128::MAX) };
    // 18 digits are enough for the fraction of an hour in nanoseconds.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().unwrap_or_default() * unit / scale;
    let nanos = whole.saturating_mul(unit).saturating_add(part).min(LONGEST + 1);
    Some((nanos, rest))
}

/// Splits off the leading digits.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_unit_counts_what_it_says() {
        for (text, nanos) in [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("7ns", 7),
            ("150us", 150_000),
            ("150\u{b5}s", 150_000),
            ("150\u{3bc}s", 150_000),
            ("3ms", 3_000_000),
            ("10s", 10_000_000_000),
            ("+10s", 10_000_000_000),
            ("2m", 120_000_000_000),
            ("24h", 86_400_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn parts_add_up_and_may_be_fractions() {
        for (text, nanos) in [
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1m1m", 120_000_000_000),
            ("1s1h", 3_601_000_000_000),
            ("0.3333333333333333333333333h", 1_199_999_999_999),
            ("1.0000000001ns", 1),
            ("9223372036854775807ns", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            " ",
            "s",
            ".",
            ".s",
            "+",
            "-",
            "--1s",
            "-1s",
            "-0",
            "10",
            "00",
            "1.5",
            "10 s",
            " 10s",
            "10s ",
            "1d",
            "1w",
            "10sec",
            "10S",
            "1e3s",
            "1_000s",
            "1,5s",
            "0x1s",
            "1h-1m",
            "1h 1m",
            "10\u{b5}",
            "\u{661}s",
            "9223372036854775808ns",
            "300y",
            "2562048h",
            "99999999999999999999999999999999999999999999h",
        ] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn common_mistakes_have_a_hint() {
        for (text, hint) in [
            ("10", "the unit is missing; 10s is in seconds"),
            ("-5s", "a duration cannot be negative"),
            ("2562048h", "the longest duration is about 292 years"),
        ] {
            assert_eq!(duration(text).unwrap_err().hint.as_deref(), Some(hint), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_sum_of_whole_parts_is_their_sum(parts in [0..9_000_u64, 0..9_000, 0..9_000, 0..9_000]) {
            let [h, m, s, n] = parts;
            let nanos = ((h * 60 + m) * 60 + s) * 1_000_000_000 + n;
            prop_assert_eq!(duration(&format!("{h}h{m}m{s}s{n}ns")), Ok(Duration::from_nanos(nanos)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+.0-9nu\u{b5}\u{3bc}msh ]{0,40}") {
            if let Ok(read) = duration(&text) {
                prop_assert!(read.as_nanos() <= LONGEST);
            }
        }
    }
}
