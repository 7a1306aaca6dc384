//! RESP version 2, the protocol of Redis. Written by hand because its share of a decision must cost a tenth of a
//! microsecond, and bounds what it receives: the `redis` crate, whose commands and values are used off the request path,
//! takes four times as much.

use std::str;

use crate::failure::without_words;
use text::cut;
use wire::framed::{self, Codec, ProtocolError, Skip};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Integer(i64),
    Text(Vec<u8>),
    Nil,
    List(Vec<Reply>),
    Error(String),
}

impl Reply {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => str::from_utf8(text).ok(),
            _ => None,
        }
    }

    pub(super) fn into_integer(self) -> Result<i64, String> {
        match self {
            Self::Integer(number) => Ok(number),
            other => Err(other.unexpected("an integer")),
        }
    }

    pub(super) fn into_count(self) -> Result<u64, String> {
        match self {
            Self::Integer(number @ 0..) => Ok(number.cast_unsigned()),
            other => Err(other.unexpected("an integer from 0")),
        }
    }

    pub(super) fn into_list(self, expected: usize) -> Result<Vec<Self>, String> {
        match self {
            Self::List(list) if list.len() == expected => Ok(list),
            other => Err(other.unexpected(&format!("an array of {expected}"))),
        }
    }

    /// The error of an error reply, or about a reply of another type.
    pub(super) fn unexpected(self, expected: &str) -> String {
        let received = match self {
            Self::Error(error) => return error,
            Self::Integer(_) => "an integer",
            Self::Text(_) => "a string",
            Self::Nil => "null",
            Self::List(_) => "an array",
        };
        format!("{UNEXPECTED}: expected {expected}, received {received}")
    }
}

/// The first word of the error about a reply of an unexpected type. Replies may be shifted, so the connection is closed.
pub(super) const UNEXPECTED: &str = "unexpected-reply";

pub(super) enum Resp {}

pub(super) type FramedStream = framed::FramedStream<Resp>;

impl Codec for Resp {
    type Reply = Reply;
    const NAME: &'static str = "RESP";

    fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
        read(bytes)
    }

    /// Only `GET` replies with what another program may have written, as a string; scripts check what they read.
    fn skip(bytes: &[u8]) -> Option<Skip<Reply>> {
        let mut reader = Reader { rest: bytes.strip_prefix(b"$")? };
        let length = reader.length().ok().flatten()?;
        let error = Reply::Error(format!("WRONGTYPE the value has {length} bytes"));
        Some(Skip { left: bytes.len() - reader.rest.len() + length + LINE_END.len(), error })
    }
}

const LINE_END: &[u8] = b"\r\n";

const MAX_DEPTH: usize = 8;

/// Maximum number of elements of an array, and of bytes of a string, of which the stream skips those that are longer than
/// what it allows for the commands, see [`FramedStream`](wire::framed::FramedStream). A longer string would hold up the
/// connection for longer than `REDIS_TIMEOUT`.
const MAX_LENGTH: i64 = 16 * 1024 * 1024;

/// The bytes of the shortest element: its type, a digit and the end of its line. So the elements of an array take at most
/// eight times its bytes.
const SHORTEST_ELEMENT: usize = 4;

const _: () = assert!(size_of::<Reply>() <= 8 * SHORTEST_ELEMENT);

pub(super) fn write_command(into: &mut Vec<u8>, words: &[&[u8]]) {
    begin_command(into, words.len());
    for word in words {
        write_word(into, word);
    }
}

pub(super) fn begin_command(into: &mut Vec<u8>, words: usize) {
    into.push(b'*');
    into.extend_from_slice(itoa::Buffer::new().format(words).as_bytes());
    into.extend_from_slice(b"\r\n");
}

pub(super) fn write_word(into: &mut Vec<u8>, word: &[u8]) {
    begin_word(into, word.len());
    into.extend_from_slice(word);
    end_word(into);
}

/// Begins a word of this many bytes, which follow.
pub(super) fn begin_word(into: &mut Vec<u8>, length: usize) {
    into.push(b'$');
    into.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    into.extend_from_slice(b"\r\n");
}

pub(super) fn end_word(into: &mut Vec<u8>) {
    into.extend_from_slice(b"\r\n");
}

pub(super) fn write_number(into: &mut Vec<u8>, number: u64) {
    write_word(into, itoa::Buffer::new().format(number).as_bytes());
}

/// Decodes the reply at the front of `bytes`, and returns it with its length; `None` while it is incomplete.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ProtocolError> {
    let mut reader = Reader { rest: bytes };
    match reader.reply(MAX_DEPTH) {
        Ok(reply) => Ok(Some((reply, bytes.len() - reader.rest.len()))),
        Err(DecodeError::Incomplete) => Ok(None),
        Err(DecodeError::Invalid) => Err(ProtocolError::new(bytes)),
    }
}

enum DecodeError {
    Incomplete,
    Invalid,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, DecodeError> {
        match self.take(1)? {
            b":" => self.number().map(Reply::Integer),
            kind @ (b"+" | b"-") => match (kind, self.line()?) {
                (_, []) => Err(DecodeError::Invalid),
                (b"+", line) => Ok(Reply::Text(line.to_vec())),
                (_, line) => Ok(Reply::Error(cut(without_words(&String::from_utf8_lossy(line))).to_owned())),
            },
            b"$" => {
                let Some(length) = self.length()? else { return Ok(Reply::Nil) };
                let text = self.take(length)?;
                match self.take(2)? {
                    b"\r\n" => Ok(Reply::Text(text.to_vec())),
                    _ => Err(DecodeError::Invalid),
                }
            }
            b"*" => {
                let depth = depth.checked_sub(1).ok_or(DecodeError::Invalid)?;
                let Some(length) = self.length()? else { return Ok(Reply::Nil) };
                // Do not decode elements while they cannot all be there.
                if self.rest.len() / SHORTEST_ELEMENT < length {
                    return Err(DecodeError::Incomplete);
                }
                let mut list = Vec::with_capacity(length);
                for _ in 0..length {
                    list.push(self.reply(depth)?);
                }
                Ok(Reply::List(list))
            }
            _ => Err(DecodeError::Invalid),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Incomplete)?;
        self.rest = rest;
        Ok(taken)
    }

