//! Suggestions for misspelt words.

/// The candidate that is nearest to a misspelt word, if one is near enough. Case, `-` and `_` are ignored:
/// `rateLimit` is `rate_limit`.
pub(crate) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word = plain(word);
    // No keyword is that long, and measuring takes quadratic time.
    if word.len() > 40 {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= allowance(&word, candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A third of the shorter word may be wrong: `units` means `unit`, but `burst` means nothing.
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
