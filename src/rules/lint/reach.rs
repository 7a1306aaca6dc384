//! Which descriptors of a level no request can match, and which have no effect.
//!
//! On a level the exact text is looked up first, then the wildcards in order, then the bare key. So a
//! wildcard hides a later one that matches nothing else, and any wildcard hides a bare key all of whose
//! values it matches.

use std::collections::HashSet;

use super::super::{
    unused,
    wildcard::{Pattern, Wildcards},
};

/// The texts of one level, prepared for questions about each.
pub(super) struct Reach<'t> {
    texts: &'t [String],
    known: HashSet<&'t str>,
    wildcards: Wildcards<usize>,
    wildcard_count: usize,
    /// A character that no text of the level holds.
    fresh: char,
}

impl<'t> Reach<'t> {
    /// A level with these texts, in the order of the file.
    pub(super) fn of(texts: &'t [String]) -> Self {
        let wildcards: Vec<(Pattern, usize)> = texts
            .iter()
            .enumerate()
            .filter(|(_, text)| text.contains('*'))
            .map(|(at, text)| (Pattern::new(text), at))
            .collect();
        Self {
            texts,
            known: texts.iter().map(String::as_str).collect(),
            wildcard_count: wildcards.len(),
            wildcards: Wildcards::new(wildcards),
            // A level that holds every private character has other troubles than a missing warning.
            fresh: unused::characters(texts.iter().map(String::as_str)).next().unwrap_or('\u{10ffff}'),
        }
    }

    /// The wildcard before this one that matches every text that this one matches.
    ///
    /// It is enough to match the text in which each `*` is a character that no pattern has: only another pattern's `*` can match that character, and a `*` that matches it there
    /// matches any other text in its place.
    pub(super) fn wildcard_covered_by(&self, at: usize) -> Option<usize> {
        let text = self.texts[at].replace('*', self.fresh.encode_utf8(&mut [0; 4]));
        self.wildcards.first_match(&text).copied().filter(|cover| *cover < at)
    }

    /// The wildcard that matches every value of this bare key, in any order.
    pub(super) fn bare_key_covered_by(&self, at: usize) -> Option<usize> {
        self.wildcards.first_match(&format!("{}_{}", self.texts[at], self.fresh)).copied()
    }

    /// False when the level gives every request the same result without this descriptor, provided that it has
    /// neither a limit nor levels below. True if uncertain.
    pub(super) fn may_exempt(&self, at: usize) -> bool {
        let text = self.texts[at].as_str();
        match text.split_once('*') {
            // It goes before the wildcards that match it and the bare keys that its text begins with.
            None => {
                let is_bare_key = |(end, _)| text.get(..end).is_some_and(|key| self.known.contains(key));
                self.wildcards.first_match(text).is_some() || text.match_indices('_').any(is_bare_key)
            }
            Some((prefix, _)) => {
                let may_hold = |key: &String| {
                    let values = format!("{key}_");
                    prefix.starts_with(&values) || values.starts_with(prefix)
                };
                self.wildcard_count > 1 || self.texts.iter().any(|key| !key.contains('*') && may_hold(key))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_wildcard_hides_what_it_matches_whole() {
        for (texts, covered_by) in [
            (["k_*", "k_a*"], Some(0)),
            (["k_a*", "k_*"], None),
            (["k_*b", "k_a*b"], Some(0)),
            (["k_*a*", "k_*b*"], None),
            (["k_**", "k_*"], Some(0)),
        ] {
            let texts = level(&texts);
            assert_eq!(Reach::of(&texts).wildcard_covered_by(1), covered_by, "{texts:?}");
        }
    }

    #[test]
    fn a_wildcard_of_all_values_hides_the_bare_key_from_anywhere() {
        for (other, taken) in [("k_*", true), ("k*", true), ("k_**", true), ("k_a*", false), ("j_*", false)] {
            let texts = level(&["k", other]);
            assert_eq!(Reach::of(&texts).bare_key_covered_by(0).is_some(), taken, "{other}");
        }
    }

    #[test]
    fn a_value_may_exempt_itself_from_what_would_take_it_otherwise() {
        for (texts, exempts) in [
            (["k_v", "k"], true),
            (["k_v", "k_*"], true),
            (["k_v", "j"], false),
            (["k", "j_*"], false),
            (["k_v*", "k"], true),
            (["k_v*", "j"], false),
            (["k_v*", "k_v_w"], true),
        ] {
            let texts = level(&texts);
            assert_eq!(Reach::of(&texts).may_exempt(0), exempts, "{texts:?}");
        }
    }

    /// Every text of up to so many of these letters.
    fn texts_of(letters: &[char], length: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut from = 0;
        for _ in 0..length {
            let until = all.len();
            for at in from..until {
                all.extend(letters.iter().map(|letter| format!("{}{letter}", all[at])).collect::<Vec<_>>());
            }
            from = until;
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn hidden_means_that_every_text_is_taken_before(
            first in "[ab]{0,1}\\*[ab*]{0,3}",
            later in "[ab]{0,1}\\*[ab*]{0,3}",
        ) {
            // One letter beyond those of the patterns, and as many as the later pattern is long: a text
            // that only the later matches has its stars filled with one such letter each.
            let (one, other) = (Pattern::new(&first), Pattern::new(&later));
            let included =
                texts_of(&['a', 'b', 'c'], 5).iter().all(|text| !other.matches(text) || one.matches(text));
            let texts = vec![first, later];
            prop_assert_eq!(Reach::of(&texts).wildcard_covered_by(1).is_some(), included);
        }
    }
}
