//! Protects the scanner from texts that make it panic, or that yaml.v2 reads differently.
//!
//! `libyaml-safer` panics at a tag that is followed by a comma (`[!a,b]`), refuses a colon
//! before the end of an item (`{a: b:}`), which yaml.v2 takes as part of the text, and refuses the escape
//! `\'` between double quotes, which yaml.v2 takes for a `'`. Characters that the file does not use help: a
//! marker after each such `!` and `:`, a placeholder for the backslash before each `'`. Where the `!`
//! begins a tag, the marker ends it in an ordinary error (yaml.v2 would make the comma part of the tag);
//! everywhere else the characters are part of some text, in which they are replaced by the original.

use std::borrow::Cow;

use libyaml_safer::{Mark, ScalarStyle};

use super::{
    super::{diagnostic::is_break, unused},
    Fault,
};

/// A text that is safe for the scanner.
pub(super) struct Guarded<'t> {
    /// The text with its markers and placeholders.
    pub(super) text: Cow<'t, str>,
    marker: char,
    placeholder: char,
    /// The positions of the markers, in bytes.
    markers: Vec<usize>,
    /// Where lines begin, in bytes; only known when there are markers.
    lines: Vec<usize>,
}

impl<'t> Guarded<'t> {
    /// Protects a text; most need no change.
    pub(super) fn of(text: &'t str) -> Result<Self, Fault> {
        let suspects = suspects(text);
        if suspects.len() > MAX_SUSPECTS {
            let message = format!(
                "the file has more than {MAX_SUSPECTS} colons before commas, tags before commas and escaped \
                 quotes"
            );
            return Err(Fault { place: None, message, help: None });
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
        let mut unused = unused::characters([text]);
        for character in [&mut marker, &mut placeholder] {
            let message = "the file holds every character of Unicode's private area";
            *character = unused.next().ok_or_else(|| Fault {
                place: None,
                message: message.to_owned(),
                help: None,
            })?;
        }
        let added = suspects.len().saturating_mul(marker.len_utf8());
        let mut guarded = String::with_capacity(text.len().saturating_add(added));
        let mut markers = Vec::with_capacity(suspects.len());
        let mut from = 0;
        for suspect in suspects {
            let next = suspect.saturating_add(1);
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

    /// True when the scanner ended at a marker, so at a tag that a comma follows.
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

    /// Restores the original text of a scalar.
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

/// The maximum number of guarded bytes: files have a handful, and each costs 30 bytes.
const MAX_SUSPECTS: usize = 100_000;

/// The bytes that need a marker or a placeholder, in order.
fn suspects(text: &str) -> Vec<usize> {
    let mut suspects = tags_before_commas(text);
    suspects.extend(colons_within_texts(text).take(MAX_SUSPECTS + 1));
    suspects.extend(escaped_quotes(text).take(MAX_SUSPECTS + 1));
    suspects.sort_unstable();
    suspects
}

/// Each backslash that would escape a `'`: one that is not itself escaped.
fn escaped_quotes(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    text.match_indices("\\'").map(|(at, _)| at).filter(move |&at| {
        let before = bytes.get(..at).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
    })
}

/// Each `!` that may begin a tag with a comma behind it. No byte is looked at more than a few times.
fn tags_before_commas(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut suspects = Vec::new();
    // All within one run of a tag's characters ends where the run ends.
    let mut plain_run_end = 0;
    for (at, _) in text.match_indices('!') {
        let end = if bytes.get(at.saturating_add(1)) == Some(&b'<') {
            // The text between the brackets is a run of its own, which may have commas.
            let end = run_end(bytes, at.saturating_add(2), b",[]");
            end.saturating_add(usize::from(bytes.get(end) == Some(&b'>')))
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

/// Each `:` that ends a text without quotes and precedes the end of an item. After a quote or a
/// bracket, an anchor or an alias it would separate a key from its value.
fn colons_within_texts(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    text.match_indices(':').map(|(at, _)| at).filter(move |&at| {
        let (before, behind) = bytes.split_at_checked(at).unwrap_or_default();
        matches!(behind, [_, b',' | b']' | b'}', ..])
            && before.last().is_some_and(|byte| !byte.is_ascii_whitespace() && !b"'\"[]{},".contains(byte))
            && {
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
                !matches!(before.iter().rev().find(|byte| !is_name(byte)), Some(b'*' | b'&'))
            }
    })
}

/// The end of the characters that a tag may have.
fn run_end(bytes: &[u8], from: usize, more: &[u8]) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_;/?:@&=+$.%!~*'()".contains(byte);
    let rest = bytes.get(from..).unwrap_or_default();
    let length = rest.iter().position(|byte| !is_part(byte) && !more.contains(byte)).unwrap_or(rest.len());
    from.saturating_add(length)
}

fn line_starts(text: &str) -> Vec<usize> {
    let mut starts = vec![0];
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let within = character == '\r' && characters.peek().is_some_and(|(_, next)| *next == '\n');
        if is_break(character) && !within {
            starts.push(at.saturating_add(character.len_utf8()));
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::super::{Content, read_without_bound as read};

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
            let message = "a tag must be followed by a space".to_owned();
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
            assert_eq!(scalar.text, value, "{text}");
        }
    }

    #[test]
    fn a_colon_behind_a_quote_or_an_alias_still_separates() {
        for text in ["{\"a\":, 'b':}", "{? &a b : c, *a :}"] {
            let root = read(text.as_bytes()).unwrap().root.unwrap();
            let Content::Map(pairs) = &root.node.content else { panic!("{text} is no map") };
            assert_eq!(pairs.len(), 2, "{text}");
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
