//! Text that people write and read.
//!
//! This module cuts untrusted text in errors, logs, spans and responses: at most [`LONGEST`] bytes of it are kept, and
//! none of them controls a terminal. [`bytes`] escapes what is not UTF-8, [`entries`] is the notation of descriptors (`key=value,key`), [`duration`] that of
//! durations (`1h30m`), [`InvalidValue`] the error of a value that cannot be used, and [`named!`] declares an enum with
//! the name of each variant. [`diagnostics`] are errors and warnings about files, [`spelling`] finds the name that was meant,
//! and [`shell`] quotes words of commands.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice))]

pub mod bytes;
pub mod diagnostics;
pub mod duration;
pub mod entries;
mod invalid;
mod named;
pub mod shell;
pub mod spelling;

pub use invalid::InvalidValue;

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

/// Maximum size of a kept error, or of a name in one, in bytes: enough to recognise what was sent.
pub const LONGEST: usize = 256;

/// True for control characters, and for those that are invisible or change the direction of a text.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// A number in groups of three digits.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The text for a terminal: unprintable characters are escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() * 2);
    for character in text.chars() {
        if is_unprintable(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown.into()
}

/// JSON for a terminal: unprintable characters, which are in its texts, are escaped as JSON does. Lines stay.
pub fn printable_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_unprintable(character) {
            shown.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        }
    }
    shown
}

/// The beginning of a text, up to [`LONGEST`] bytes, without a partial character.
pub fn cut(text: &str) -> &str {
    beginning(text, LONGEST)
}

/// As [`cut`], without copying a text that is short enough.
pub fn cut_owned(text: String) -> String {
    // A copy: what is truncated keeps its capacity.
    if text.len() > LONGEST { cut(&text).to_owned() } else { text }
}

/// As [`cut`], of a displayed value. The rest is not formatted.
pub fn cut_display(value: impl fmt::Display) -> String {
    let mut text = Bounded(String::new());
    // The only error is that the limit was reached.
    let _ = write!(text, "{value}");
    text.0
}

/// A text of at most [`LONGEST`] bytes.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = LONGEST - self.0.len();
        let taken = beginning(more, room);
        self.0.push_str(taken);
        if taken.len() < more.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The beginning of a text, up to this many bytes, without a partial character.
#[inline]
pub fn beginning(text: &str, bytes: usize) -> &str {
    if bytes >= text.len() {
        return text;
    }
    let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

pub fn hex<'b>(bytes: impl Iterator<Item = &'b u8>) -> String {
    bytes.fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_cut_above_the_limit_only() {
        for length in [0, 1, LONGEST - 1, LONGEST] {
            let text = "x".repeat(length);
            assert_eq!(
                (cut(&text), cut_owned(text.clone()), cut_display(&text)),
                (&*text, text.clone(), text.clone())
            );
        }
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(
            (cut(&long).len(), cut_owned(long.clone()).len(), cut_display(&long).len()),
            (256, 256, 256)
        );
    }

    #[test]
    fn unprintable_characters_are_escaped() {
        for (text, expected) in [
            ("user=ann, \u{fc} \u{1f600} \\n", "user=ann, \u{fc} \u{1f600} \\n"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[2J\u{7}\0\u{7f}\u{9b}1m", "\\u{1b}[2J\\u{7}\\u{0}\\u{7f}\\u{9b}1m"),
            ("nna\u{202e}ann\u{2066}\u{feff}\u{2028}", "nna\\u{202e}ann\\u{2066}\\u{feff}\\u{2028}"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }

    proptest! {
        #[test]
        fn every_way_of_cutting_keeps_the_same_complete_characters(text in "\\PC{0,300}") {
            let expected: String = text
                .char_indices()
                .take_while(|(at, character)| at + character.len_utf8() <= LONGEST)
                .map(|(_, character)| character)
                .collect();
            prop_assert_eq!(cut(&text), &expected);
            prop_assert_eq!(&cut_owned(text.clone()), &expected);
            prop_assert_eq!(&cut_display(&text), &expected);
        }
    }
}
