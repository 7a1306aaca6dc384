//! Errors and warnings about rules files.
//!
//! A [`Diagnostic`] is self-contained: the place, the value seen, what is expected, and what to do.
//! `tollgate check` prints it like a compiler; the service logs it on one line.

use std::fmt;

/// One error or warning about one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Whether the file can be served.
    pub severity: Severity,
    /// The file, as it was named when it was read.
    pub file: String,
    /// The place in the file; none when it is about the complete file.
    pub place: Option<Place>,
    /// The path to the value, such as `descriptors[0].rate_limit.unit`; empty for the complete file.
    pub path: String,
    /// What is wrong, with the value seen.
    pub message: String,
    /// What is expected, or what to do.
    pub help: Option<String>,
}

/// Whether a set with this diagnostic can be served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can, but is probably not what was meant.
    Warning,
}

/// A place in a file, counted from 1 as editors do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl Diagnostic {
    /// True when the set cannot be served.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The diagnostic in several lines, with the line of the source. The source is the file as
/// [`SourceFile::readable`](super::SourceFile::readable) gives it, with every break that YAML knows as `\n`.
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
#[must_use]
pub fn render(diagnostic: &Diagnostic, source: Option<&str>) -> String {
    let Diagnostic { severity, file, place, path, message, help } = diagnostic;
    let number = place.map(|place| place.line.to_string()).unwrap_or_default();
    let margin = " ".repeat(number.len() + 2);
    let at = place.map(|Place { line, column }| format!(":{line}:{column}")).unwrap_or_default();
    let mut lines = vec![format!("{severity}: {message}"), format!("{margin}--> {file}{at}")];
    if let (Some(place), Some(source)) = (place, source)
        && let Some((line, caret)) = excerpt(source, *place)
    {
        let blanks = " ".repeat(caret);
        lines.extend([format!("{margin}|"), format!(" {number} | {line}"), format!("{margin}| {blanks}^")]);
    }
    if !path.is_empty() {
        lines.push(format!("{margin}= at: {path}"));
    }
    lines.extend(help.iter().map(|help| format!("{margin}= help: {help}")));
    lines.join("\n") + "\n"
}

/// How much of a long line is printed, and how much of that before the caret.
const SHOWN: usize = 100;
const SHOWN_BEFORE: usize = 60;

/// Lines beyond this column are generated; searching them for each of many diagnostics would take too
/// long.
const LAST_SHOWN_COLUMN: usize = 10_000;

/// The line of this place, cut where it is long, and the column of the caret. None where the
/// line is blank, as it is behind the end of the file.
fn excerpt(source: &str, place: Place) -> Option<(String, usize)> {
    let line = source.split('\n').nth(usize::try_from(place.line).ok()?.checked_sub(1)?)?.trim_end();
    let column = usize::try_from(place.column).ok()?.checked_sub(1)?;
    if column > LAST_SHOWN_COLUMN || line.is_empty() {
        return None;
    }
    let skipped = column.saturating_sub(SHOWN_BEFORE);
    let mut characters = line.chars().skip(skipped);
    // A tab or a control character would move the caret.
    let visible = |c: char| if c == '\t' || c.is_control() { ' ' } else { c };
    let mut shown: String = characters.by_ref().take(SHOWN).map(visible).collect();
    shown.truncate(shown.trim_end().len());
    if characters.next().is_some() {
        shown.push('…');
    }
    let caret = column - skipped;
    Some(if skipped > 0 { (format!("…{shown}"), caret + 1) } else { (shown, caret) })
}

/// The characters that end a line, in YAML's view.
pub(super) fn is_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The diagnostic on one line, for logs.
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
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
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
    fn a_finding_shows_its_line_with_a_caret() {
        let expected = "error: unknown unit `hours`\n   --> a.yaml:2:7\n   |\n 2 | unit: hours\n   |       ^\n   \
                        = at: descriptors[0].rate_limit.unit\n   = help: did you mean `hour`?\n";
        assert_eq!(render(&diagnostic(2, 7), Some("a: b\r\nunit: hours\r\n")), expected);
    }

    #[test]
    fn a_finding_of_a_whole_file_shows_no_line() {
        let of_file = Diagnostic { place: None, path: String::new(), help: None, ..diagnostic(1, 1) };
        assert_eq!(render(&of_file, Some("a: b")), "error: unknown unit `hours`\n  --> a.yaml\n");
        assert_eq!(of_file.to_string(), "a.yaml: error: unknown unit `hours`");
    }

    #[test]
    fn a_finding_for_the_log_is_one_line() {
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
    fn a_place_beyond_the_source_shows_nothing() {
        assert_eq!(excerpt("a\nb\n", Place { line: 4, column: 1 }), None);
        assert_eq!(excerpt("a\nb", Place { line: 2, column: 9 }), Some(("b".to_owned(), 8)));
    }
}
