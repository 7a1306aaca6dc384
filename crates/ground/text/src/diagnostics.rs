//! Errors and warnings about rules files, and their collection while a file or a resource is compiled.
//!
//! A [`Diagnostic`] is self-contained: the place, the value seen, what is expected, and what to do. `tollgate check` prints
//! it like a compiler; the service logs it on one line. An invalid value that many aliases share is reported once, and
//! beyond a bound diagnostics are only counted, so that a broken file does not fill the log.

use std::{collections::HashSet, fmt};

use crate::{cut_display, cut_owned, printable};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Whether the file can be served.
    pub severity: Severity,
    pub file: String,
    /// The place in the file; `None` for the complete file.
    pub place: Option<Place>,
    /// The path to the value, such as `descriptors[0].rate_limit.unit`; empty for the complete file.
    pub path: String,
    pub message: String,
    pub help: Option<String>,
}

impl Diagnostic {
    /// About a complete file, without help.
    pub fn of_file(severity: Severity, file: String, message: String) -> Self {
        Self { severity, file, place: None, path: String::new(), message, help: None }
    }
}

crate::named! {
    /// Whether rules with this diagnostic can be served.
    #[derive(PartialOrd, Ord)]
    pub enum Severity {
        Error = "error",
        /// They can, but probably mean something else.
        Warning = "warning",
        /// What was not judged, or what a change would do.
        Note = "note",
    }
}

/// A place in a file, counted from 1 as in editors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Place {
    pub line: u32,
    pub column: u32,
}

impl Diagnostic {
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The diagnostic in several lines, with the line of the source, in which every line break is `\n`:
/// `SourceFile::readable`.
///
/// ```text
/// error: unknown unit `hours`
///   --> a.yaml:6:13
///    |
///  6 |       unit: hours
///    |             ^
///    = at: descriptors[0].rate_limit.unit
///    = help: did you mean `hour`?
/// ```
pub fn render(diagnostic: &Diagnostic, source: Option<&str>) -> String {
    let Diagnostic { severity, file, place, path, message, help } = diagnostic;
    let number = place.map(|place| place.line.to_string()).unwrap_or_default();
    let margin = " ".repeat(number.len() + 2);
    let at = place.map(|Place { line, column }| format!(":{line}:{column}")).unwrap_or_default();
    let mut lines =
        vec![format!("{severity}: {}", printable(message)), format!("{margin}--> {}{at}", printable(file))];
    if let (Some(place), Some(source)) = (place, source)
        && let Some((line, caret)) = excerpt(source, *place)
    {
        let blanks = " ".repeat(caret);
        lines.extend([format!("{margin}|"), format!(" {number} | {line}"), format!("{margin}| {blanks}^")]);
    }
    if !path.is_empty() {
        lines.push(format!("{margin}= at: {}", printable(path)));
    }
    lines.extend(help.iter().map(|help| format!("{margin}= help: {}", printable(help))));
    lines.join("\n") + "\n"
}

/// The number of characters of a long line that are printed, and those of them before the caret.
const SHOWN: usize = 100;
const SHOWN_BEFORE: usize = 60;

/// Longer lines are generated; searching them for each of many diagnostics would take too long.
const LAST_SHOWN_COLUMN: usize = 10_000;

/// An excerpt of the line, and the column of the caret in it. `None` for an empty line, such as the one after the end of
/// the file.
fn excerpt(source: &str, place: Place) -> Option<(String, usize)> {
    let line = source.split('\n').nth(usize::try_from(place.line).ok()?.checked_sub(1)?)?.trim_end();
    let column = usize::try_from(place.column).ok()?.checked_sub(1)?;
    if column > LAST_SHOWN_COLUMN || line.is_empty() {
        return None;
    }
    let skipped = column.saturating_sub(SHOWN_BEFORE);
    let mut characters = line.chars().skip(skipped);
    let mut shown = String::from(if skipped > 0 { "…" } else { "" });
    let mut caret = None;
    for (at, character) in characters.by_ref().take(SHOWN).enumerate() {
        if at == column - skipped {
            caret = Some(shown.chars().count());
        }
        match character {
            // A tab would move the caret.
            '\t' => shown.push(' '),
            _ => shown.push_str(&printable(character.encode_utf8(&mut [0; 4]))),
        }
    }
    // It may be behind the end of the line.
    let caret = caret.unwrap_or_else(|| column - skipped + usize::from(skipped > 0));
    shown.truncate(shown.trim_end().len());
    if characters.next().is_some() {
        shown.push('…');
    }
    Some((shown, caret))
}

pub fn is_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Place { line, column }) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}: {}", self.severity, self.message)?;
        if !self.path.is_empty() {
            write!(f, " (at {})", self.path)?;
        }
        self.help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Maximum number of listed diagnostics of one file.
