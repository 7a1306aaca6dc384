//! Values of settings from their texts: what most types take, numbers in a range, and choices by name.
//!
//! The Go service hands the text of a variable to Go's `strconv`; what that takes is taken here. A refusal
//! says what is accepted and, where the mistake is a common one, what to write instead.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;

use super::duration::duration;

/// Why a value is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidValue {
    /// What would have been accepted.
    pub accepted: String,
    /// What to do about this very value.
    pub hint: Option<String>,
}

impl InvalidValue {
    /// A refusal without advice.
    pub fn new(accepted: impl Into<String>) -> Self {
        Self { accepted: accepted.into(), hint: None }
    }

    /// The same with advice.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// A boolean in one of the forms of Go's `strconv.ParseBool`.
///
/// # Errors
/// Any other text, `yes` and `on` among them.
pub fn boolean(text: &str) -> Result<bool, InvalidValue> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => {
            let refusal =
                InvalidValue::new("true or false (also 1, t, T, True, TRUE, 0, f, F, False, FALSE)");
            match text.trim().to_ascii_lowercase().as_str() {
                "yes" | "y" | "on" | "true" | "t" | "1" => Err(refusal.with_hint("write true")),
                "no" | "n" | "off" | "false" | "f" | "0" => Err(refusal.with_hint("write false")),
                _ => Err(refusal),
            }
        }
    }
}

/// A whole number of this range, in the bases and with the underscores of Go's literals.
///
/// # Errors
/// Anything else.
pub fn integer(text: &str, range: RangeInclusive<u64>) -> Result<u64, InvalidValue> {
    let accepted = match (*range.start(), *range.end()) {
        (0, u64::MAX) => "a whole number, 0 or more".to_owned(),
        (least, u64::MAX) => format!("a whole number, {least} or more"),
        (least, most) => format!("a whole number from {least} to {most}"),
    };
    let number = go_integer(text.strip_prefix('+').unwrap_or(text)).filter(|number| range.contains(number));
    number.ok_or_else(|| {
        if text.starts_with("tcp://") {
            return InvalidValue::new(accepted).with_hint(
                "Kubernetes sets such a value for a service of that name: \
                 set the variable yourself, or enableServiceLinks: false in the pod",
            );
        }
        InvalidValue::new(accepted)
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

/// A whole number from `LEAST` to `MOST`.
pub(super) fn whole<T: TryFrom<u64>, const LEAST: u64, const MOST: u64>(
    text: &str,
) -> Result<T, InvalidValue> {
    let number = integer(text, LEAST..=MOST)?;
    T::try_from(number).map_err(|_| InvalidValue::new("a number that this machine can hold"))
}

/// A number of things or bytes in memory, up to the largest of Go's `int`.
pub(super) fn at_least<const LEAST: u64>(text: &str) -> Result<usize, InvalidValue> {
    whole::<usize, LEAST, { i64::MAX.unsigned_abs() }>(text)
}

/// What is read as the Go service reads it, and has no effect: an integer.
pub(super) fn unused_integer(text: &str) -> Result<(), InvalidValue> {
    integer(text.strip_prefix('-').unwrap_or(text), 0..=1 << 63).map(drop)
}

/// The same, not negative.
pub(super) fn unused_count(text: &str) -> Result<(), InvalidValue> {
    integer(text, 0..=u64::MAX >> 1).map(drop)
}

/// The choice of this name, in any case.
pub(super) fn choice<T: Copy>(text: &str, choices: &[(&str, T)], accepted: &str) -> Result<T, InvalidValue> {
    let chosen = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    chosen.map(|(_, choice)| *choice).ok_or_else(|| InvalidValue::new(accepted))
}

/// A text with its percent escapes decoded; none if one of them is broken, or the result is not UTF-8.
pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let is_escape = |rest: &str| rest.get(..2).is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    let is_encoded = text.split('%').skip(1).all(is_escape);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| is_encoded)?;
    Some(decoded.into_owned())
}

/// A type that is read the same way wherever it stands.
pub(super) trait Value: Sized {
    fn parse(text: &str) -> Result<Self, InvalidValue>;
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        boolean(text)
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        duration(text)
    }
}

/// Any text, the empty one too.
impl Value for String {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Ok(text.to_owned())
    }
}

impl Value for PathBuf {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Ok(text.into())
    }
}

impl Value for Option<PathBuf> {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Ok((!text.is_empty()).then(|| text.into()))
    }
}

/// A port; 0 takes any free one.
impl Value for u16 {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        port(text)
    }
}

/// A finite number; the reader of the setting warns of numbers outside of 0 to 1.
impl Value for f32 {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        ratio(text)
    }
}

/// A port number; 0 asks for any free one.
///
/// # Errors
/// Anything that is not a whole number up to 65535.
pub fn port(text: &str) -> Result<u16, InvalidValue> {
    // The range makes the conversion succeed.
    integer(text, 0..=u64::from(u16::MAX)).map(|port| u16::try_from(port).unwrap_or_default())
}

/// A finite 32-bit number.
///
/// # Errors
/// Anything else, `NaN` and what overflows among them.
pub fn ratio(text: &str) -> Result<f32, InvalidValue> {
    text.parse::<f32>()
        .ok()
        .filter(|ratio| ratio.is_finite())
        .ok_or_else(|| InvalidValue::new("a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn booleans_are_those_of_go() {
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
    fn integers_take_the_bases_of_go() {
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
    fn integers_keep_their_range_and_say_it() {
        assert_eq!(integer("5", 1..=5), Ok(5));
        for text in ["0", "6", "x"] {
            assert_eq!(integer(text, 1..=5).unwrap_err().accepted, "a whole number from 1 to 5", "{text}");
        }
        assert_eq!(integer("0", 1..=u64::MAX).unwrap_err().accepted, "a whole number, 1 or more");
        assert_eq!(integer("", 0..=u64::MAX).unwrap_err().accepted, "a whole number, 0 or more");
    }

    #[test]
    fn ports_end_at_65535() {
        assert_eq!(port("65535"), Ok(65535));
        assert_eq!(port("0"), Ok(0));
        for text in ["65536", "-1", "http", ":80", "80/tcp", ""] {
            assert!(port(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_port_that_kubernetes_made_of_a_service_is_explained() {
        let refusal = port("tcp://10.96.0.7:8081").unwrap_err();
        assert!(refusal.hint.is_some_and(|hint| hint.contains("enableServiceLinks")), "{}", refusal.accepted);
    }

    #[test]
    fn ratios_are_finite() {
        for (text, number) in
            [("0.8", 0.8), ("1", 1.0), (".5", 0.5), ("1.5", 1.5), ("-1", -1.0), ("8e-1", 0.8)]
        {
            assert_eq!(ratio(text), Ok(number), "{text}");
        }
        for text in ["", "NaN", "nan", "inf", "-Infinity", "1e39", "0,8", "80%", "0.8 ", "x"] {
            assert!(ratio(text).is_err(), "{text:?}");
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
}
