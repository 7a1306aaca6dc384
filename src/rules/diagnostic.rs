//! What is wrong or suspicious in a rules file, and where.
//!
//! A [`Diagnostic`] is complete in itself: it says where, what was seen, what is accepted and what to
//! do. `tollgate check` prints it as a compiler would, the server logs the same on one line.

use std::fmt;

/// One finding in one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Whether the file can be served all the same.
    pub severity: Severity,
    /// The file, as it was named when it was read.
    pub file: String,
    /// Where in the file; none when the finding is of the file as a whole.
    pub place: Option<Place>,
    /// The way to the value, as in `descriptors[0].rate_limit.unit`; empty for the file as a whole.
    pub path: String,
    /// What is wrong, with the value that was seen.
    pub message: String,
    /// What is accepted, or what to do.
    pub help: Option<String>,
}

/// Whether a set with this finding can be served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can, but hardly means what it says.
    Warning,
}

/// A place in a file, counted from 1 as editors do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}