const MAX_DIAGNOSTICS: usize = 500;

#[derive(Debug)]
pub struct Diagnostics {
    pub kind: InputKind,
    file: String,
    found: Vec<Diagnostic>,
    known: HashSet<(Option<Place>, String)>,
    left_out: usize,
    has_errors: bool,
    /// Warn about extensions, which the Go service rejects.
    portable: bool,
    /// See `CompileOptions::strict`.
    pub strict: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputKind {
    File,
    /// A message of a control plane, without lines.
    Resource,
}

impl InputKind {
    pub fn name(self) -> &'static str {
        if self == Self::File { "file" } else { "resource" }
    }
}

/// The path from the top of a file to a value.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    File,
    Key(&'a Path<'a>, &'a str),
    /// An item of a list, counted from 0.
    Item(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub fn key(&'a self, key: &'a str) -> Self {
        Path::Key(self, key)
    }

    pub fn item(&'a self, at: usize) -> Self {
        Path::Item(self, at)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::File => Ok(()),
            Path::Key(Path::File, key) => write!(f, "{}", key.escape_debug()),
            Path::Key(above, key) => write!(f, "{above}.{}", key.escape_debug()),
            Path::Item(above, at) => write!(f, "{above}[{at}]"),
        }
    }
}

/// An error that ends the reading of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// Where reading ended; `None` if it did not begin.
    pub place: Option<Place>,
    pub message: String,
    pub help: Option<String>,
}

impl FileError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { place: None, message: message.into(), help: None }
    }

    pub fn at(place: Place, message: impl Into<String>) -> Self {
        Self { place: Some(place), ..Self::new(message) }
    }

    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

impl Diagnostics {
    /// An empty list for a file. With `portable` it includes warnings about extensions.
    pub fn of(file: &str, portable: bool) -> Self {
        Self {
            kind: InputKind::File,
            file: file.to_owned(),
            found: Vec::new(),
            known: HashSet::new(),
            left_out: 0,
            has_errors: false,
            portable,
            strict: false,
        }
    }

    pub fn of_resource(name: &str) -> Self {
        let name = if name.is_empty() {
            "a resource without a name".to_owned()
        } else {
            cut_display(format_args!("resource {}", name.escape_debug()))
        };
        Self { kind: InputKind::Resource, ..Self::of(&name, false) }
    }

