//! The meaning of a scalar: YAML 1.1 as Go's yaml.v2 reads it, with its deviations.
//!
//! Called by [`document`](super::document) for every scalar. A plain scalar may be null, a flag or a number; a quoted one is
//! text; a tag (`!!str 12`) overrides both. Dates stay text.

use base64::{
    Engine, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};

#[derive(Clone, PartialEq, Debug)]
pub enum Meaning {
    /// `~`, `null`, or an empty text.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// An integer that fits in 64 bits with a sign.
    Int(i64),
    /// An integer that fits in 64 bits only without a sign.
    Large(u64),
    /// A number with a fraction, with an exponent, or beyond 64 bits.
    Float(f64),
    Text,
    /// Bytes in base64.
    Binary(Box<Vec<u8>>),
}

/// The prefix that `!!` abbreviates.
const STANDARD: &str = "tag:yaml.org,2002:";

/// The meaning of a scalar with this text and tag; `plain` is false for a quoted one. Returns a message if the tag does not
/// fit the text.
pub(super) fn resolve(text: &str, tag: Option<&str>, plain: bool) -> Result<Meaning, String> {
    let tag = tag.filter(|tag| !tag.is_empty());
    let Some(tag) = tag else {
        return Ok(if plain { of_plain(text) } else { Meaning::Text });
    };
    // A scalar with an unknown tag is text.
    let Some(kind) = tag.strip_prefix(STANDARD) else { return Ok(Meaning::Text) };
    let meaning = match (kind, of_plain(text)) {
        ("binary", _) => {
            return decode_base64(text)
                .map(|bytes| Meaning::Binary(Box::new(bytes)))
                .ok_or_else(|| bad_tag(text, kind));
        }
        // The cast is what Go does; digits beyond 2^53 are lost there too.
        #[allow(clippy::cast_precision_loss)]
        ("float", Meaning::Int(number)) => Meaning::Float(number as f64),
        ("bool", meaning @ Meaning::Bool(_))
        | ("int", meaning @ (Meaning::Int(_) | Meaning::Large(_)))
        | ("float", meaning @ Meaning::Float(_))
        | ("null", meaning @ Meaning::Null) => meaning,
        ("timestamp", Meaning::Text) if looks_like_a_date(text) => Meaning::Text,
        ("bool" | "int" | "float" | "null" | "timestamp", _) => return Err(bad_tag(text, kind)),
        // `!!str`, and tags of lists and maps.
        _ => Meaning::Text,
    };
    Ok(meaning)
}

fn bad_tag(text: &str, kind: &str) -> String {
    format!("`{}` cannot be read as !!{kind}", text.escape_debug())
}

fn of_plain(text: &str) -> Meaning {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Meaning::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Meaning::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Meaning::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Meaning::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Meaning::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Meaning::Float(f64::NEG_INFINITY),
        _ => of_number(text).unwrap_or(Meaning::Text),
    }
}

fn of_number(text: &str) -> Option<Meaning> {
    match text.as_bytes().first()? {
        b'.' => float(text).map(Meaning::Float),
        b'+' | b'-' | b'0'..=b'9' if !looks_like_a_date(text) => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| float(&digits).map(Meaning::Float)).or_else(|| odd_binary(&digits))
        }
        _ => None,
    }
}

/// An integer in Go's notations: decimal, `0x`, `0o`, `0b`, and octal after a lone 0.
fn integer(digits: &str) -> Option<Meaning> {
    let (negative, signed, unsigned) = match digits.as_bytes().first()? {
        b'-' => (true, true, digits.get(1..)?),
        b'+' => (false, true, digits.get(1..)?),
        _ => (false, false, digits),
    };
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, unsigned.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, unsigned.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, unsigned.get(2..)?),
        [b'0', _, ..] => (8, unsigned.get(1..)?),
        _ => (10, unsigned),
    };
    // `from_str_radix` accepts a second sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    match i64::try_from(size) {
        Ok(size) => Some(Meaning::Int(if negative { size.wrapping_neg() } else { size })),
        Err(_) if negative => (size == 1 << 63).then_some(Meaning::Int(i64::MIN)),
        // Go accepts large numbers only without a sign.
        Err(_) => (!signed).then_some(Meaning::Large(size)),
    }
}

