//! Patterns of statsd names, and templates with references to their matches.
//!
//! Both are those of `statsd_exporter`, where `$1_$2` is one reference to a group `1_` that does not exist, and expands
//! to nothing; `${1}_${2}` has two references.

use regex::{Captures, Regex};

/// The pattern of a mapping.
#[derive(Debug)]
pub(super) enum Pattern {
    /// The parts of the name; `None` matches any part.
    Glob(Vec<Option<String>>),
    Regex(Regex),
}

impl Pattern {
    /// A glob such as `a.*.c`; `None` if it is invalid.
    pub(super) fn of_glob(text: &str) -> Option<Self> {
        let part = |part: &str| Some(part.to_owned()).filter(|part| part != "*");
        matches(text, GLOB).then(|| Self::Glob(text.split('.').map(part).collect()))
    }

    /// The part that each `*` matches, if this is a glob that matches.
    pub(super) fn glob<'n>(&self, parts: &[&'n str]) -> Option<Vec<&'n str>> {
        let Self::Glob(wanted) = self else { return None };
        if wanted.len() != parts.len() {
            return None;
        }
        let mut captured = Vec::new();
        for (wanted, part) in wanted.iter().zip(parts) {
            match wanted {
                None => captured.push(*part),
                Some(wanted) if wanted == part => {}
                Some(_) => return None,
            }
        }
        Some(captured)
    }

    /// The groups, if this is a regular expression that matches.
    pub(super) fn regex<'n>(&self, name: &'n str) -> Option<Captures<'n>> {
        match self {
            Self::Regex(regex) => regex.captures(name),
            Self::Glob(_) => None,
        }
    }

    /// Orders globs that match one name: the greater one has a word where the other one first has `*`.
    pub(super) fn specificity(&self) -> Vec<bool> {
        match self {
            Self::Glob(parts) => parts.iter().map(Option::is_some).collect(),
            Self::Regex(_) => Vec::new(),
        }
    }
}

/// The matches of a pattern.
pub(super) enum Captured<'n> {
    /// The parts that each `*` of a glob matched.
    Parts(Vec<&'n str>),
    /// The groups of a regular expression.
    Groups(Captures<'n>),
}

impl Captured<'_> {
    /// The template with its references expanded.
    pub(super) fn fill(&self, template: &str) -> String {
        match self {
            Self::Parts(parts) => fill_parts(template, parts),
            Self::Groups(groups) => {
                let mut filled = String::new();
                groups.expand(template, &mut filled);
                filled
            }
        }
    }
}

/// A reference is `$` and the longest run of letters, digits, `_` and `$`, with or without braces.
fn fill_parts(template: &str, parts: &[&str]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        let open = after.strip_prefix('{').unwrap_or(after);
        let is_reference_char = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        let end = open.find(|c| !is_reference_char(c)).unwrap_or(open.len());
        if end == 0 {
            filled.push('$');
            rest = after;
            continue;
        }
        let (number, behind) = open.split_at_checked(end).unwrap_or((open, ""));
        let number = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        filled.push_str(number.and_then(|at| parts.get(at)).copied().unwrap_or_default());
        rest = behind.strip_prefix('}').unwrap_or(behind);
    }
    filled + rest
}

/// A name with `_` for characters that Prometheus does not allow.
pub(super) fn escaped(name: &str) -> String {
    let digit_first = name.starts_with(|c: char| c.is_ascii_digit());
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    digit_first.then_some('_').into_iter().chain(name.chars().map(allowed)).collect()
}

// The rules of `statsd_exporter`.
const GLOB: &str = r"^(\*|[a-zA-Z_][a-zA-Z0-9_-]*)(\.(\*|[a-zA-Z0-9_][a-zA-Z0-9_-]*))*$";
/// A metric name, in which references may occur anywhere.
pub(super) const METRIC_NAME: &str = r"^([a-zA-Z_]|\$\{?[0-9]+\}?)([a-zA-Z0-9_]|\$\{?[0-9]+\}?)*$";
pub(super) const LABEL_NAME: &str = "^[a-zA-Z_][a-zA-Z0-9_]*$";

/// True if the text matches one of the regular expressions above.
pub(super) fn matches(text: &str, regex: &str) -> bool {
    Regex::new(regex).is_ok_and(|regex| regex.is_match(text))
}
