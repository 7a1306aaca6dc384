//! Durations as Go writes them: `10s`, `150us`, `1h30m`, `1.5h`.
//!
//! Settings and the command line read theirs here, so that one notation serves both.

use std::time::Duration;

use super::parse::{InvalidValue, integer};

/// A duration as Go writes it, such as `10s`, `150us`, `1h30m` or `1.5h`; `0` needs no unit.
///
/// # Errors
/// Anything else, negative ones and those beyond 292 years among them.
pub fn duration(text: &str) -> Result<Duration, InvalidValue> {
    let refusal =
        || InvalidValue::new("a duration such as 10s, 150us, 1h30m or 1.5h, in ns, us, ms, s, m and h");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.starts_with('-') {
        return Err(refusal().with_hint("a duration cannot be negative"));
    }
    if rest.is_empty() {
        return Err(refusal());
    }
    let mut total = 0;
    while !rest.is_empty() {
        let (nanos, after) = duration_part(rest).ok_or_else(|| {
            if rest.bytes().all(|byte| byte.is_ascii_digit()) {
                return refusal().with_hint(format!("the unit is missing: {text}s is in seconds"));
            }
            refusal()
        })?;
        total += nanos;
        if total > LONGEST {
            return Err(refusal().with_hint("the longest is some 292 years"));
        }
        rest = after;
    }
    // The bound above makes the conversion succeed.
    Ok(Duration::from_nanos(u64::try_from(total).unwrap_or(u64::MAX)))
}

/// A duration above 0.
pub(super) fn positive(text: &str) -> Result<Duration, InvalidValue> {
    match duration(text)? {
        Duration::ZERO => Err(InvalidValue::new("a duration such as 300ms, longer than nothing")),
        set => Ok(set),
    }
}

/// A number of seconds, up to `MOST`.
pub(super) fn seconds<const MOST: u64>(text: &str) -> Result<Duration, InvalidValue> {
    integer(text, 0..=MOST).map(Duration::from_secs)
}

/// A number of milliseconds, from `LEAST` to `MOST`.
pub(super) fn milliseconds<const LEAST: u64, const MOST: u64>(text: &str) -> Result<Duration, InvalidValue> {
    integer(text, LEAST..=MOST).map(Duration::from_millis)
}

/// The longest duration that Go can hold: 2^63 - 1 nanoseconds, some 292 years.
const LONGEST: u128 = i64::MAX as u128;

/// The units of Go's durations in nanoseconds. Of two that begin alike the longer stands first.
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

/// One number with its unit at the head of `text`: its nanoseconds, and what follows.
fn duration_part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, rest) =
        UNITS.into_iter().find_map(|(name, unit)| rest.strip_prefix(name).map(|rest| (unit, rest)))?;
    // More digits than a u128 holds are beyond every bound, so the largest number stands for them.
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u128>().unwrap_or(u128::MAX) };
    // The fraction of an hour in nanoseconds has no use for more than 18 digits.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().unwrap_or_default() * unit / scale;
    let nanos = whole.saturating_mul(unit).saturating_add(part).min(LONGEST + 1);
    Some((nanos, rest))
}

/// The digits at the head of `text`, and what follows.
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
            ("10", "the unit is missing: 10s is in seconds"),
            ("-5s", "a duration cannot be negative"),
            ("2562048h", "the longest is some 292 years"),
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
