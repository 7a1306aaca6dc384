//! Protects the scanner from texts that make it panic, or that yaml.v2 reads differently.
//!
//! `libyaml-safer` panics at a tag that is followed by a comma (`[!a,b]`), rejects a colon before the end of an item
//! (`{a: b:}`), which is part of the text in yaml.v2, and rejects the escape `\'` in double quotes, which is a `'` in
//! yaml.v2. So characters that the file does not use are inserted: a marker after each such `!` and `:`, and a placeholder
//! for the backslash before each `'`. If the `!` begins a tag, the marker causes an ordinary error (in yaml.v2 the comma
//! is part of the tag); everywhere else they are in a text, whose original is restored.

use std::{borrow::Cow, collections::HashSet};

use libyaml_safer::{Mark, ScalarStyle};

use text::diagnostics::{FileError, is_break};

pub(super) struct Guarded<'t> {
    /// The text with its markers and placeholders.
    pub(super) text: Cow<'t, str>,
    marker: char,
    placeholder: char,
    /// The positions of the markers, in bytes.
    markers: Vec<usize>,
    /// Where lines begin, in bytes; empty without markers.
    lines: Vec<usize>,
}

impl<'t> Guarded<'t> {
    /// Protects a text. Most texts stay unchanged.
    pub(super) fn of(text: &'t str) -> Result<Self, FileError> {
        let suspects = suspects(text);
        if suspects.len() > MAX_SUSPECTS {
            let message = format!(
                "the file has more than {MAX_SUSPECTS} colons before commas, tags before commas and escaped \
                 quotes"
            );
            return Err(FileError::new(message));
        }
        let (mut marker, mut placeholder) = ('\0', '\0');
        if suspects.is_empty() {
            return Ok(Self {
                text: Cow::Borrowed(text),
                marker,
                placeholder,
                markers: Vec::new(),
                lines: Vec::new(),
            });
        }
        let mut unused = unused_characters([text]);
        for character in [&mut marker, &mut placeholder] {
            let message = "the file contains every character of Unicode's private use areas";
            *character = unused.next().ok_or_else(|| FileError::new(message))?;
        }
        let added = suspects.len() * marker.len_utf8();
        let mut guarded = String::with_capacity(text.len() + added);
        let mut markers = Vec::with_capacity(suspects.len());
        let mut from = 0;
        for suspect in suspects {
            let next = suspect + 1;
            guarded.push_str(text.get(from..suspect).unwrap_or_default());
            match text.get(suspect..next).unwrap_or_default() {
                "\\" => guarded.push(placeholder),
                mark => {
                    guarded.push_str(mark);
                    markers.push(guarded.len());
                    guarded.push(marker);
                }
            }
            from = next;
        }
        guarded.push_str(text.get(from..).unwrap_or_default());
        let lines = if markers.is_empty() { Vec::new() } else { line_starts(&guarded) };
        Ok(Self { text: Cow::Owned(guarded), marker, placeholder, markers, lines })
    }

    /// True if the mark is a marker: the scanner failed at a tag before a comma.
    pub(super) fn is_marker(&self, mark: Mark) -> bool {
        usize::try_from(mark.index).is_ok_and(|at| self.markers.binary_search(&at).is_ok())
    }

    /// The line and column of a mark in the text without markers, from 0.
    pub(super) fn unguarded(&self, mark: Mark) -> (u64, u64) {
        let before = |at: usize| self.markers.partition_point(|marker| *marker < at) as u64;
        let index = usize::try_from(mark.index).unwrap_or(usize::MAX);
        let line = usize::try_from(mark.line).ok().and_then(|line| self.lines.get(line));
        let on_line = line.map_or(0, |line| before(index).saturating_sub(before(*line)));
        (mark.line, mark.column.saturating_sub(on_line))
    }

    pub(super) fn restore(&self, value: &mut String, style: ScalarStyle) {
        if matches!(self.text, Cow::Borrowed(_)) {
            return;
        }
        value.retain(|character| character != self.marker);
        if value.contains(self.placeholder) {
            let meant = if style == ScalarStyle::DoubleQuoted { "" } else { "\\" };
            *value = value.replace(self.placeholder, meant);
        }
    }
}

/// Characters of Unicode's private use areas that none of these texts contains. There are 72,000.
pub(in super::super) fn unused_characters<'t>(
    texts: impl IntoIterator<Item = &'t str>,
) -> impl Iterator<Item = char> {
    let is_private = |c: &char| matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..);
    let used: HashSet<char> = texts.into_iter().flat_map(str::chars).filter(is_private).collect();
    ('\u{e000}'..='\u{f8ff}')
        .chain('\u{f0000}'..='\u{ffffd}')
        .filter(move |character| !used.contains(character))
}

/// Maximum number of guarded bytes. Files have a handful, and each takes 30 bytes.
const MAX_SUSPECTS: usize = 100_000;

/// The bytes that need a marker or a placeholder, in order.
fn suspects(text: &str) -> Vec<usize> {
    let mut suspects = tags_before_commas(text);
    suspects.extend(colons_within_texts(text).take(MAX_SUSPECTS + 1));
    suspects.extend(escaped_quotes(text).take(MAX_SUSPECTS + 1));
    suspects.sort_unstable();
    suspects
}

