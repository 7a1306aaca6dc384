//! Bounds on texts that came from outside, used by every module that writes an error into a log, a span or
//! an answer: whatever a peer sent, no more than [`LONGEST`] bytes of it are kept or shown.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::fmt::{self, Write};

/// Bytes of an error, or of a name in one, that are kept. Enough to recognise what was sent.
pub const LONGEST: usize = 256;

/// The beginning of a text, cut between two characters: at most [`LONGEST`] bytes.
#[must_use]
pub fn cut(text: &str) -> &str {
    beginning(text, LONGEST)
}

/// The beginning of a text, without a copy of one that is short enough.
#[must_use]
pub fn cut_owned(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(cut(&text).len());
        text.shrink_to_fit();
    }
    text
}

/// The beginning of what is displayed. What comes behind it is never formatted.
#[must_use]
pub fn cut_display(value: impl fmt::Display) -> String {
    let mut text = Bounded(String::new());
    // The only error is that the text is full.
    let _ = write!(text, "{value}");
    text.0
}

/// Takes as much as fits.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = LONGEST.saturating_sub(self.0.len());
        let taken = beginning(more, room);
        self.0.push_str(taken);
        if taken.len() < more.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// As many whole characters as fit into so many bytes.
#[must_use]
pub fn beginning(text: &str, bytes: usize) -> &str {
    if bytes >= text.len() {
        return text;
    }
    let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_cut_at_the_bound_and_not_below() {
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

    proptest! {
        #[test]
        fn every_way_to_cut_keeps_whole_characters_and_the_same_of_them(text in "\\PC{0,300}") {
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
