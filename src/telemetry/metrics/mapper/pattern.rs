//! Patterns of statsd names, and texts with references to what a pattern matched.
//!
//! Both are those of `statsd_exporter`, whose two kinds of pattern differ in how they read a reference:
//! `$1_$2` is one name of a group there, and what does not exist is nothing. `${1}_${2}` is meant.

use regex::{Captures, Regex};

/// What a mapping matches.
#[derive(Debug)]
pub(super) enum Pattern {
    /// The name's parts one by one; none stands for any part.
    Glob(Vec<Option<String>>),
    /// The name as a text.
    Regex(Regex),
}

impl Pattern {
    /// A glob such as `a.*.c`; nothing when it is none.
    pub(super) fn of_glob(text: &str) -> Option<Self> {
        let part = |(at, part): (usize, &str)| {
            if part == "*" {
                return Some(None);
            }
            let first = part.chars().next()?;
            let begins = first.is_ascii_alphabetic() || first == '_' || (at > 0 && first.is_ascii_digit());
            let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (begins && part.chars().all(goes_on)).then(|| Some(part.to_owned()))
        };
        text.split('.').enumerate().map(part).collect::<Option<_>>().map(Self::Glob)
    }

    /// What stood in the place of each `*`, if this is a glob that matches.
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

    /// What the groups matched, if this is a regular expression that matches.
    pub(super) fn regex<'n>(&self, name: &'n str) -> Option<Captures<'n>> {
        match self {
            Self::Regex(regex) => regex.captures(name),
            Self::Glob(_) => None,
        }
    }

    /// Of two globs that match one name, the one that is greater has a word where the other first has `*`.
    pub(super) fn specificity(&self) -> Vec<bool> {
        match self {
            Self::Glob(parts) => parts.iter().map(Option::is_some).collect(),
            Self::Regex(_) => Vec::new(),
        }
    }
}

/// What a pattern matched.
pub(super) enum Captured<'n> {
    /// By a glob, in the place of each `*`.
    Parts(Vec<&'n str>),
    /// By the groups of a regular expression.
    Groups(Captures<'n>),
}

impl Captured<'_> {
    /// The text with its references filled in.
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

/// A reference is `$` and, in braces or not, as many letters, digits, `_` and `$` as there are.
fn fill_parts(template: &str, parts: &[&str]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        let open = after.strip_prefix('{').unwrap_or(after);
        let belongs = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        let end = open.find(|c| !belongs(c)).unwrap_or(open.len());
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

/// A name with everything that Prometheus does not allow in one replaced.
pub(super) fn escaped(name: &str) -> String {
    let digit_first = name.starts_with(|c: char| c.is_ascii_digit());
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    digit_first.then_some('_').into_iter().chain(name.chars().map(allowed)).collect()
}

/// True for what may be a mapping's `name`: a metric's name, with references anywhere.
pub(super) fn is_name(text: &str) -> bool {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let at_start = rest.len() == text.len();
        if first == '$' {
            let Some(after) = after_reference(rest) else { return false };
            rest = after;
        } else if first.is_ascii_alphabetic() || first == '_' || (!at_start && first.is_ascii_digit()) {
            rest = rest.get(1..).unwrap_or_default();
        } else {
            return false;
        }
    }
    !text.is_empty()
}

/// What follows `$1` or `${1}`.
fn after_reference(text: &str) -> Option<&str> {
    let open = text.strip_prefix('$')?;
    let number = open.strip_prefix('{').unwrap_or(open);
    let after = number.trim_start_matches(|c: char| c.is_ascii_digit());
    (after.len() < number.len()).then(|| after.strip_prefix('}').unwrap_or(after))
}
