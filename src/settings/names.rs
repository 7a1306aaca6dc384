//! Pure readers of texts that stand for something: log levels, header names, paths of URLs.

use tracing::level_filters::LevelFilter;

use super::parse::{InvalidValue, Value};

/// The least severe level that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLevel(pub LevelFilter);

impl Default for LogLevel {
    fn default() -> Self {
        Self(LevelFilter::INFO)
    }
}

impl Value for LogLevel {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        level(text).map(Self)
    }
}

/// The level of this name, as logrus names them, in any case.
///
/// # Errors
/// Any other name.
pub fn level(text: &str) -> Result<LevelFilter, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        // Nothing that this program logs is as grave: it says so on its way out instead.
        "panic" | "fatal" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(InvalidValue::new("panic, fatal, error, warn, warning, info, debug or trace, in any case")),
    }
}

/// A name that HTTP allows for a header.
///
/// # Errors
/// Anything with a character that header names cannot have, or without any.
pub fn header_name(text: &str) -> Result<String, InvalidValue> {
    let named = http::HeaderName::from_bytes(text.as_bytes());
    named.map(|_| text.to_owned()).map_err(|_| {
        InvalidValue::new("a header name: letters, digits and any of !#$%&'*+-.^_`|~, at least one of them")
    })
}

/// The same, or nothing.
pub(super) fn optional_header(text: &str) -> Result<Option<String>, InvalidValue> {
    if text.is_empty() { Ok(None) } else { header_name(text).map(Some) }
}

/// The path of a URL.
///
/// # Errors
/// A text that does not begin with `/`, or that no URL's path can hold as it stands.
pub fn url_path(text: &str) -> Result<String, InvalidValue> {
    let refusal = || InvalidValue::new("a path that begins with /, without blanks, ? and #");
    if !text.starts_with('/') {
        return Err(refusal().with_hint(format!("write /{}", text.trim())));
    }
    if text.bytes().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'?' | b'#')) {
        return Err(refusal());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_names_of_logrus() {
        for (text, filter) in [
            ("panic", LevelFilter::OFF),
            ("Fatal", LevelFilter::OFF),
            ("ERROR", LevelFilter::ERROR),
            ("WARN", LevelFilter::WARN),
            ("warning", LevelFilter::WARN),
            ("iNFO", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ] {
            assert_eq!(level(text), Ok(filter), "{text}");
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
}
