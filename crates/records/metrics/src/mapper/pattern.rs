//! Patterns of statsd names, and templates with references to their matches.
//!
//! Both are those of `statsd_exporter`, where `$1_$2` is one reference to a group `1_` that does not exist, and expands
//! to nothing; `${1}_${2}` has two references.

use std::sync::LazyLock;

use regex::{Captures, Regex};

#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) regex: Regex,
    pub(super) is_glob: bool,
    /// Orders globs that match one name: the greater one has a word where the other one first has `*`.
    pub(super) specificity: Vec<bool>,
}

impl Pattern {
    /// A glob such as `a.*.c`; `None` if it is invalid.
    pub(super) fn of_glob(text: &str) -> Option<Self> {
        let part = |part: &str| if part == "*" { "([^.]*)".to_owned() } else { regex::escape(part) };
        let parts: Vec<String> = text.split('.').map(part).collect();
        let regex = Regex::new(&format!("^{}$", parts.join(r"\."))).ok().filter(|_| matches(text, GLOB))?;
        Some(Self { regex, is_glob: true, specificity: text.split('.').map(|part| part != "*").collect() })
    }

    /// The template with its references to groups expanded. In a glob's, a reference is `$` and the longest run of
    /// letters, digits, `_` and `$`, with or without braces.
    pub(super) fn expand(&self, template: &str, groups: &Captures<'_>) -> String {
        static REFERENCE: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new(r"\$\{?([a-zA-Z0-9_$]+)\}?").ok());
        if let (true, Some(reference)) = (self.is_glob, &*REFERENCE) {
            let group = |reference: &Captures<'_>| {
                let number = reference.get(1).and_then(|number| number.as_str().parse().ok());
                let group = number.filter(|number| *number > 0).and_then(|number| groups.get(number));
                group.map_or("", |group| group.as_str()).to_owned()
            };
            return reference.replace_all(template, group).into_owned();
        }
        let mut expanded = String::new();
        groups.expand(template, &mut expanded);
        expanded
    }
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