    fn line(&mut self) -> Result<&'a [u8], DecodeError> {
        let Some(end) = self.rest.iter().position(|byte| *byte == b'\r') else {
            let is_too_long = self.rest.len() > 64 * 1024;
            return Err(if is_too_long { DecodeError::Invalid } else { DecodeError::Incomplete });
        };
        let line = self.take(end)?;
        match self.take(2)? {
            b"\r\n" => Ok(line),
            _ => Err(DecodeError::Invalid),
        }
    }

    fn number(&mut self) -> Result<i64, DecodeError> {
        let line = self.line()?;
        str::from_utf8(line).ok().and_then(|digits| digits.parse().ok()).ok_or(DecodeError::Invalid)
    }

    /// A length; `None` for null.
    fn length(&mut self) -> Result<Option<usize>, DecodeError> {
        match self.number()? {
            -1 => Ok(None),
            length @ 0..=MAX_LENGTH => usize::try_from(length).map(Some).map_err(|_| DecodeError::Invalid),
            _ => Err(DecodeError::Invalid),
        }
    }
}

/// A reply is not longer than its bytes, and a part of it is incomplete.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(Some((reply, length))) = read(bytes) {
        assert_eq!(bytes.get(..length).map(read), Some(Ok(Some((reply, length)))));
        for part in [0, length / 2, length.saturating_sub(1)] {
            assert!(bytes.get(..part).is_some_and(|part| read(part) == Ok(None)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn written(reply: &Reply, into: &mut Vec<u8>) {
        match reply {
            Reply::Integer(number) => into.extend(format!(":{number}\r\n").bytes()),
            Reply::Text(text) => write_word(into, text),
            Reply::Nil => into.extend(b"$-1\r\n"),
            Reply::Error(error) => into.extend(format!("-{error}\r\n").bytes()),
            Reply::List(list) => {
                begin_command(into, list.len());
                for reply in list {
                    written(reply, into);
                }
            }
        }
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Reply::Integer),
            any::<Vec<u8>>().prop_map(Reply::Text),
            Just(Reply::Nil),
            "[A-Z]{1,9} [ -~]{0,40}".prop_map(Reply::Error),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| proptest::collection::vec(inner, 0..5).prop_map(Reply::List))
    }

    proptest! {
        #[test]
        fn a_written_reply_reads_back_and_a_prefix_is_incomplete(reply in any_reply(), more: Vec<u8>) {
            let mut bytes = Vec::new();
            written(&reply, &mut bytes);
            let length = bytes.len();
            for part in 0..length {
                prop_assert_eq!(read(&bytes[..part]), Ok(None));
            }
            bytes.extend(more);
            prop_assert_eq!(read(&bytes), Ok(Some((reply, length))));
        }

        #[test]
        fn decodes_any_bytes_without_panic(bytes: Vec<u8>, start in "[-+:$*]?[0-9-]{0,12}(\r\n)?") {
            let _ = read(&bytes);
            let _ = read(&[start.as_bytes(), &bytes].concat());
        }
    }

    #[test]
    fn an_error_has_no_words_of_the_command() {
        let unknown = b"-ERR unknown command 'INCRBY', with args beginning with: 'd_user_ann_0' '1'\r\n";
        let read = read(unknown).unwrap().map(|(reply, _)| reply);
        assert_eq!(read, Some(Reply::Error("ERR unknown command 'INCRBY'".to_owned())));
    }

    #[tokio::test]
    async fn skips_a_value_that_is_too_long_and_fails_only_its_own_reply() {
        let (near, mut far) = tokio::io::duplex(4_096);
        let mut stream = FramedStream::new(Box::new(near), "redis a:1".to_owned());
        stream.send(3, |into| into.push(b'x')).await.unwrap();
        let mut value = Vec::new();
        write_word(&mut value, &vec![b'7'; 4 << 20]);
        let server = tokio::spawn(async move {
            far.write_all(&[b":1\r\n", &*value, b":2\r\n"].concat()).await.unwrap();
            far
        });
        assert_eq!(stream.receive().await.unwrap(), Reply::Integer(1));
        let error = "WRONGTYPE the value has 4194304 bytes".to_owned();
        assert_eq!(stream.receive().await.unwrap(), Reply::Error(error));
        assert_eq!(stream.receive().await.unwrap(), Reply::Integer(2));
        assert_eq!((stream.pending, stream.incoming.len()), (0, 0));
        assert!(stream.incoming.capacity() < 1 << 20, "what is skipped is not kept");
        let mut far = server.await.unwrap();
        stream.send(1, |into| into.push(b'x')).await.unwrap();
        far.write_all(b"$16777217\r\n").await.unwrap();
        let failure = stream.receive().await.unwrap_err();
        assert!(failure.message.contains("$16777217"), "longer than any value that is skipped: {failure}");
    }

    #[test]
    fn reports_the_protocol_of_another_server() {
        let garbage = read(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
        assert!(garbage.0.starts_with("HTTP/1.1 400"), "{garbage:?}");
        assert!(
            read(b":12x\r\n").is_err() && read(b"$-2\r\n").is_err() && read(b"*99999999999\r\n").is_err()
        );
        assert!(read("*1\r\n".repeat(20).as_bytes()).is_err(), "too deep");
    }
}
