//! libyaml's events for one text, with their positions in the file.
//!
//! Only [`document`](super::document) uses it. Nothing else uses libyaml's marks.

use std::io::{BufReader, Chain, Read};

use libyaml_safer::{EventData, Mark, Parser, ScalarStyle};

use super::text::Text;
use text::diagnostics::{FileError, Place, is_break, quoted};

pub(super) struct Event {
    pub(super) place: Place,
    pub(super) data: EventData,
}

pub(super) struct Events<'t> {
    parser: Parser<BufReader<Chain<&'t [u8], &'static [u8]>>>,
    text: &'t Text<'t>,
    /// The beginning and the end of the last quoted text, if it has several lines.
    long_quote: Option<(Mark, Mark)>,
}

/// The number of bytes that the scanner receives at a time; it holds four bytes for each.
const CHUNK: usize = 16 << 10;

/// The scanner panics if a text ends within a line of a block or after a backslash, so a missing line break is added.
const BREAK: &[u8] = b"\n";

/// The most frequent reason for an unknown alias.
pub(super) const QUOTE_STAR: &str =
    "a `*` at the beginning refers to an anchor; a wildcard must be quoted: '*'";

impl<'t> Events<'t> {
    pub(super) fn new(text: &'t Text<'t>) -> Self {
        let mut parser = Parser::new();
        let missing = if text.allowed.ends_with(is_break) { b"" } else { BREAK };
        parser.set_input(BufReader::with_capacity(CHUNK, text.allowed.as_bytes().chain(missing)));
        Self { parser, text, long_quote: None }
    }

