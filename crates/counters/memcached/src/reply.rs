//! The replies of memcached's text protocol that counting needs.

use std::str;

use text::cut;
use wire::{
    failure::FailureKind,
    framed::{self, Codec, ProtocolError, Skip},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Number(u64),
    Value(Vec<u8>),
    /// A key's value and its `cas` number.
    Unique(Vec<u8>, u64),
    Missing,
    Stored,
    /// The value was not stored: the key exists, or another client changed it.
    NotStored,
    Version,
    Error(String),
}

pub(super) enum Text {}

pub(super) type FramedStream = framed::FramedStream<Text>;

/// The longest first line: it repeats a key of 250 bytes.
const MAX_LINE: usize = 4 * 1024;

/// The longest value. The stream skips those that are longer than what it allows for the commands; a longer one than this
/// would hold up the connection for longer than `MEMCACHE_TIMEOUT`.
const MAX_VALUE: usize = 16 * 1024 * 1024;

const VALUE_END: &[u8] = b"\r\nEND\r\n";

impl Codec for Text {
    type Reply = Reply;
    const NAME: &'static str = "memcached";

    fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
        let Some((line, after)) = first_line(bytes)? else { return Ok(None) };
        if let Some(words) = line.strip_prefix(b"VALUE ") {
            return value(bytes, words, after);
        }
        let reply = match line {
            b"NOT_FOUND" | b"END" => Reply::Missing,
            b"STORED" => Reply::Stored,
            b"NOT_STORED" | b"EXISTS" => Reply::NotStored,
            _ if line.starts_with(b"VERSION ") => Reply::Version,
            _ if is_error(line) => Reply::Error(cut(&String::from_utf8_lossy(line)).to_owned()),
            _ => Reply::Number(number(line).ok_or_else(|| ProtocolError::new(bytes))?),
        };
        Ok(Some((reply, after)))
    }

    fn skip(bytes: &[u8]) -> Option<Skip<Reply>> {
        let (line, after) = first_line(bytes).ok().flatten()?;
        let Value { length, .. } = Value::declared(line.strip_prefix(b"VALUE ")?)?;
        let error = Reply::Error(format!("CLIENT_ERROR non-numeric value of {length} bytes"));
        Some(Skip { left: after + length + VALUE_END.len(), error })
    }
}

/// The first line, and the start of the next one.
fn first_line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let shown = bytes.get(..MAX_LINE).unwrap_or(bytes);
    match shown.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r"));
            Ok(Some((line.ok_or_else(|| ProtocolError::new(bytes))?, end + 1)))
        }
        None if shown.len() == MAX_LINE => Err(ProtocolError::new(bytes)),
        // Such bytes cannot become a reply.
        None if bytes.iter().any(|byte| !(b' '..=b'~').contains(byte) && *byte != b'\r') => {
            Err(ProtocolError::new(bytes))
        }
        None => Ok(None),
    }
}

/// What the line `VALUE key flags length` declares, which has one more number for `gets`.
struct Value {
    length: usize,
    unique: Option<u64>,
}

impl Value {
    /// Parses what follows `VALUE `.
    fn declared(words: &[u8]) -> Option<Self> {
        let mut numbers = words.split(|byte| *byte == b' ').skip(2).map(number);
        let length = usize::try_from(numbers.next()??).ok().filter(|length| *length <= MAX_VALUE)?;
        Some(Self { length, unique: numbers.next().flatten() })
    }
}

/// Decodes the value that begins at `after`.
fn value(bytes: &[u8], words: &[u8], after: usize) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let Value { length, unique } = Value::declared(words).ok_or_else(|| ProtocolError::new(bytes))?;
    let rest = bytes.get(after..).unwrap_or_default();
    let Some((value, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    match rest.get(..VALUE_END.len()) {
        Some(seen) if seen == VALUE_END => {
            let taken = after + length + VALUE_END.len();
            let value = value.to_vec();
            let reply = match unique {
                Some(unique) => Reply::Unique(value, unique),
                None => Reply::Value(value),
            };
            Ok(Some((reply, taken)))
        }
        Some(_) => Err(ProtocolError::new(rest)),
        None => Ok(None),
    }
}

/// A counter's stored value: memcached pads it with spaces after a decrement.
pub(super) fn counter(value: &[u8]) -> Option<u64> {
    number(value.trim_ascii_end())
}

fn number(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))
        .and_then(|digits| digits.parse().ok())
}

fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || [&b"CLIENT_ERROR "[..], b"SERVER_ERROR "].iter().any(|begin| line.starts_with(begin))
}

