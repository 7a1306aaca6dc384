//! Renames metrics and gives them tags: `DOG_STATSD_MOGRIFIER_…`.

use regex::Captures;

use crate::settings::sinks::Mogrifier;

/// The new name and the tags of a name that the mogrifier's pattern matches.
pub(super) fn mogrify(mogrifier: &Mogrifier, name: &str) -> Option<(String, Vec<(String, String)>)> {
    let groups = mogrifier.pattern.captures(name)?;
    let tags = mogrifier.tags.iter().map(|(key, value)| (key.clone(), expand(value, &groups)));
    Some((expand(&mogrifier.name, &groups), tags.collect()))
}

/// A template with its references `$0`, `$1`, … expanded. An unmatched group is empty; a reference to a group that does
/// not exist remains, unlike in `Captures::expand`.
fn expand(template: &str, groups: &Captures<'_>) -> String {
    let mut expanded = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = after.strip_suffix(rest).unwrap_or_default();
        expanded.push_str(before);
        match digits.parse() {
            Ok(group) if group < groups.len() => {
                expanded.push_str(groups.get(group).map_or("", |group| group.as_str()));
            }
            _ => expanded.extend(["$", digits]),
        }
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;

    fn filled(template: &str) -> String {
        let pattern = regex::Regex::new("(a)(x)?").unwrap();
        expand(template, &pattern.captures("ba").unwrap())
    }

    #[test]
    fn expands_references_to_groups() {
        assert_eq!(filled("$1-$0$2."), "a-a.");
        assert_eq!(filled("$3 $12 ${1} $ $x $"), "$3 $12 ${1} $ $x $");
        assert_eq!(filled("$99999999999999999999$1"), "$99999999999999999999a");
    }

    #[test]
    fn renames_metrics_as_the_go_service_does() {
        let recorded = include_str!("../../../tests/statsd/mogrifiers.jsonl");
        // Spaces around a key or a value are trimmed here.
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
            for said in case["said"].as_array().unwrap() {
                let asked = said["asked"].as_str().unwrap();
                let (name, tags) = dog
                    .mogrifiers
                    .iter()
                    .find_map(|mogrifier| mogrify(mogrifier, asked))
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
        assert!(seen > 20, "only {seen} names");
    }

    proptest! {
        #[test]
        fn any_template_can_be_expanded(template in "[$0-3a{}é]{0,12}") {
            prop_assert!(filled(&template).len() <= template.len() * 2 + 1);
        }
    }
}