    pub fn location(&self, place: Place, path: &Path<'_>) -> String {
        match self.kind {
            InputKind::File => place.to_string(),
            InputKind::Resource => cut_display(path),
        }
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn has_errors(&self) -> bool {
        self.has_errors
    }

    pub fn error(&mut self, place: Place, path: &Path<'_>, message: String, help: Option<String>) {
        self.add(Severity::Error, Some(place), path, message, help);
    }

    pub fn warning(&mut self, place: Place, path: &Path<'_>, message: String, help: Option<String>) {
        self.add(Severity::Warning, Some(place), path, message, help);
    }

    /// Adds a warning about an extension, if they are wanted.
    pub fn unportable(&mut self, place: Place, path: &Path<'_>, what: &str) {
        if self.portable {
            let help = "remove it from files that the Go service reads too";
            self.warning(place, path, format!("the Go service rejects {what}"), Some(help.to_owned()));
        }
    }

    /// Adds a warning about a limit beyond 32 bits, if they are wanted.
    pub fn large_limit(&mut self, place: Place, path: &Path<'_>, number: u64) {
        if self.strict {
            let message =
                format!("the Go service cannot load a limit of {number}: its largest is {}", u32::MAX);
            let help = "keep it, unless a replica of the Go service reads this file too";
            self.warning(place, path, message, Some(help.to_owned()));
        }
    }

    /// Adds a warning about a second document, which is an error where that is wanted.
    pub fn second_document(&mut self, place: Place) {
        let severity = if self.strict { Severity::Error } else { Severity::Warning };
        let message = "only the first document of a file is read, and it ends above this line".to_owned();
        let help = "put each domain in its own file, and begin all its lines in one column".to_owned();
        self.add(severity, Some(place), &Path::File, message, Some(help));
    }

    pub fn file_error(&mut self, error: FileError) {
        self.add(Severity::Error, error.place, &Path::File, error.message, error.help);
    }

    pub fn add(
        &mut self,
        severity: Severity,
        place: Option<Place>,
        path: &Path<'_>,
        message: String,
        help: Option<String>,
    ) {
        // Hundreds of diagnostics are kept, so each is bounded.
        let message = cut_owned(message);
        let help = help.map(cut_owned);
        // An error that is not listed counts too.
        self.has_errors |= severity == Severity::Error;
        if self.found.len() >= MAX_DIAGNOSTICS {
            self.left_out += 1;
        } else if self.known.insert((place, message.clone())) {
            let file = self.file.clone();
            self.found.push(Diagnostic { severity, file, place, path: cut_display(path), message, help });
        }
    }

    pub fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|diagnostic| diagnostic.place);
        if self.kind == InputKind::Resource {
            self.found.iter_mut().for_each(|diagnostic| diagnostic.place = None);
        }
        if self.left_out > 0 {
            let severity = if self.has_errors { Severity::Error } else { Severity::Warning };
            let message =
                format!("{} more problems in this {} are not shown", self.left_out, self.kind.name());
            self.found.push(Diagnostic::of_file(severity, self.file, message));
        }
        self.found
    }
}

