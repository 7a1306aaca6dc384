//! Values of settings from their texts, and what is expected of an invalid one.
//!
//! The Go service parses variables with Go's `strconv`; the same texts are accepted here. An error says what is
//! expected and, for common mistakes, what to write instead.

use std::{ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};
use text::InvalidValue;

use percent_encoding::percent_decode_str;
use text::duration::parse as duration;
use tracing::Level;

/// A type whose values are parsed the same way in every variable.
pub(super) trait Value: Sized {
    fn parse(text: &str) -> Result<Self, InvalidValue>;
}

/// Accepts the names of an enum made by `named!`, ignoring case.
macro_rules! by_name {
    ($($type:ty),*) => { $(
        impl Value for $type {
            fn parse(text: &str) -> Result<Self, InvalidValue> {
                choice(text, &<$type>::ALL.map(|value| (value.name(), value)))
            }
        }
    )* };
}

macro_rules! by_function {
    ($($type:ty: $parse:expr;)*) => { $(
        impl Value for $type {
            fn parse(text: &str) -> Result<Self, InvalidValue> {
                ($parse)(text)
            }
        }
    )* };
}

pub(super) use {by_function, by_name};

by_function! {
    bool: boolean;
    Duration: duration;
    f32: ratio;
    u16: port;
    String: |text: &str| Ok(text.to_owned());
    Arc<str>: |text: &str| Ok(text.into());
    PathBuf: |text: &str| Ok(text.into());
}

impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        optional(text, T::parse)
    }
}

pub(super) fn optional<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
) -> Result<Option<T>, InvalidValue> {
    (!text.is_empty()).then(|| parse(text)).transpose()
}

pub(super) fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, InvalidValue> {
    match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some(&(_, choice)) => Ok(choice),
        None => exact_choice(text, choices),
    }
}

/// The choice of this name. A longer name, and one in another case, has a hint.
pub(super) fn exact_choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, InvalidValue> {
    if let Some(&(_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(choice);
    }
    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    let [others @ .., last] = &*names else { return Err(InvalidValue::new("nothing")) };
    let invalid = InvalidValue::new(format!("{} or {last}", others.join(", ")));
    let is_meant = |name: &&str| text.to_lowercase().starts_with(&name.to_lowercase());
    Err(match names.iter().copied().find(is_meant) {
        Some(name) => invalid.with_hint(format!("write {name}")),
        None => invalid,
    })
}

/// A boolean in one of the forms of Go's `strconv.ParseBool`.
pub fn boolean(text: &str) -> Result<bool, InvalidValue> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => return Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => return Ok(false),
        _ => {}
    }
    let invalid = InvalidValue::new("true or false (also 1, t, T, True, TRUE, 0, f, F, False, FALSE)");
    Err(match text.trim().to_ascii_lowercase().as_str() {
        "yes" | "y" | "on" | "true" | "t" | "1" => invalid.with_hint("write true"),
        "no" | "n" | "off" | "false" | "f" | "0" => invalid.with_hint("write false"),
        _ => invalid,
    })
}

/// An integer in this range, in the bases and with the underscores of Go's literals.
pub fn integer(text: &str, range: RangeInclusive<u64>) -> Result<u64, InvalidValue> {
    let number = go_integer(text.strip_prefix('+').unwrap_or(text)).filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let invalid = InvalidValue::new(match (*range.start(), *range.end()) {
            (least, u64::MAX) => format!("an integer of at least {least}"),
            (least, most) => format!("an integer from {least} to {most}"),
        });
        if text.starts_with("tcp://") {
            return invalid.with_hint(
                "Kubernetes sets such a value for a service of that name: set the variable yourself, or set \
                 enableServiceLinks: false in the pod",
            );
        }
        invalid
    })
}

/// An unsigned literal of Go: the base by its prefix, and `_` between digits.
fn go_integer(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (lower.get(2..)?, 16),
        [b'0', b'b', ..] => (lower.get(2..)?, 2),
        [b'0', b'o', ..] => (lower.get(2..)?, 8),
        [b'0', _, ..] => (lower.get(1..)?, 8),
        _ => (&*lower, 10),
    };
    let prefixed = digits.len() < lower.len();
    // The prefix counts as a digit here: `0x_ff`.
    let digits = if prefixed { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    if digits.is_empty()
        || digits.starts_with(['_', '+', '-'])
        || digits.ends_with('_')
        || digits.contains("__")
    {
        return None;
    }
    u64::from_str_radix(&digits.replace('_', ""), radix).ok()
}

pub(super) fn whole<T: TryFrom<u64>, const LEAST: u64, const MOST: u64>(
    text: &str,
) -> Result<T, InvalidValue> {
    let number = integer(text, LEAST..=MOST)?;
    T::try_from(number).map_err(|_| InvalidValue::new("a number that fits this machine's integers"))
}

