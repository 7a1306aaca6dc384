//! Decodes a file's bytes.
//!
//! Called by [`document`](super::document) and where a line of the file is printed. Byte order marks and UTF-16 are decoded
//! here, and characters that YAML does not allow end the text, so that the scanner receives only allowed ones.

use std::borrow::Cow;

use text::diagnostics::{FileError, Place, is_break};

pub(crate) struct Text<'f> {
    /// The text up to the first character that is not allowed.
    pub allowed: Cow<'f, str>,
    /// The error of that character. It only matters if the first document reaches that far.
    pub(super) stop: Option<FileError>,
}

impl Text<'_> {
    pub(crate) fn is_complete(&self) -> bool {
        self.stop.is_none()
    }
}

pub(crate) fn decode(bytes: &[u8]) -> Text<'_> {
    let (text, broken) = match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => from_utf8(rest),
        [0xff, 0xfe, rest @ ..] => from_utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => from_utf16(rest, u16::from_be_bytes),
        _ => from_utf8(bytes),
    };
    let forbidden = text.char_indices().find(|(_, c)| !is_allowed(*c));
    let Some((at, character)) = forbidden else {
        let stop = broken.map(|error| {
            FileError::at(place_of(&text, text.len()), error).with_help("save the file as UTF-8")
        });
        return Text { allowed: text, stop };
    };
    let message = format!("the control character U+{:04X} is not allowed", u32::from(character));
    let help = format!("write it as \"\\u{:04x}\", in double quotes", u32::from(character));
    let stop = Some(FileError::at(place_of(&text, at), message).with_help(help));
    let allowed = match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.get(..at).unwrap_or(text)),
        Cow::Owned(text) => Cow::Owned(text.get(..at).unwrap_or(&text).to_owned()),
    };
    Text { allowed, stop }
}

/// The error of a text that is not YAML because it is a template: one with `{{` outside of quotes and comments, where no
/// YAML has it.
pub fn template(bytes: &[u8]) -> Option<FileError> {
    let text = decode(bytes).allowed;
    let is_plain = |at: usize| {
        let line = text.get(..at).unwrap_or_default().rsplit(is_break).next().unwrap_or_default();
        !line.contains(['"', '\'', '#'])
    };
    let at = text.match_indices("{{").map(|(at, _)| at).take(100).find(|at| is_plain(*at))?;
    let message = "this is a template of Helm, not YAML: it contains `{{`";
    let help = "check the rendered file: `helm template` prints it";
    Some(FileError::at(place_of(&text, at), message).with_help(help))
}

/// The text up to the first invalid byte, and its error.
fn from_utf8(bytes: &[u8]) -> (Cow<'_, str>, Option<String>) {
    let Some(chunk) = bytes.utf8_chunks().next() else { return (Cow::Borrowed(""), None) };
    let broken = chunk.invalid().first();
    (Cow::Borrowed(chunk.valid()), broken.map(|byte| format!("invalid UTF-8: byte 0x{byte:02x}")))
}

/// The text up to the first invalid code unit, and its error.
fn from_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> (Cow<'_, str>, Option<String>) {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(pairs.len());
    for character in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        match character {
            Ok(character) => text.push(character),
            Err(lone) => {
                let error = format!("invalid UTF-16: unpaired surrogate 0x{:04x}", lone.unpaired_surrogate());
                return (Cow::Owned(text), Some(error));
            }
        }
    }
    (Cow::Owned(text), odd.first().map(|_| "invalid UTF-16: the file ends within a character".to_owned()))
}

/// YAML 1.1's printable characters.
fn is_allowed(character: char) -> bool {
    matches!(character,
        '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}'
        | '\u{10000}'..='\u{10ffff}')
}

pub(super) fn place_of(text: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let breaks = before.matches(is_break).count().saturating_sub(before.matches("\r\n").count());
    let on_line = before.chars().rev().take_while(|character| !is_break(*character)).count();
    let from_one = |from_zero: usize| u32::try_from(from_zero + 1).unwrap_or(u32::MAX);
    Place { line: from_one(breaks), column: from_one(on_line) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(bytes: &[u8]) -> Option<(u32, u32, String)> {
        let stop = decode(bytes).stop?;
        let place = stop.place.unwrap();
        Some((place.line, place.column, stop.message))
    }

    #[test]
    fn byte_order_marks_vanish_and_utf16_is_read() {
        for bytes in [&b"a: 1"[..], b"\xef\xbb\xbfa: 1", b"\xff\xfea\0:\0 \x001\0", b"\xfe\xff\0a\0:\0 \x001"]
        {
            assert_eq!(decode(bytes).allowed, "a: 1", "{bytes:?}");
        }
    }

    #[test]
    fn reports_an_invalid_character_with_its_place() {
        let found = |text: &[u8]| stop(text).map(|(line, column, _)| (line, column));
        assert_eq!(found(b"a: 1\r\nb\xc3\xa9: \x07"), Some((2, 5)));
        assert_eq!(found(b"a: \xff"), Some((1, 4)));
        assert_eq!(found(b"\xff\xfea\0\0\xd8"), Some((1, 2)));
        assert_eq!(found(b"a: \xc3"), Some((1, 4)));
        assert_eq!(found("a: \u{e9}\u{85}b: \t\u{1f600}".as_bytes()), None);
    }
}