pub(super) fn kind(error: &str) -> FailureKind {
    if error.contains("out of memory") {
        FailureKind::OutOfMemory
    } else if error.contains("non-numeric") {
        FailureKind::NotANumber
    } else if error.contains("unauthenticated") {
        FailureKind::Auth
    } else if error.starts_with("SERVER_ERROR") {
        FailureKind::Other
    } else {
        // The server rejected the command, so the following replies may be shifted.
        FailureKind::ProtocolError
    }
}

pub(super) const fn hint(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::OutOfMemory => "; give it more memory (-m), or allow eviction (no -M)",
        FailureKind::NotANumber => "; another program uses these keys: set CACHE_KEY_PREFIX",
        FailureKind::Auth => "; passwords are not supported: start it without -Y",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<Reply> {
        let (reply, length) = Text::decode(text.as_bytes()).unwrap()?;
        assert_eq!(length, text.len());
        Some(reply)
    }

    #[test]
    fn decodes_replies() {
        for (text, reply) in [
            ("0\r\n", Reply::Number(0)),
            ("18446744073709551615\r\n", Reply::Number(u64::MAX)),
            ("NOT_FOUND\r\n", Reply::Missing),
            ("END\r\n", Reply::Missing),
            ("STORED\r\n", Reply::Stored),
            ("NOT_STORED\r\n", Reply::NotStored),
            ("EXISTS\r\n", Reply::NotStored),
            ("VERSION 1.6.18\r\n", Reply::Version),
            ("VALUE d_k_v_120 0 3\r\n12 \r\nEND\r\n", Reply::Value(b"12 ".to_vec())),
            ("VALUE k 0 2 77\r\n\r\n\r\nEND\r\n", Reply::Unique(b"\r\n".to_vec(), 77)),
            ("ERROR\r\n", Reply::Error("ERROR".to_owned())),
            ("SERVER_ERROR busy\r\n", Reply::Error("SERVER_ERROR busy".to_owned())),
        ] {
            for cut in 0..text.len() {
                assert_eq!(Text::decode(&text.as_bytes()[..cut]), Ok(None), "{:?}", &text[..cut]);
            }
            assert_eq!(read(text), Some(reply), "{text:?}");
        }
    }

    #[test]
    fn rejects_other_protocols() {
        for text in [
            "+PONG\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "\u{15}\u{3}\u{3}",
            "12\n",
            "+12\r\n",
            "-1\r\n",
            "\r\n",
            "VALUE k 0\r\n",
            "VALUE k 0 99999999\r\n",
            "VALUE k 0 1\r\n12\r\nEND\r\n",
        ] {
            assert!(Text::decode(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Text::decode(&[b'x'; MAX_LINE]).is_err());
    }

    #[test]
    fn a_value_that_is_too_long_is_skipped_as_a_foreign_one() {
        let part = b"VALUE d_k_v_120 0 200000\r\n7777";
        assert_eq!(Text::decode(part), Ok(None));
        let Skip { left, error } = Text::skip(part).unwrap();
        assert_eq!(left, "VALUE d_k_v_120 0 200000\r\n".len() + 200_000 + "\r\nEND\r\n".len());
        assert_eq!(error, Reply::Error("CLIENT_ERROR non-numeric value of 200000 bytes".to_owned()));
        assert!(Text::skip(b"STORED").is_none());
    }

    #[test]
    fn counters_may_have_trailing_spaces() {
        for (value, count) in
            [("12", Some(12)), ("9 ", Some(9)), ("", None), ("x", None), (" 1", None), ("1 2", None)]
        {
            assert_eq!(counter(value.as_bytes()), count, "{value:?}");
        }
    }

    #[test]
    fn errors_have_kinds() {
        for (error, expected) in [
            ("SERVER_ERROR out of memory storing object", FailureKind::OutOfMemory),
            ("CLIENT_ERROR cannot increment or decrement non-numeric value", FailureKind::NotANumber),
            ("CLIENT_ERROR unauthenticated", FailureKind::Auth),
            ("SERVER_ERROR busy", FailureKind::Other),
            ("ERROR", FailureKind::ProtocolError),
            ("CLIENT_ERROR bad data chunk", FailureKind::ProtocolError),
        ] {
            assert_eq!(kind(error), expected, "{error}");
        }
    }

    proptest! {
        #[test]
        fn decodes_any_bytes_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Text::decode(&bytes);
            let _ = Text::decode(&[b"VALUE ", &bytes[..]].concat());
        }
    }
}
