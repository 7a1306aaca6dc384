//! What every command shares: colours, printing and exit codes.
//!
//! Texts hold ANSI escape codes; [`print`] removes them where standard output is not a terminal, and where
//! `NO_COLOR` is set.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anstyle::{AnsiColor, Style};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(super) const ERROR: Style = AnsiColor::Red.on_default().bold();
/// File names, line numbers and the margin of an excerpt.
pub(super) const PLACE: Style = AnsiColor::Cyan.on_default();

/// The result of a command, which is its exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Yes: the rules are valid, a rule matches, the request is allowed, the service is healthy.
    Yes = 0,
    /// No.
    No = 1,
    /// There is no verdict: wrong arguments, settings that are invalid, or no response.
    Unknown = 2,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        Self::from(verdict as u8)
    }
}

impl From<bool> for Verdict {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// A text in a style.
pub(super) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Prints a text with colours to standard output. A reader may close the pipe early, as in
/// `tollgate settings | head`; that is not an error.
pub(super) fn print(text: &str) {
    let _ = anstream::stdout().lock().write_all(text.as_bytes());
}

/// Prints data byte by byte as it is: JSON, Markdown, completions.
pub(super) fn print_data(text: &str) {
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Prints an error to standard error.
pub(super) fn print_error(message: &str) {
    // There is no other place to report to.
    let _ = writeln!(anstream::stderr().lock(), "{}: {message}", paint(ERROR, "error"));
}

/// Prints a warning to standard error.
pub(super) fn print_warning(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{}: {message}", paint(WARNING, "warning"));
}

/// A number with its noun: `1 file`, `2 files`.
pub(super) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
pub(super) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}
