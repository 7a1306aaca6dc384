//! Durations in Go's notation, with days and weeks, and in the two largest units for people.

use std::time::Duration;

use crate::InvalidValue;

/// A duration in Go's notation; `0` needs no unit.
pub fn parse(text: &str) -> Result<Duration, InvalidValue> {
    let expected = "a duration such as 10s, 150us, 1h30m or 1.5h, in ns, us, ms, s, m and h";
    parse_in(&UNITS, text, expected)
}

/// A duration in the same notation that may have days and weeks, as people state the time until an end.
pub fn parse_with_days(text: &str) -> Result<Duration, InvalidValue> {
    const WITH_DAYS: [(&str, u128); UNITS.len() + 2] = {
        let [ns, us, micro, mu, ms, s, m, h] = UNITS;
        let day = 24 * h.1;
        [ns, us, micro, mu, ms, s, m, h, ("d", day), ("w", 7 * day)]
    };
    parse_in(&WITH_DAYS, text, "a duration such as 30m, 1h30m, 2d or 1w, in s, m, h, d and w")
}

fn parse_in(units: &[(&str, u128)], text: &str, expected: &'static str) -> Result<Duration, InvalidValue> {
    let invalid = InvalidValue::new(expected);
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
        let Some((nanos, after)) = duration_part(units, rest) else {
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

/// The longest duration in Go: 2^63 - 1 nanoseconds, about 292 years.
pub const LONGEST: u128 = i64::MAX as u128;

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
fn duration_part<'t>(units: &[(&str, u128)], text: &'t str) -> Option<(u128, &'t str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, rest) =
        units.iter().find_map(|(name, unit)| rest.strip_prefix(name).map(|rest| (*unit, rest)))?;
    // A number that does not fit in a u128 is above every bound.
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u128>().unwrap_or(u128::MAX) };
    // 18 digits are enough for the fraction of a week in nanoseconds.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().unwrap_or_default() * unit / scale;
    let nanos = whole.saturating_mul(unit).saturating_add(part).min(LONGEST + 1);
    Some((nanos, rest))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// A duration in Go's notation, to the millisecond: `15m`, `1h30m`, `1500ms`.
pub fn written(duration: Duration) -> String {
    if duration.subsec_millis() > 0 {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = duration.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts = parts.iter().filter(|(n, _)| *n > 0);
    let text = parts.map(|(n, unit)| format!("{n}{unit}")).collect::<Vec<_>>().concat();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Seconds in the two largest units of days, hours, minutes and seconds: `3d 4h`.
pub fn short(seconds: u64) -> String {
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts = parts.into_iter().skip_while(|(n, _)| *n == 0).take(2).filter(|(n, _)| *n > 0);
    let text = parts.map(|(n, unit)| format!("{n}{unit}")).collect::<Vec<_>>().join(" ");
    if text.is_empty() { "0s".to_owned() } else { text }
}
