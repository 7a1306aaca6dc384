//! Which known word somebody meant.

/// The candidate that is nearest to a misspelt word, if one is near enough. Case, `-` and `_` do not
/// count: `rateLimit` is `rate_limit` in other clothes.
pub(crate) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word = plain(word);
    // Longer than any candidate by more than the allowance: not worth measuring.
    if word.len() > 40 {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= allowance(&word, candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A third of the shorter word may be wrong: `unit` is meant by `units`, but nothing by `burst`.
fn allowance(word: &[char], candidate: &str) -> usize {
    (word.len().min(candidate.len()) / 3).min(4)
}

fn plain(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

/// How many letters must be added, taken away, changed or swapped with their neighbour.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=to.len()).collect();
    for i in 1..=from.len() {
        for j in 1..=to.len() {
            let changed = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_recognised() {
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