/// Each backslash that escapes a `'`: one that is not escaped itself.
fn escaped_quotes(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    text.match_indices("\\'").map(|(at, _)| at).filter(move |&at| {
        let before = bytes.get(..at).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
    })
}

/// Each `!` that may begin a tag before a comma. The time is linear in the length of the text.
fn tags_before_commas(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut suspects = Vec::new();
    // Tags in one run of a tag's characters end with the run.
    let mut plain_run_end = 0;
    for (at, _) in text.match_indices('!') {
        let end = if bytes.get(at + 1) == Some(&b'<') {
            // The text in brackets is a separate run, which may have commas.
            let end = run_end(bytes, at + 2, b",[]");
            end + usize::from(bytes.get(end) == Some(&b'>'))
        } else {
            if at >= plain_run_end {
                plain_run_end = run_end(bytes, at, b"");
            }
            plain_run_end
        };
        if bytes.get(end) == Some(&b',') {
            suspects.push(at);
            if suspects.len() > MAX_SUSPECTS {
                break;
            }
        }
    }
    suspects
}

/// Each `:` between a plain text and the end of an item. After a quote, a bracket, an anchor or an alias, a colon separates
/// a key from its value.
fn colons_within_texts(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    text.match_indices(':').map(|(at, _)| at).filter(move |&at| {
        let (before, after) = bytes.split_at_checked(at).unwrap_or_default();
        matches!(after, [_, b',' | b']' | b'}', ..])
            && before.last().is_some_and(|byte| !byte.is_ascii_whitespace() && !b"'\"[]{},".contains(byte))
            && {
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
                !matches!(before.iter().rev().find(|byte| !is_name(byte)), Some(b'*' | b'&'))
            }
    })
}

/// The end of a run of characters that a tag may have.
fn run_end(bytes: &[u8], from: usize, more: &[u8]) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_;/?:@&=+$.%!~*'()".contains(byte);
    let rest = bytes.get(from..).unwrap_or_default();
    let length = rest.iter().position(|byte| !is_part(byte) && !more.contains(byte)).unwrap_or(rest.len());
    from + length
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
    use super::{
        super::{Content, read_without_bound as read},
        unused_characters,
    };

    fn fault(text: &str) -> (u32, u32, String) {
        let fault = read(text.as_bytes()).unwrap_err();
        let place = fault.place.unwrap();
        (place.line, place.column, fault.message)
    }

    #[test]
    fn rejects_a_comma_after_a_tag_with_its_place() {
        for (text, line, column) in [
            ("[!a,b]", 1, 2),
            ("{a: !!str,b: 1}", 1, 5),
            ("[x, !<u,v>,y]", 1, 5),
            ("['q!', '!q,',\n !a,b]", 2, 2),
            ("[{key: !k, !k, value: \"t\\t?", 1, 8),
        ] {
            let message = "a tag must be followed by a space".to_owned();
            assert_eq!(fault(text), (line, column, message), "{text}");
        }
    }

    #[test]
    fn keeps_the_same_characters_in_texts() {
        for (text, value) in [
            ("'Hello!, you'", "Hello!, you"),
            ("- a!b,c!,", "a!b,c!,"),
            ("[ 'a!', b]", "a!"),
            ("[a !<x>, b]", "a !<x>"),
            ("|\n !a,b", "!a,b"),
            ("C:\\", "C:\\"),
            ("\"a!,\\u0041\"", "a!,A"),
            ("[a:, b:]", "a:"),
            ("['a:', b]", "a:"),
            ("- a:}", "a:}"),
            (r#""it\'s \\'""#, r"it's \'"),
            (r"'C:\'", r"C:\"),
            (r"a\'b", r"a\'b"),
        ] {
            let root = read(text.as_bytes()).unwrap().root.unwrap();
            let first = match &root.node.content {
                Content::List(items) => &items[0].node,
                _ => &root.node,
            };
            let Content::Scalar(scalar) = &first.content else { panic!("{text} is no scalar") };
            assert_eq!(&*scalar.text, value, "{text}");
        }
    }

    #[test]
    fn a_colon_after_a_quote_or_an_alias_is_a_separator() {
        for text in ["{\"a\":, 'b':}", "{? &a b : c, *a :}"] {
            let root = read(text.as_bytes()).unwrap().root.unwrap();
            let Content::Map(pairs) = &root.node.content else { panic!("{text} is no map") };
            assert_eq!(pairs.len(), 2, "{text}");
        }
    }

    #[test]
    fn places_after_a_marker_are_those_of_the_file() {
        let root = read("\r\n['!,', 'b!,', c]".as_bytes()).unwrap().root.unwrap();
        let Content::List(items) = &root.node.content else { panic!("no list") };
        let places: Vec<_> = items.iter().map(|item| (item.place.line, item.place.column)).collect();
        assert_eq!(places, [(2, 2), (2, 8), (2, 15)]);
    }

    #[test]
    fn used_characters_are_left_out() {
        let first: Vec<char> = unused_characters(["a\u{e000}", "\u{e002}"]).take(2).collect();
        assert_eq!(first, ['\u{e001}', '\u{e003}']);
        let all: String = unused_characters([]).collect();
        assert_eq!(unused_characters([&*all]).next(), None);
    }
}
