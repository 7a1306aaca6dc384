//! Output that every command shares: colours, numbers with their nouns, printing, errors and exit codes.
//!
//! Texts contain the ANSI escape codes of styles; [`print()`] removes them if standard output is not a terminal or `NO_COLOR`
//! is set, and escapes whatever else controls a terminal.

use std::{
    env, fmt,
    io::{self, IsTerminal as _, Write as _},
    sync::OnceLock,
};

use anstyle::{AnsiColor, Style};
use text::{is_unprintable, printable_json, thousands};
use unicode_width::UnicodeWidthChar as _;

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(super) const ERROR: Style = AnsiColor::Red.on_default().bold();
/// File names, line numbers and the margin of an excerpt.
pub(super) const PLACE: Style = AnsiColor::Cyan.on_default();

/// The result of a command, which is its exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The rules are valid, a rule matches, the request is allowed, the service is healthy.
    Yes = 0,
    No = 1,
    /// Invalid arguments or settings, or no response.
    Unknown = 2,
}

impl From<bool> for Verdict {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// Why a command has no verdict, and what to do about it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) what: String,
    /// Empty if there is nothing to suggest.
    pub(super) advice: String,
    pub(super) kind: FailureKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FailureKind {
    /// The service replied that there is no such thing.
    NotFound,
    /// The service refused a change that would have no effect, and accepts it with `--force`.
    NeedsForce,
    Other,
}

impl Failure {
    pub(super) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), advice: advice.into(), kind: FailureKind::Other }
    }

    /// The verdict on a change: no if it was refused because it would have no effect.
    pub(super) fn verdict(self) -> Result<Verdict, Self> {
        if self.kind != FailureKind::NeedsForce {
            return Err(self);
        }
        print_error(self);
        Ok(Verdict::No)
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::new(what, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, "\n  {}", self.advice) }
    }
}

pub(super) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// The width of the output: `COLUMNS`, else that of the terminal; in a pipe without `COLUMNS` there is none.
pub(super) fn width() -> usize {
    let columns = env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    let of_terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    columns.or_else(of_terminal).unwrap_or(usize::MAX)
}

/// The columns of a text without escape codes.
pub(super) fn columns(text: &str) -> usize {
    text.chars().map(|one| one.width().unwrap_or_default()).sum()
}

/// The text with its lines broken to the width of the output; continued lines are indented.
pub(super) fn wrapped(text: &str, indent: usize) -> String {
    wrap(text, width(), indent)
}

/// The text with its lines broken at spaces, or within a word that is longer than a line, so that none is wider than
/// `width`. Continued lines are indented. Escape codes take no column.
fn wrap(text: &str, width: usize, indent: usize) -> String {
    let indent = indent.min(width / 3);
    let mut wrapped = String::new();
    for line in text.split_inclusive('\n') {
        let mut used = 0;
        let mut is_escape = false;
        // The last space of the line, in bytes of the result and in columns.
        let mut space = None;
        for one in line.chars() {
            is_escape |= one == '\u{1b}';
            let columns = if is_escape || one == '\n' { 0 } else { one.width().unwrap_or_default() };
            is_escape &= !one.is_ascii_alphabetic();
            if used + columns > width {
                let (at, before) = space.take().unwrap_or((wrapped.len(), used));
                let rest = wrapped.split_off(at);
                wrapped.push('\n');
                wrapped.extend(std::iter::repeat_n(' ', indent));
                wrapped.push_str(rest.trim_start_matches(' '));
                used = indent + used - before - (rest.len() - rest.trim_start_matches(' ').len());
                if one == ' ' && used == indent {
                    continue;
                }
            }
            if one == ' ' && used > indent {
                space = Some((wrapped.len(), used));
            }
            used += columns;
            wrapped.push(one);
        }
    }
    wrapped
}

/// The beginning of a text that fits `width` columns, with an ellipsis if something is cut.
pub(super) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |one: &char| {
        used += one.width().unwrap_or_default();
        used <= width
    };
    text.chars().take_while(fits).chain((width > 0).then_some('…')).collect()
}

