//! Names in rules files, and suggestions for misspelt ones.

use super::diagnostics::quoted;

/// The candidate that is nearest to a misspelt word, if it is near enough. Case, `-` and `_` are ignored: `rateLimit` is
/// `rate_limit`.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    candidates
        .into_iter()
        .filter_map(|candidate| Some((distance(word, candidate)?, candidate)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The edit distance of a misspelt word from a candidate, if they are near enough.
pub fn distance(word: &str, candidate: &str) -> Option<usize> {
    let word = plain(word);
    // No name is as long, and the edit distance takes quadratic time.
    if word.len() > 40 {
        return None;
    }
    let distance = strsim::osa_distance(&word, &plain(candidate));
    (distance <= allowance(&word, candidate)).then_some(distance)
}

/// The choice of this name, ignoring case, or the message and the help for an unknown name of `what`.
pub fn choose<T: Copy>(
    what: &str,
    written: &str,
    choices: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, (String, String)> {
    choices.iter().copied().find(|choice| name(*choice).eq_ignore_ascii_case(written)).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|choice| name(*choice)).collect();
        (format!("unknown {what} {}", quoted(written)), help_for(written, &names, None))
    })
}

/// The help for an unknown name: the nearest name, and all accepted ones.
pub fn help_for(written: &str, names: &[&str], abbreviated: Option<&str>) -> String {
    let accepted: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    let accepted = format!("accepted (case-insensitive): {}", accepted.join(", "));
    let mut meant: Vec<&str> =
        nearest(written.trim(), names.iter().copied()).or(abbreviated).into_iter().collect();
    if meant.is_empty() {
        // A word of theirs: `sliding` is `sliding_window` or `sliding_log`.
        let has_word = |name: &&str| name.split('_').any(|word| plain(word) == plain(written));
        meant.extend(names.iter().copied().filter(has_word));
    }
    let meant: Vec<String> = meant.iter().map(|name| format!("`{}`", name.to_ascii_lowercase())).collect();
    if meant.is_empty() { accepted } else { format!("did you mean {}? {accepted}", meant.join(" or ")) }
}

/// The maximum edit distance, a third of the shorter word: `units` means `unit`, but `burst` does not.
fn allowance(word: &str, candidate: &str) -> usize {
    (word.len().min(candidate.len()) / 3).min(4)
}

fn plain(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_is_recognised() {
        let known = ["rate_limit", "requests_per_unit", "descriptors", "key", "value", "unit"];
        for (word, meant) in [
            ("ratelimit", Some("rate_limit")),
            ("rate-limits", Some("rate_limit")),
            ("requestsPerUnit", Some("requests_per_unit")),
            ("request_per_unit", Some("requests_per_unit")),
            ("descriptor", Some("descriptors")),
            ("Key", Some("key")),
            ("vlaue", Some("value")),
            ("units", Some("unit")),
            ("any", None),
            ("kez", Some("key")),
            ("burst", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }
}
