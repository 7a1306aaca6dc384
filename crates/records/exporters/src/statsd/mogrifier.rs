//! Renames metrics and gives them tags: `DOG_STATSD_MOGRIFIER_…`.

use regex::Captures;

use crate::statsd::settings::Mogrifier;

/// The new name and the tags of a name that the mogrifier's pattern matches.
pub fn mogrify(mogrifier: &Mogrifier, name: &str) -> Option<(String, Vec<(String, String)>)> {
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
        let digits = after.split_at(after.len() - rest.len()).0;
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

    proptest! {
        #[test]
        fn any_template_can_be_expanded(template in "[$0-3a{}é]{0,12}") {
            prop_assert!(filled(&template).len() <= template.len() * 2 + 1);
        }
    }
}