/// A count, or a size in bytes, up to the maximum of Go's `int`.
pub(super) fn at_least<const LEAST: u64>(text: &str) -> Result<usize, InvalidValue> {
    whole::<usize, LEAST, { i64::MAX.unsigned_abs() }>(text)
}

/// An integer that the Go service parses and that has no effect.
pub(super) fn unused_integer(text: &str) -> Result<(), InvalidValue> {
    integer(text.strip_prefix('-').unwrap_or(text), 0..=1 << 63).map(drop)
}

/// The same, not negative.
pub(super) fn unused_count(text: &str) -> Result<(), InvalidValue> {
    integer(text, 0..=u64::MAX >> 1).map(drop)
}

/// A port number; 0 stands for any free one.
fn port(text: &str) -> Result<u16, InvalidValue> {
    whole::<_, 0, { u16::MAX as u64 }>(text)
}

/// A finite number. Numbers outside of 0 to 1 log a warning where the setting is read.
fn ratio(text: &str) -> Result<f32, InvalidValue> {
    let ratio = text.parse().ok().filter(|ratio: &f32| ratio.is_finite());
    ratio.ok_or_else(|| InvalidValue::new("a number from 0 to 1"))
}

/// A duration above 0.
pub(super) fn positive(text: &str) -> Result<Duration, InvalidValue> {
    let set = duration(text)?;
    if set.is_zero() { Err(InvalidValue::new("a duration above 0, such as 300ms")) } else { Ok(set) }
}

pub(super) fn seconds<const MOST: u64>(text: &str) -> Result<Duration, InvalidValue> {
    integer(text, 0..=MOST).map(Duration::from_secs)
}

/// A number of milliseconds, from `LEAST` to `MOST`.
pub(super) fn milliseconds<const LEAST: u64, const MOST: u64>(text: &str) -> Result<Duration, InvalidValue> {
    integer(text, LEAST..=MOST).map(Duration::from_millis)
}

/// A text with its percent escapes decoded; `None` if one of them is invalid, or the result is not UTF-8.
pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let is_escape = |rest: &str| rest.get(..2).is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    let is_encoded = text.split('%').skip(1).all(is_escape);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| is_encoded)?;
    Some(decoded.into_owned())
}

/// A level by its name in logrus, ignoring case; `None` disables the log.
pub(super) fn level(text: &str) -> Result<Option<Level>, InvalidValue> {
    let choices = [
        // Nothing is logged at these levels: a fatal error is printed before the exit.
        ("panic", None),
        ("fatal", None),
        ("error", Some(Level::ERROR)),
        ("warn", Some(Level::WARN)),
        ("warning", Some(Level::WARN)),
        ("info", Some(Level::INFO)),
        ("debug", Some(Level::DEBUG)),
        ("trace", Some(Level::TRACE)),
    ];
    choice(text, &choices)
}

pub(super) fn header_name(text: &str) -> Result<String, InvalidValue> {
    let expected = "a header name: letters, digits and any of !#$%&'*+-.^_`|~, at least one of them";
    let name = http::HeaderName::from_bytes(text.as_bytes());
    name.map(|_| text.to_owned()).map_err(|_| InvalidValue::new(expected))
}

