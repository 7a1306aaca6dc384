//! Finds descriptors of a level that no request can match, or that have no effect.
//!
//! On a level the exact text is looked up first, then the wildcards in order, then the bare key. So a wildcard hides a later
//! one whose texts it all matches, and any wildcard hides a bare key whose values it all matches.

use std::collections::HashSet;

use super::super::wildcard::{Pattern, Wildcards};

pub(super) struct Reach<'t> {
    texts: &'t [String],
    known: HashSet<&'t str>,
    wildcards: Wildcards<usize>,
    wildcard_count: usize,
    /// A character that no text of the level contains.
    unused: char,
}

impl<'t> Reach<'t> {
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
            unused: unused_character(texts),
        }
    }

    /// The earlier wildcard that matches every text that this one matches.
    ///
    /// It is enough to match the text in which each `*` is replaced by a character that no pattern has: only a `*` can match
    /// that character, and then matches any other text in its place.
    pub(super) fn wildcard_covered_by(&self, at: usize) -> Option<usize> {
        let text = self.texts[at].replace('*', self.unused.encode_utf8(&mut [0; 4]));
        self.wildcards.first_match(&text).copied().filter(|cover| *cover < at)
    }

    /// The wildcard that matches every value of this bare key.
    pub(super) fn bare_key_covered_by(&self, at: usize) -> Option<usize> {
        self.wildcards.first_match(&format!("{}_{}", self.texts[at], self.unused)).copied()
    }

    /// False if every request has the same result without this descriptor, which has neither a limit nor descriptors below.
    /// True if uncertain.
    pub(super) fn may_exempt(&self, at: usize) -> bool {
        let text = self.texts[at].as_str();
        match text.split_once('*') {
            // It takes precedence over wildcards that match it, and over bare keys that are a prefix of it.
            None => {
                let is_bare_key = |(end, _)| text.get(..end).is_some_and(|key| self.known.contains(key));
                self.wildcards.first_match(text).is_some() || text.match_indices('_').any(is_bare_key)
            }
            Some((prefix, _)) => {
                let may_overlap = |key: &String| {
                    let values = format!("{key}_");
                    prefix.starts_with(&values) || values.starts_with(prefix)
                };
                self.wildcard_count > 1 || self.texts.iter().any(|key| !key.contains('*') && may_overlap(key))
            }
        }
    }
}

/// A level that contains every character of the private use area may lack a warning.
fn unused_character(texts: &[String]) -> char {
    let used: HashSet<char> = texts.iter().flat_map(|text| text.chars()).collect();
    ('\u{e000}'..='\u{f8ff}').find(|character| !used.contains(character)).unwrap_or('\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_wildcard_hides_later_ones_that_it_covers() {
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
    fn a_wildcard_for_all_values_hides_the_bare_key_in_any_order() {
        for (other, taken) in [("k_*", true), ("k*", true), ("k_**", true), ("k_a*", false), ("j_*", false)] {
            let texts = level(&["k", other]);
            assert_eq!(Reach::of(&texts).bare_key_covered_by(0).is_some(), taken, "{other}");
        }
    }

    #[test]
    fn a_value_may_be_an_exemption_from_other_descriptors() {
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

    /// Every text of up to this number of these letters.
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
        fn every_text_of_a_hidden_wildcard_matches_an_earlier_one(
            first in "[ab]{0,1}\\*[ab*]{0,3}",
            later in "[ab]{0,1}\\*[ab*]{0,3}",
        ) {
            // One more letter than in the patterns, and texts as long as the later pattern: a text that only
            // the later one matches replaces each of its stars by that letter.
            let (one, other) = (Pattern::new(&first), Pattern::new(&later));
            let included =
                texts_of(&['a', 'b', 'c'], 5).iter().all(|text| !other.matches(text) || one.matches(text));
            let texts = vec![first, later];
            prop_assert_eq!(Reach::of(&texts).wildcard_covered_by(1).is_some(), included);
        }
    }
}
