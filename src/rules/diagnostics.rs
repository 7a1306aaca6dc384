//! Collects the diagnostics of one file, or of one resource of a control plane, while it is compiled.
//!
//! An invalid value that many aliases share is reported once, and beyond a bound diagnostics are only counted,
//! so that a broken file does not fill the log.

use std::{collections::HashSet, fmt};

use super::{
    diagnostic::{Diagnostic, Place, Severity},
    yaml::Fault,
};
use crate::text::{cut_display, cut_owned};

/// The most diagnostics of one file that are listed.
const MAX_DIAGNOSTICS: usize = 500;

/// The diagnostics of one file.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    kind: Kind,
    file: String,
    found: Vec<Diagnostic>,
    known: HashSet<(Option<Place>, String)>,
    left_out: usize,
    has_errors: bool,
    /// Report what the Go service rejects.
    portable: bool,
}

/// The kind of source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A text, with lines.
    File,
    /// A message of a control plane, without lines.
    Resource,
}

/// The path from the top of a file to a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'a> {
    /// The complete file.
    File,
    /// The value of a key.
    Key(&'a Path<'a>, &'a str),
    /// An item of a list, counted from 0.
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Resource => "resource",
        })
    }
}

impl<'a> Path<'a> {
    /// The path to the value of a key.
    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Path::Key(self, key)
    }

    /// The path to an item.
    pub(crate) fn item(&'a self, at: usize) -> Self {
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

impl Diagnostics {
    /// An empty list for this file. With `portable` it takes what the Go service rejects.
    pub(crate) fn of(file: &str, portable: bool) -> Self {
        Self {
            kind: Kind::File,
            file: file.to_owned(),
            found: Vec::new(),
            known: HashSet::new(),
            left_out: 0,
            has_errors: false,
            portable,
        }
    }

    /// An empty list for the resource of this name.
    pub(super) fn of_resource(name: &str) -> Self {
        let name = if name.is_empty() {
            "a resource without a name".to_owned()
        } else {
            cut_display(format_args!("resource {}", name.escape_debug()))
        };
        Self { kind: Kind::Resource, ..Self::of(&name, false) }
    }

    /// The kind of source.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// A place in words.
    pub(super) fn location(&self, place: Place, path: &Path<'_>) -> String {
        match self.kind {
            Kind::File => place.to_string(),
            Kind::Resource => cut_display(path),
        }
    }

    /// The file's name.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// True when the file cannot be served.
    pub(crate) fn has_errors(&self) -> bool {
        self.has_errors
    }

    /// Adds an error.
    pub(crate) fn error(&mut self, place: Place, path: &Path<'_>, message: String, help: Option<String>) {
        self.add(Severity::Error, Some(place), path, message, help);
    }

    /// Adds a warning.
    pub(crate) fn warning(&mut self, place: Place, path: &Path<'_>, message: String, help: Option<String>) {
        self.add(Severity::Warning, Some(place), path, message, help);
    }

    /// Adds a warning about an extension, which the Go service rejects, with `portable`.
    pub(crate) fn unportable(&mut self, place: Place, path: &Path<'_>, what: &str) {
        if self.portable {
            let help = "remove it from files that the Go service reads too";
            self.warning(place, path, format!("the Go service refuses {what}"), Some(help.to_owned()));
        }
    }

    /// Adds the reason why the file could not be read.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.add(Severity::Error, fault.place, &Path::File, fault.message, fault.help);
    }

    fn add(
        &mut self,
        severity: Severity,
        place: Option<Place>,
        path: &Path<'_>,
        message: String,
        help: Option<String>,
    ) {
        // Hundreds of diagnostics are kept, so each is short whatever the file has.
        let (message, help) = (cut_owned(message), help.map(cut_owned));
        // An error that is not listed counts too: the file must not be served.
        self.has_errors |= severity == Severity::Error;
        if self.found.len() >= MAX_DIAGNOSTICS {
            self.left_out += 1;
        } else if self.known.insert((place, message.clone())) {
            let file = self.file.clone();
            self.found.push(Diagnostic { severity, file, place, path: cut_display(path), message, help });
        }
    }

    /// All diagnostics, in the order of their places.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|diagnostic| diagnostic.place);
        if self.kind == Kind::Resource {
            self.found.iter_mut().for_each(|diagnostic| diagnostic.place = None);
        }
        if self.left_out > 0 {
            self.found.push(Diagnostic {
                severity: if self.has_errors { Severity::Error } else { Severity::Warning },
                file: self.file,
                place: None,
                path: String::new(),
                message: format!("{} more problems in this {} are not shown", self.left_out, self.kind),
                help: None,
            });
        }
        self.found
    }
}

/// A text of the file as a message shows it: between backticks, on one line, cut where it is long.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let shown: String = text.chars().take(SHOWN).collect();
    let cut = if shown.len() < text.len() { "…" } else { "" };
    format!("`{}{cut}`", shown.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place = Place { line: 3, column: 1 };

    #[test]
    fn reports_a_finding_at_one_place_once() {
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
    fn reports_what_is_not_portable_on_request() {
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
    fn findings_beyond_the_bound_are_counted() {
        let mut diagnostics = Diagnostics::of("a.yaml", false);
        for n in 0..MAX_DIAGNOSTICS + 7 {
            diagnostics.error(HERE, &Path::File, format!("bad {n}"), None);
        }
        let sorted = diagnostics.into_sorted();
        assert_eq!(sorted.len(), MAX_DIAGNOSTICS + 1);
        assert_eq!(sorted[MAX_DIAGNOSTICS].message, "7 more problems in this file are not shown");
    }

    #[test]
    fn a_way_reads_as_it_would_be_typed() {
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