/// The path of a URL, without characters that would need an escape.
pub(super) fn url_path(text: &str) -> Result<String, InvalidValue> {
    let invalid = InvalidValue::new("a path that begins with /, without spaces, ? and #");
    if !text.starts_with('/') {
        return Err(invalid.with_hint(format!("write /{}", text.trim())));
    }
    if text.bytes().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'?' | b'#')) {
        return Err(invalid);
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use text::duration::LONGEST;

    use super::*;

    #[test]
    fn booleans_are_parsed_as_in_go() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(boolean(text), Ok(true), "{text}");
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(boolean(text), Ok(false), "{text}");
        }
        for text in
            ["", " ", "tRUE", "yes", "no", "on", "off", "y", "n", "2", "-1", "01", "true ", "\"true\"", "nil"]
        {
            assert!(boolean(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn near_misses_of_booleans_have_a_hint() {
        for (text, hint) in [
            ("yes", Some("write true")),
            (" TrUe", Some("write true")),
            ("Off", Some("write false")),
            ("2", None),
        ] {
            assert_eq!(boolean(text).unwrap_err().hint.as_deref(), hint, "{text}");
        }
    }

    #[test]
    fn integers_have_the_bases_of_go() {
        for (text, number) in [
            ("0", 0),
            ("00", 0),
            ("7", 7),
            ("+7", 7),
            ("010", 8),
            ("0o10", 8),
            ("0O10", 8),
            ("0x1F", 31),
            ("0X_1f", 31),
            ("0b101", 5),
            ("0B1_01", 5),
            ("1_000", 1000),
            ("0_7", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(integer(text, 0..=u64::MAX), Ok(number), "{text}");
        }
        for text in [
            "",
            " ",
            "+",
            "-",
            "-1",
            "-0",
            "++1",
            "+-1",
            "1.0",
            "1e3",
            "08",
            "0x",
            "0xg",
            "0b2",
            "_1",
            "1_",
            "1__0",
            "0x__1",
            "0_",
            "1 ",
            " 1",
            "1,000",
            "ten",
            "18446744073709551616",
            "0x+1",
            "0-1",
            "\u{661}",
            "0\u{e9}",
        ] {
            assert!(integer(text, 0..=u64::MAX).is_err(), "{text:?}");
        }
    }

    #[test]
    fn rejects_integers_out_of_range() {
        assert_eq!(integer("5", 1..=5), Ok(5));
        for text in ["0", "6", "x"] {
            assert_eq!(integer(text, 1..=5).unwrap_err().expected, "an integer from 1 to 5", "{text}");
        }
        assert_eq!(integer("0", 1..=u64::MAX).unwrap_err().expected, "an integer of at least 1");
        assert_eq!(integer("", 0..=u64::MAX).unwrap_err().expected, "an integer of at least 0");
    }

    #[test]
    fn the_highest_port_is_65535() {
        assert_eq!(port("65535"), Ok(65535));
        assert_eq!(port("0"), Ok(0));
        for text in ["65536", "-1", "http", ":80", "80/tcp", ""] {
            assert!(port(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn explains_a_port_that_kubernetes_sets_for_a_service() {
        let refusal = port("tcp://10.96.0.7:8081").unwrap_err();
        assert!(refusal.hint.is_some_and(|hint| hint.contains("enableServiceLinks")), "{}", refusal.expected);
    }

    #[test]
    fn ratios_must_be_finite() {
        for (text, number) in
            [("0.8", 0.8), ("1", 1.0), (".5", 0.5), ("1.5", 1.5), ("-1", -1.0), ("8e-1", 0.8)]
        {
            assert_eq!(ratio(text), Ok(number), "{text}");
        }
        for text in ["", "NaN", "nan", "inf", "-Infinity", "1e39", "0,8", "80%", "0.8 ", "x"] {
            assert!(ratio(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn levels_have_the_names_of_logrus() {
        for (text, expected) in [
            ("panic", None),
            ("Fatal", None),
            ("ERROR", Some(Level::ERROR)),
            ("WARN", Some(Level::WARN)),
            ("warning", Some(Level::WARN)),
            ("iNFO", Some(Level::INFO)),
            ("debug", Some(Level::DEBUG)),
            ("trace", Some(Level::TRACE)),
        ] {
            assert_eq!(level(text), Ok(expected), "{text}");
        }
        for text in ["", "warnings", "err", "notice", "3", "off", "info "] {
            assert!(level(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn header_names_are_those_of_http_and_keep_their_case() {
        assert_eq!(header_name("RateLimit-Limit").as_deref(), Ok("RateLimit-Limit"));
        for text in
            ["", " ", "Rate Limit", "Limit:", ":path", "x\n", "x\r\ny: z", "Grenzwert-\u{fc}", "a,b", "(x)"]
        {
            assert!(header_name(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn paths_begin_with_a_slash() {
        assert_eq!(url_path("/metrics/x%20y").as_deref(), Ok("/metrics/x%20y"));
        assert_eq!(url_path("metrics").unwrap_err().hint.as_deref(), Some("write /metrics"));
        for text in ["", "metrics", " /metrics", "/a b", "/a?b", "/a#b", "/\u{fc}", "/a\n"] {
            assert!(url_path(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn integers_are_read_in_every_base(number: u64) {
            let texts = [
                format!("{number}"),
                format!("{number:#x}"),
                format!("{number:#o}"),
                format!("{number:#b}"),
                format!("0{number:o}"),
            ];
            for text in texts {
                prop_assert_eq!(integer(&text, 0..=u64::MAX), Ok(number), "{}", text);
            }
        }
    }

    #[test]
    fn reads_every_unit_of_durations() {
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
    fn parts_of_durations_add_up_and_may_be_fractions() {
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
    fn rejects_other_texts_as_durations() {
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
    fn common_mistakes_in_durations_have_a_hint() {
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
        fn durations_of_several_parts_are_their_sum(parts in [0..9_000_u64, 0..9_000, 0..9_000, 0..9_000]) {
            let [h, m, s, n] = parts;
            let nanos = ((h * 60 + m) * 60 + s) * 1_000_000_000 + n;
            prop_assert_eq!(duration(&format!("{h}h{m}m{s}s{n}ns")), Ok(Duration::from_nanos(nanos)));
        }

        #[test]
        fn any_text_is_a_duration_or_rejected(text in "[-+.0-9nu\u{b5}\u{3bc}msh ]{0,40}") {
            if let Ok(read) = duration(&text) {
                prop_assert!(read.as_nanos() <= LONGEST);
            }
        }
    }
}