/// Go accepts a sign after the prefix: `0b-101`.
fn odd_binary(digits: &str) -> Option<Meaning> {
    i64::from_str_radix(digits.strip_prefix("0b")?, 2).ok().map(Meaning::Int)
}

/// A number with a point or an exponent. A number out of range is text.
fn float(digits: &str) -> Option<f64> {
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let has_first_digit = match unsigned.as_bytes() {
        [b'.', second, ..] => second.is_ascii_digit(),
        [first, ..] => first.is_ascii_digit(),
        [] => false,
    };
    let is_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    if !has_first_digit || !unsigned.bytes().all(is_number) {
        return None;
    }
    digits.parse().ok().filter(|number: &f64| number.is_finite())
}

/// True for dates, which are not numbers, and which `!!timestamp` requires.
fn looks_like_a_date(text: &str) -> bool {
    let (year, rest) = text.as_bytes().split_at_checked(4).unwrap_or_default();
    rest.starts_with(b"-") && year.iter().all(u8::is_ascii_digit)
}

/// A float as Go prints it, for keys of metadata.
pub(crate) fn float_as_key(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..21).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

/// Base64 with padding; line breaks are allowed anywhere.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let symbols: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    BASE64.decode(symbols).ok()
}

/// As in Go, bits after the last byte may have any value.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_have_the_types_of_yaml_v2() {
        use Meaning::{Bool, Float, Int, Large, Null, Text};
        for (text, meaning) in [
            ("", Null),
            ("~", Null),
            ("nUll", Text),
            ("On", Bool(true)),
            ("n", Bool(false)),
            ("tRue", Text),
            ("010", Int(8)),
            ("0o10", Int(8)),
            ("0X1f", Int(31)),
            ("-0b11", Int(-3)),
            ("0b-11", Int(-3)),
            ("1_000", Int(1000)),
            ("+5", Int(5)),
            ("08", Float(8.0)),
            ("0x", Text),
            ("0b2", Text),
            ("+-5", Text),
            ("12:30:45", Text),
            ("2026-01-02", Text),
            ("10.0.0.1", Text),
            ("9223372036854775808", Large(1 << 63)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("+9223372036854775808", Float(9_223_372_036_854_775_808.0)),
            ("99999999999999999999", Float(1e20)),
            ("1e3", Float(1000.0)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            ("+.5", Float(0.5)),
            (".", Text),
            ("-", Text),
            ("1e400", Text),
            ("1e", Text),
            (".inf", Float(f64::INFINITY)),
            ("inf", Text),
            ("_1", Text),
        ] {
            assert_eq!(resolve(text, None, true), Ok(meaning), "{text:?}");
            assert_eq!(resolve(text, None, false), Ok(Text), "quoted {text:?}");
        }
    }

    #[test]
    fn tags_override_the_type_or_are_errors() {
        let tagged = |kind: &str, text| resolve(text, Some(&format!("{STANDARD}{kind}")), true);
        assert_eq!(tagged("str", "12"), Ok(Meaning::Text));
        assert_eq!(tagged("float", "3"), Ok(Meaning::Float(3.0)));
        assert_eq!(tagged("binary", "aGVs\nbG8="), Ok(Meaning::Binary(Box::new(b"hello".to_vec()))));
        assert_eq!(tagged("int", "3.5"), Err("`3.5` cannot be read as !!int".to_owned()));
        assert!(tagged("binary", "aGVsbG8").is_err());
        assert!(tagged("null", "x").is_err());
        assert_eq!(resolve("12", Some("!mine"), true), Ok(Meaning::Text));
    }

    #[test]
    fn floats_as_keys_are_printed_as_in_go() {
        let printed = [1.0, 1.5, 1e20, 1e21, 1.25e-5, 0.0001, -2.0].map(float_as_key);
        assert_eq!(printed, ["1", "1.5", "100000000000000000000", "1e+21", "1.25e-05", "0.0001", "-2"]);
    }
}