/// A text of the file in messages: in backticks, on one line, truncated.
pub fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let shown: String = text.chars().take(SHOWN).collect();
    let cut = if shown.len() < text.len() { "…" } else { "" };
    format!("`{}{cut}`", shown.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnostic(line: u32, column: u32) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: "a.yaml".to_owned(),
            place: Some(Place { line, column }),
            path: "descriptors[0].rate_limit.unit".to_owned(),
            message: "unknown unit `hours`".to_owned(),
            help: Some("did you mean `hour`?".to_owned()),
        }
    }

    #[test]
    fn renders_the_line_with_a_caret() {
        let expected = "error: unknown unit `hours`\n   --> a.yaml:2:7\n   |\n 2 | unit: hours\n   |       ^\n   \
                        = at: descriptors[0].rate_limit.unit\n   = help: did you mean `hour`?\n";
        assert_eq!(render(&diagnostic(2, 7), Some("a: b\r\nunit: hours\r\n")), expected);
    }

    #[test]
    fn renders_no_line_for_a_complete_file() {
        let of_file = Diagnostic { place: None, path: String::new(), help: None, ..diagnostic(1, 1) };
        assert_eq!(render(&of_file, Some("a: b")), "error: unknown unit `hours`\n  --> a.yaml\n");
        assert_eq!(of_file.to_string(), "a.yaml: error: unknown unit `hours`");
    }

    #[test]
    fn a_diagnostic_in_the_log_is_one_line() {
        assert_eq!(
            diagnostic(2, 7).to_string(),
            "a.yaml:2:7: error: unknown unit `hours` (at descriptors[0].rate_limit.unit); did you mean `hour`?"
        );
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let source = format!("{}x{}", "\t".repeat(500), "y".repeat(500));
        let (line, caret) = excerpt(&source, Place { line: 1, column: 501 }).unwrap();
        assert_eq!(line.chars().nth(caret), Some('x'));
        assert_eq!(line.chars().count(), SHOWN + 2);
    }

    #[test]
    fn what_controls_a_terminal_is_escaped_and_keeps_the_caret_in_its_place() {
        let source = "a\u{202e}b\t\u{1b}[2J: x\u{9b}y\n";
        let (line, caret) = excerpt(source, Place { line: 1, column: 11 }).unwrap();
        assert_eq!(line, r"a\u{202e}b \u{1b}[2J: x\u{9b}y");
        assert_eq!(line.chars().nth(caret), Some('x'));
        let evil = Diagnostic { file: "\u{202e}".into(), ..diagnostic(1, 1) };
        assert!(render(&evil, None).contains(r"--> \u{202e}:1:1"));
    }

    #[test]
    fn renders_no_line_beyond_the_source() {
        assert_eq!(excerpt("a\nb\n", Place { line: 4, column: 1 }), None);
        assert_eq!(excerpt("a\nb", Place { line: 2, column: 9 }), Some(("b".to_owned(), 8)));
    }

    const HERE: Place = Place { line: 3, column: 1 };

    #[test]
    fn reports_a_diagnostic_at_one_place_once() {
        let mut diagnostics = Diagnostics::of("a.yaml", false);
        for _ in 0..3 {
            diagnostics.warning(HERE, &Path::File, "odd".to_owned(), None);
        }
        diagnostics.error(Place { line: 1, column: 1 }, &Path::File.key("domain"), "bad".to_owned(), None);
        assert!(diagnostics.has_errors());
        let sorted = diagnostics.into_sorted();
        let messages: Vec<(&str, &str)> = sorted.iter().map(|d| (&*d.message, &*d.path)).collect();
        assert_eq!(messages, [("bad", "domain"), ("odd", "")]);
    }

    #[test]
    fn warns_about_extensions_if_enabled() {
        for portable in [false, true] {
            let mut diagnostics = Diagnostics::of("a.yaml", portable);
            diagnostics.unportable(HERE, &Path::File, "`burst`");
            assert!(!diagnostics.has_errors());
            let messages: Vec<String> = diagnostics.into_sorted().iter().map(ToString::to_string).collect();
            assert_eq!(messages.len(), usize::from(portable), "{messages:?}");
            assert!(messages.concat().contains("`burst`") == portable, "{messages:?}");
        }
    }

    #[test]
    fn diagnostics_beyond_the_bound_are_counted() {
        let mut diagnostics = Diagnostics::of("a.yaml", false);
        for n in 0..MAX_DIAGNOSTICS + 7 {
            diagnostics.error(HERE, &Path::File, format!("bad {n}"), None);
        }
        let sorted = diagnostics.into_sorted();
        assert_eq!(sorted.len(), MAX_DIAGNOSTICS + 1);
        assert_eq!(sorted[MAX_DIAGNOSTICS].message, "7 more problems in this file are not shown");
    }

    #[test]
    fn formats_paths() {
        let root = Path::File;
        let list = root.key("descriptors");
        let item = list.item(2);
        assert_eq!(item.key("rate_limit").to_string(), "descriptors[2].rate_limit");
    }

    #[test]
    fn a_quoted_text_stays_on_one_line() {
        assert_eq!(quoted("it's\n"), "`it's\\n`");
        assert_eq!(quoted(&"x".repeat(100)), format!("`{}…`", "x".repeat(60)));
    }
}
