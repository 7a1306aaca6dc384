//! RESP version 2: commands in, replies out.

use smallvec::SmallVec;

/// The words of a command: its name, then its arguments.
pub(crate) type Words<'b> = SmallVec<[&'b [u8]; 12]>;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    Status(&'static str),
    /// A status that a script returns.
    OwnStatus(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
    /// The error's code, then its text.
    Error(String),
    /// Already encoded: the replies to `SUBSCRIBE`, one for each channel.
    Encoded(Vec<u8>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Status("OK");

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub(crate) fn text(text: &[u8]) -> Self {
        Self::Bulk(text.to_vec())
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).expect("a number of elements in memory"))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(status) => line(out, b'+', status.as_bytes()),
            Self::OwnStatus(status) => line(out, b'+', status),
            Self::Integer(number) => line(out, b':', itoa::Buffer::new().format(*number).as_bytes()),
            Self::Bulk(text) => bulk(out, text),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Array(all) => {
                line(out, b'*', itoa::Buffer::new().format(all.len()).as_bytes());
                for one in all {
                    one.write(out);
                }
            }
            Self::Error(error) => {
                let start = out.len();
                line(out, b'-', error.as_bytes());
                // An error is one line.
                let end = out.len() - 2;
                out[start..end]
                    .iter_mut()
                    .filter(|byte| matches!(byte, b'\r' | b'\n'))
                    .for_each(|byte| *byte = b' ');
            }
            Self::Encoded(replies) => out.extend_from_slice(replies),
        }
    }
}

/// As C formats a number with `%.17g`.
pub(crate) fn exact(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is an integer");
    let trimmed = |digits: &str| {
        let is_fraction = digits.contains('.');
        let shorter = if is_fraction { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
        shorter.to_owned()
    };
    match usize::try_from(16 - exponent) {
        Ok(decimals) if exponent >= -4 => trimmed(&format!("{number:.decimals$}")),
        _ => format!("{}e{exponent:+03}", trimmed(digits)),
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, text: &[u8]) {
    line(out, b'$', itoa::Buffer::new().format(text.len()).as_bytes());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// The most words of a command, and bytes of a word, as Redis bounds them.
const MAX_WORDS: i64 = 1024 * 1024;
const MAX_WORD: i64 = 512 * 1024 * 1024;

/// Reads the first command: its words, and the number of its bytes. `None` if it is not complete.
///
/// # Errors
/// The text of the error reply after which Redis closes the connection.
pub(crate) fn command(bytes: &[u8]) -> Result<Option<(Words<'_>, usize)>, &'static str> {
    let Some((first, mut at)) = next_line(bytes, 0) else { return Ok(None) };
    let Some(number) = first.strip_prefix(b"*") else {
        let words = first.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(Some((words.collect(), at)));
    };
    let count = integer(number).filter(|count| *count <= MAX_WORDS);
    let count = count.ok_or("ERR Protocol error: invalid multibulk length")?;
    let mut words = Words::new();
    for _ in 0..count {
        let Some((head, start)) = next_line(bytes, at) else { return Ok(None) };
        let length = head.strip_prefix(b"$").ok_or("ERR Protocol error: expected '$'")?;
        let length = integer(length).filter(|length| (0..=MAX_WORD).contains(length));
        let length = length.ok_or("ERR Protocol error: invalid bulk length")?;
        let end = start + usize::try_from(length).expect("it is at most 512 MiB");
        if bytes.len() < end + 2 {
            return Ok(None);
        }
        words.push(&bytes[start..end]);
        at = end + 2;
    }
    Ok(Some((words, at)))
}

/// The line that begins at `from`, and the place after it.
fn next_line(bytes: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(from..)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = &rest[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), from + end + 1))
}

/// Parses an integer as Redis does: digits without leading zeros, spaces or a plus sign.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [] | [b'0', ..] => false,
        _ => digits.iter().all(u8::is_ascii_digit),
    };
    is_canonical.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}
