//! A name of statsd made into another name and tags, as `DOG_STATSD_MOGRIFIER_…` says.

use regex::{Captures, Regex};

/// What to make of the names that a pattern matches.
#[derive(Debug)]
pub struct Mogrifier {
    pattern: Regex,
    name: Template,
    tags: Vec<(String, Template)>,
}

/// A text with references to groups: `$0`, `$1`, …
#[derive(Debug)]
struct Template(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(String),
    /// The group's number, and how it was written.
    Group(usize, String),
}

impl Mogrifier {
    /// What matches `pattern` gets this name and these tags.
    #[must_use]
    pub fn new(pattern: Regex, name: &str, tags: &[(String, String)]) -> Self {
        let tags = tags.iter().map(|(key, value)| (key.clone(), Template::of(value))).collect();
        Self { pattern, name: Template::of(name), tags }
    }

    /// The new name and its tags, if the old one matches.
    pub(super) fn apply(&self, name: &str) -> Option<(String, Vec<(String, String)>)> {
        let groups = self.pattern.captures(name)?;
        let tags = self.tags.iter().map(|(key, value)| (key.clone(), value.fill(&groups)));
        Some((self.name.fill(&groups), tags.collect()))
    }
}

impl Template {
    fn of(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            let behind = after.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = after.strip_suffix(behind).unwrap_or_default();
            match digits.parse() {
                Ok(group) => {
                    parts.push(Part::Text(before.to_owned()));
                    parts.push(Part::Group(group, format!("${digits}")));
                }
                Err(_) => parts.push(Part::Text(format!("{before}${digits}"))),
            }
            rest = behind;
        }
        parts.push(Part::Text(rest.to_owned()));
        Self(parts)
    }

    /// A group that took no part is empty; one that the pattern does not have stays as it is written.
    fn fill(&self, groups: &Captures<'_>) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Group(number, written) if *number >= groups.len() => written.clone(),
            Part::Group(number, _) => {
                groups.get(*number).map_or_else(String::new, |group| group.as_str().to_owned())
            }
        };
        self.0.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;

    fn filled(template: &str) -> String {
        let pattern = Regex::new("(a)(x)?").unwrap();
        Template::of(template).fill(&pattern.captures("ba").unwrap())
    }

    #[test]
    fn groups_stand_where_they_are_named() {
        assert_eq!(filled("$1-$0$2."), "a-a.");
        assert_eq!(filled("$3 $12 ${1} $ $x $"), "$3 $12 ${1} $ $x $");
        assert_eq!(filled("$99999999999999999999$1"), "$99999999999999999999a");
    }

    #[test]
    fn names_become_what_the_go_service_makes_of_them() {
        let recorded = include_str!("../../../tests/statsd/mogrifiers.jsonl");
        // Blanks around a key or a value are taken off here.
        let bare = |tag: &str| tag.split(':').map(str::trim).collect::<Vec<_>>().join(":");
        let mut seen = 0;
        for line in recorded.lines() {
            let case: Json = serde_json::from_str(line).unwrap();
            let keys = case["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap());
            let env = |name: &str| case["env"][name].as_str().map(ToOwned::to_owned);
            let list = keys.collect::<Vec<_>>().join(",");
            let variable = |name: &str| match name {
                "USE_DOG_STATSD" => Some("true".to_owned()),
                "USE_DOG_STATSD_MOGRIFIERS" => Some(list.clone()),
                _ => env(name),
            };
            let read = crate::settings::Settings::read(&variable, &|_| false, 1);
            if case["refused"].as_bool() == Some(true) {
                assert!(read.is_err(), "{case}");
                continue;
            }
            let dog = read.unwrap().0.sinks.dog.unwrap();
            let mogrifiers =
                dog.mogrifiers.iter().map(|m| Mogrifier::new(m.pattern.clone(), &m.name, &m.tags));
            let mogrifiers: Vec<_> = mogrifiers.collect();
            for said in case["said"].as_array().unwrap() {
                let asked = said["asked"].as_str().unwrap();
                let (name, tags) = mogrifiers
                    .iter()
                    .find_map(|mogrifier| mogrifier.apply(asked))
                    .unwrap_or((asked.to_owned(), Vec::new()));
                assert_eq!(name, said["name"].as_str().unwrap(), "{case}");
                let mut tags: Vec<_> =
                    tags.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
                tags.sort();
                let expected: Vec<_> =
                    said["tags"].as_array().unwrap().iter().map(|tag| bare(tag.as_str().unwrap())).collect();
                assert_eq!(tags, expected, "{case}");
                seen += 1;
            }
        }
        assert!(seen > 20, "only {seen} names were asked for");
    }

    proptest! {
        #[test]
        fn any_template_can_be_filled(template in "[$0-3a{}é]{0,12}") {
            prop_assert!(filled(&template).len() <= template.len() * 2 + 1);
        }
    }
}
