//! Keeps from the scanner what it cannot bear.
//!
//! `libyaml-safer` ends the program at a tag that is followed by a comma (`[!a,b]`). A character that
//! stands nowhere else in the text is put behind each `!` that may begin such a tag: a tag then ends in
//! a plain error, which yaml.v2 gives too, and everywhere else the character is part of some text, from
//! which it is taken out again.

use std::borrow::Cow;

use libyaml_safer::Mark;

use super::super::diagnostic::is_break;

/// A text that the scanner can bear.
pub(super) struct Guarded<'t> {
    /// The text with its markers.
    pub(super) text: Cow<'t, str>,
    marker: char,
    /// Where the markers stand, in bytes.
    markers: Vec<usize>,
    /// Where lines begin, in bytes; only known when there are markers.
    lines: Vec<usize>,
}

impl<'t> Guarded<'t> {
    /// Guards a text; nearly all need nothing.
    pub(super) fn of(text: &'t str) -> Self {
        let suspects = suspects(text);
        let unused = ('\u{e000}'..='\u{f8ff}').find(|marker| !suspects.is_empty() && !text.contains(*marker));
        let Some(marker) = unused else {
            return Self {
                text: Cow::Borrowed(text),
                marker: '\u{e000}',
                markers: Vec::new(),
                lines: Vec::new(),
            };
        };
        let mut marked = String::with_capacity(text.len() + suspects.len() * marker.len_utf8());
        let mut markers = Vec::with_capacity(suspects.len());
        let mut from = 0;
        for suspect in suspects {
            marked.push_str(&text[from..=suspect]);
            markers.push(marked.len());
            marked.push(marker);
            from = suspect + 1;
        }
        marked.push_str(&text[from..]);
        let lines = line_starts(&marked);
        Self { text: Cow::Owned(marked), marker, markers, lines }
    }

    /// True when the scanner ended at a marker, so at a tag that a comma follows.
    pub(super) fn is_marker(&self, mark: Mark) -> bool {
        usize::try_from(mark.index).is_ok_and(|at| self.markers.binary_search(&at).is_ok())
    }

    /// The line and column of a mark in the text without markers, from 0.
    pub(super) fn unguarded(&self, mark: Mark) -> (u64, u64) {
        let before = |at: usize| self.markers.partition_point(|marker| *marker < at) as u64;
        let index = usize::try_from(mark.index).unwrap_or(usize::MAX);
        let line = usize::try_from(mark.line).ok().and_then(|line| self.lines.get(line));
        let on_line = line.map_or(0, |line| before(index) - before(*line).min(before(index)));
        (mark.line, mark.column.saturating_sub(on_line))
    }

    /// Takes the markers out of a scalar.
    pub(super) fn restore(&self, value: &mut String) {
        if !self.markers.is_empty() {
            value.retain(|character| character != self.marker);
        }
    }
}

/// The bytes at which stands a `!` that may begin a tag with a comma behind it, in order. No byte is
/// looked at more than a few times.
fn suspects(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut suspects = Vec::new();
    // All that stands in one run of a tag's characters ends where the run does.
    let mut plain_run_end = 0;
    for (at, _) in text.match_indices('!') {
        let end = if bytes.get(at + 1) == Some(&b'<') {
            // What stands between the brackets is a run of its own, which may hold commas.
            let end = run_end(bytes, at + 2, b",[]");
            if bytes.get(end) == Some(&b'>') { end + 1 } else { end }
        } else {
            if at >= plain_run_end {
                plain_run_end = run_end(bytes, at, b"");
            }
            plain_run_end
        };
        if bytes.get(end) == Some(&b',') {
            suspects.push(at);
        }
    }
    suspects
}

/// Where the characters end that a tag is made of.
fn run_end(bytes: &[u8], from: usize, more: &[u8]) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_;/?:@&=+$.%!~*'()".contains(byte);
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().position(|byte| !is_part(byte) && !more.contains(byte)).unwrap_or(rest.len())
}

fn line_starts(text: &str) -> Vec<usize> {
    let mut starts = vec![0];
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let within = character == '\r' && characters.peek().is_some_and(|(_, next)| *next == '\n');
        if is_break(character) && !within {
            starts.push(at + character.len_utf8());
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::super::{Content, read};

    fn fault(text: &str) -> (u32, u32, String) {
        let fault = read(text.as_bytes()).unwrap_err();
        let place = fault.place.unwrap();
        (place.line, place.column, fault.message)
    }

    #[test]
    fn a_comma_behind_a_tag_is_refused_with_its_place() {
        for (text, line, column) in [
            ("[!a,b]", 1, 2),
            ("{a: !!str,b: 1}", 1, 5),
            ("[x, !<u,v>,y]", 1, 5),
            ("['q!', '!q,',\n !a,b]", 2, 2),
            ("[{key: !k, !k, value: \"t\\t?", 1, 8),
        ] {
            let message = "a tag must be followed by a blank".to_owned();
            assert_eq!(fault(text), (line, column, message), "{text}");
        }
    }

    #[test]
    fn the_same_characters_in_texts_come_through_unchanged() {
        for (text, value) in [
            ("'Hello!, you'", "Hello!, you"),
            ("- a!b,c!,", "a!b,c!,"),
            ("[ 'a!', b]", "a!"),
            ("[a !<x>, b]", "a !<x>"),
            ("|\n !a,b", "!a,b"),
            ("C:\\", "C:\\"),
            ("\"a!,\\u0041\"", "a!,A"),
        ] {
            let root = read(text.as_bytes()).unwrap().root.unwrap();
            let first = match &root.node.content {
                Content::List(items) => &items[0].node,
                _ => &root.node,
            };
            let Content::Scalar(scalar) = &first.content else { panic!("{text} is no scalar") };
            assert_eq!(scalar.text, value, "{text}");
        }
    }

    #[test]
    fn places_behind_a_marker_are_those_of_the_file() {
        let root = read("\r\n['!,', 'b!,', c]".as_bytes()).unwrap().root.unwrap();
        let Content::List(items) = &root.node.content else { panic!("no list") };
        let places: Vec<_> =
            items.iter().map(|item| (item.node.place.line, item.node.place.column)).collect();
        assert_eq!(places, [(2, 2), (2, 8), (2, 15)]);
    }
}