    /// The next event of the document; `None` at its end.
    pub(super) fn next_of_document(&mut self) -> Result<Option<Event>, FileError> {
        let event = self.parser.parse().map_err(|error| self.file_error(&error))?;
        let mut data = event.data;
        match &mut data {
            EventData::StreamEnd | EventData::DocumentEnd { .. } => {
                return match &self.text.stop {
                    Some(stop) if self.is_end(event.start_mark) => Err(stop.clone()),
                    _ => Ok(None),
                };
            }
            EventData::Scalar { value, style, .. } => {
                let is_quoted = matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted);
                self.long_quote = (is_quoted && event.start_mark.line < event.end_mark.line)
                    .then_some((event.start_mark, event.end_mark));
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                // The break that ends this block is the added one.
                if is_block && self.is_end(event.end_mark) && self.ends_within_a_line() {
                    value.truncate(value.strip_suffix('\n').map_or(value.len(), str::len));
                }
            }
            _ => {}
        }
        Ok(Some(Event { place: place_of(event.start_mark), data }))
    }

    /// Where the next document begins, if there is one.
    pub(super) fn remainder(&mut self) -> Option<Place> {
        let start = match self.parser.parse() {
            Ok(event) if matches!(event.data, EventData::DocumentStart { .. }) => event.start_mark,
            Ok(_) => return None,
            // A line with less indentation than the first one ends the document without starting another.
            Err(error) => return error.problem_mark().map(place_of),
        };
        match self.parser.parse().map(|event| event.data) {
            Ok(EventData::Scalar { value, .. }) if value.is_empty() => None,
            _ => Some(place_of(start)),
        }
    }

    /// True for a mark at or after the end of the text.
    fn is_end(&self, mark: Mark) -> bool {
        mark.index >= self.text.allowed.len() as u64
    }

    fn ends_within_a_line(&self) -> bool {
        let last = self.text.allowed.rsplit(is_break).next();
        last.is_some_and(|line| !line.trim().is_empty())
    }

    fn file_error(&self, error: &libyaml_safer::Error) -> FileError {
        let mark = error.problem_mark().unwrap_or_default();
        if let (Some(stop), true) = (&self.text.stop, self.is_end(mark)) {
            return stop.clone();
        }
        let context_mark = error.context_mark();
        if let Some(glued) = self.glued_key(error, mark) {
            return glued;
        }
        let mut message = format!("invalid YAML: {}", error.problem());
        if let (Some(context), Some(began)) = (error.context(), context_mark) {
            message = format!("{message}, {context} that begins at {}", place_of(began));
        }
        let found = usize::try_from(mark.index).ok().and_then(|at| self.text.allowed.get(at..));
        let file_error = FileError::at(place_of(mark), message);
        match found.unwrap_or_default().chars().next() {
            Some('\t') => file_error.with_help("indent with spaces: YAML does not allow tabs"),
            Some(first @ ('@' | '`' | '%')) => {
                file_error.with_help(format!("text that begins with `{first}` must be quoted"))
            }
            _ => match self.help_for(error, mark) {
                Some(help) => file_error.with_help(help),
                None => file_error,
            },
        }
    }

    /// The error of a key without a space after its colon: YAML reads it and the lines below it as one text, and reports the
    /// next line that has a key.
    fn glued_key(&self, error: &libyaml_safer::Error, mark: Mark) -> Option<FileError> {
        const PROBLEMS: [&str; 3] = [
            "mapping values are not allowed in this context",
            "could not find expected ':'",
            // A comment ends the text.
            "did not find expected '-' indicator",
        ];
        PROBLEMS.contains(&error.problem()).then_some(())?;
        let above = usize::try_from(mark.line).ok()?;
        let lines: Vec<&str> = self.text.allowed.lines().take(above).collect();
        for (at, line) in lines.into_iter().enumerate().rev() {
            let item = line.trim_start_matches(['-', ' ']);
            if item.is_empty() || item.starts_with('#') {
                continue;
            }
            // A line without a colon continues a text.
            let Some((key, value)) = item.split_once(':') else { continue };
            let is_key = key.starts_with(|c: char| c.is_ascii_lowercase())
                && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let word = value.split_whitespace().next()?;
            if is_key && value.starts_with(word) && !word.starts_with(['/', ':']) {
                let count = |from_zero: usize| u32::try_from(from_zero + 1).unwrap_or(u32::MAX);
                let column = line.chars().count() - item.chars().count();
                let place = Place { line: count(at), column: count(column) };
                let written = quoted(&format!("{key}:{word}"));
                let error = FileError::at(
                    place,
                    format!("invalid YAML: {written} is a text, not a key with a value"),
                );
                return Some(error.with_help(format!(
                    "put a space after the colon: {}",
                    quoted(&format!("{key}: {word}"))
                )));
            }
            return None;
        }
        None
    }

    /// What to do about an error of the scanner or the parser.
    fn help_for(&self, error: &libyaml_safer::Error, mark: Mark) -> Option<String> {
        if let Some((begin, _)) = self.long_quote.filter(|(_, end)| end.line == mark.line) {
            let begin = place_of(begin);
            return Some(format!(
                "the quote at {begin} is closed only on this line: its own closing quote is missing"
            ));
        }
        let began = error.context_mark().map(place_of);
        match (error.problem(), error.context().unwrap_or_default(), began) {
            ("found unexpected ':'", ..) => Some("put a space after the colon".to_owned()),
            (_, "while scanning an alias", _) => Some(QUOTE_STAR.to_owned()),
            ("found unexpected end of stream", "while scanning a quoted scalar", Some(began)) => {
                Some(format!("close the quote that opens at {began}"))
            }
            ("did not find expected key", _, Some(Place { column, .. })) => Some(format!(
                "the keys of a map begin in one column: indent this line to column {column} for the same map, or \
                 further for a value"
            )),
            ("did not find expected '-' indicator", _, Some(Place { column, .. })) => {
                Some(format!("the items of a list begin in one column: indent its `-` to column {column}"))
            }
            ("could not find expected ':'", ..) => {
                Some("write `key: value`, with a colon and a space".to_owned())
            }
            ("mapping values are not allowed in this context", ..) => Some(
                "indent this line like the keys above it; a text that contains `: ` must be quoted"
                    .to_owned(),
            ),
            ("block sequence entries are not allowed in this context", ..) => {
                Some("begin the list on the next line: `descriptors:`, then `- key: …`".to_owned())
            }
            ("did not find expected ',' or ']'", _, Some(began)) => Some(format!("close the `[` at {began}")),
            ("did not find expected ',' or '}'", _, Some(began)) => {
                Some(format!("close the `{{` at {began}"))
            }
            _ => None,
        }
    }
}

fn place_of(mark: Mark) -> Place {
    let count = |from_zero: u64| u32::try_from(from_zero + 1).unwrap_or(u32::MAX);
    Place { line: count(mark.line), column: count(mark.column) }
}
