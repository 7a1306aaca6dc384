//! Output that every command shares: colours, numbers with their nouns, printing, errors and exit codes.
//!
//! Texts contain ANSI escape codes; [`print()`] removes them if standard output is not a terminal or `NO_COLOR` is set.

use std::{
    fmt,
    io::{self, Write as _},
    sync::OnceLock,
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
    /// The service replied that there is no such thing.
    pub(super) is_not_found: bool,
    /// The service refused a change that would have no effect, and accepts it with `--force`.
    pub(super) needs_force: bool,
}

impl Failure {
    pub(super) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), advice: advice.into(), is_not_found: false, needs_force: false }
    }

    /// The verdict on a change: no if it was refused because it would have no effect.
    pub(super) fn verdict(self) -> Result<Verdict, Self> {
        if !self.needs_force {
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

/// The first error of standard output.
static OUTPUT_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Prints a text with colours to standard output.
pub(super) fn print(text: &str) {
    write(anstream::stdout().lock(), text);
}

/// Prints data unchanged: JSON, Markdown, completions.
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

/// Prints an error to standard error.
pub(super) fn print_error(message: impl fmt::Display) {
    // There is no other place to report to.
    let _ = writeln!(anstream::stderr().lock(), "{}: {message}", paint(ERROR, "error"));
}

/// Prints a warning to standard error.
pub(super) fn print_warning(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{}: {message}", paint(WARNING, "warning"));
}

/// A number with its noun: `1 file`, `2,000 files`.
pub(super) fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// A number in groups of three digits.
pub(super) fn thousands(number: u64) -> String {
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

#[cfg(test)]
pub(super) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}