/// The first error of standard output.
static OUTPUT_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Prints a text with colours to standard output.
pub(super) fn print(text: &str) {
    write(anstream::stdout().lock(), &shown(text));
}

/// The text, in which only line breaks, tabs and styles control a terminal.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        let is_style = || {
            let code = text.get(at..).and_then(|rest| rest.strip_prefix("\u{1b}["));
            let of_code = |c: char| c.is_ascii_digit() || c == ';';
            code.is_some_and(|code| code.trim_start_matches(of_code).starts_with('m'))
        };
        if !is_unprintable(character) || matches!(character, '\n' | '\t') || is_style() {
            shown.push(character);
        } else {
            shown.extend(character.escape_default());
        }
    }
    shown
}

/// Prints JSON. Characters that control a terminal, which are within its texts, are escaped.
pub(super) fn print_json(json: &str) {
    print_data(&printable_json(json));
}

/// Prints data unchanged: Markdown, CSV, completions.
pub(super) fn print_data(text: &str) {
    write(io::stdout().lock(), text);
}

fn write(mut output: impl io::Write, text: &str) {
    if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        // Only the first one is reported.
        let _ = OUTPUT_ERROR.set(error);
    }
}

/// True if the reader of standard output is gone, as after `| head`, or it cannot be written for another reason.
pub(super) fn is_output_closed() -> bool {
    OUTPUT_ERROR.get().is_some()
}

/// Why not everything was printed. A reader that has seen enough is not an error.
pub(super) fn output_error() -> Option<&'static io::Error> {
    OUTPUT_ERROR.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

pub(super) fn print_error(message: impl fmt::Display) {
    print_to_stderr(&format!("{}: {message}\n", paint(ERROR, "error")));
}

pub(super) fn print_to_stderr(text: &str) {
    // There is no other place to report to.
    let _ = anstream::stderr().lock().write_all(shown(text).as_bytes());
}

/// What a person types after this word; `None` in scripts, and if nothing is typed.
pub(super) fn ask(what: &str) -> Option<String> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return None;
    }
    let _ = write!(io::stderr(), "{what}: ");
    let mut line = String::new();
    io::stdin().read_line(&mut line).ok()?;
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

pub(super) fn print_warning(message: &str) {
    print_to_stderr(&format!("{}: {message}\n", paint(WARNING, "warning")));
}

pub(super) fn print_note(message: &str) {
    print_to_stderr(&format!("{}\n", paint(DIM, message)));
}

/// A number with its noun: `1 file`, `2,000 files`.
pub(super) fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
pub(super) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_width() {
        let painted = paint(ERROR, "not connected since 10:00:00");
        let text =
            format!("store     redis, {painted}: {}{}\nrules     two\n", "x".repeat(40), "漢字".repeat(20));
        for width in 4..120 {
            let wrapped = plain(&wrap(&text, width, 10));
            let widest = wrapped.lines().map(columns).max();
            assert!(widest <= Some(width), "{width}: {wrapped}");
            let without = |text: &str| text.replace([' ', '\n'], "");
            assert_eq!(without(&wrapped), without(&plain(&text)), "{width}: nothing is lost");
        }
        assert_eq!(wrap("one two three", 8, 2), "one two\n  three");
        assert_eq!(wrap(&text, usize::MAX, 10), text);
    }

    #[test]
    fn only_styles_control_the_terminal() {
        let text = format!("{}\u{1b}]0;x\u{7}\u{202e}\u{9b}31m\r\n\tb", paint(ERROR, "a\u{1b}[2J"));
        let expected =
            format!(r"{}\u{{1b}}]0;x\u{{7}}\u{{202e}}\u{{9b}}31m\r", paint(ERROR, r"a\u{1b}[2J")) + "\n\tb";
        assert_eq!(shown(&text), expected);
    }

    #[test]
    fn a_text_is_cut_to_its_columns() {
        assert_eq!(["abc", "abcd", "漢字", ""].map(|text| cut(text, 3)), ["abc", "ab…", "漢…", ""]);
        assert_eq!(cut("abc", 0), "");
    }
}
