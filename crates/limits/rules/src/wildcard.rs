//! Patterns with `*`, and the first one of a list that matches a text.
//!
//! A `*` matches zero or more characters. The patterns of a level are in the order of the file; a long list has an index.

use std::cmp::Reverse;

use aho_corasick::{AhoCorasick, MatchKind};
use hashbrown::HashMap;

/// A text with `*`, split once so that matching only compares.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The literals between the stars; at least two.
    parts: Box<[Box<str>]>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self { parts: text.split('*').map(Box::from).collect() }
    }

    pub fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else {
            return self.parts.first().is_some_and(|only| **only == *text);
        };
        let Some(rest) = text.strip_prefix(&**first) else { return false };
        let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
        for part in middle {
            let Some((_, after)) = rest.split_once(&**part) else { return false };
            rest = after;
        }
        true
    }
}

/// The number of patterns from which an index is faster than trying each.
const INDEX_FROM: usize = 9;

/// Patterns in the order in which they are tried, each with its target.
#[derive(Clone, Debug)]
pub struct Wildcards<T> {
    entries: Vec<(Pattern, T)>,
    index: Option<Index>,
}

impl<T> Default for Wildcards<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), index: None }
    }
}

impl<T> Wildcards<T> {
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// A list of patterns and targets, in the order in which they are tried.
    pub fn new(patterns: Vec<(Pattern, T)>) -> Self {
        let index = (patterns.len() >= INDEX_FROM).then(|| Index::of(&patterns)).flatten();
        Self { entries: patterns, index }
    }

    /// The patterns and their targets, in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.entries.iter().map(|(pattern, to)| (pattern, to))
    }

    pub fn first_match(&self, text: &str) -> Option<&T> {
        let found = match &self.index {
            Some(index) => index.first_match(&self.entries, text),
            None => self.entries.iter().position(|(pattern, _)| pattern.matches(text)),
        };
        self.entries.get(found?).map(|(_, to)| to)
    }
}

/// Finds the patterns that can match a text. A pattern is indexed by its rarest literal, and is tried only if that
/// literal occurs in the text.
#[derive(Clone, Debug)]
struct Index {
    literals: AhoCorasick,
    /// For each literal, the patterns indexed by it, in order.
    filed: Vec<Vec<usize>>,
    /// Patterns without a literal, in order.
    anywhere: Vec<usize>,
}

impl Index {
    fn of<T>(patterns: &[(Pattern, T)]) -> Option<Self> {
        let mut holders: HashMap<&str, usize> = HashMap::new();
        for (pattern, _) in patterns {
            for part in pattern.parts.iter().filter(|part| !part.is_empty()) {
                *holders.entry(part).or_default() += 1;
            }
        }
        let mut number_of: HashMap<&str, usize> = HashMap::new();
        let mut literals = Vec::new();
        let mut filed: Vec<Vec<usize>> = Vec::new();
        let mut anywhere = Vec::new();
        for (at, (pattern, _)) in patterns.iter().enumerate() {
            let rarest = pattern
                .parts
                .iter()
                .filter(|part| !part.is_empty())
                .min_by_key(|part| (holders.get(&***part), Reverse(part.len())));
            let Some(literal) = rarest else {
                anywhere.push(at);
                continue;
            };
            let number = *number_of.entry(literal).or_insert_with(|| {
                let number = literals.len();
                literals.push(literal.as_bytes());
                filed.push(Vec::new());
                number
            });
            if let Some(filed) = filed.get_mut(number) {
                filed.push(at);
            }
        }
        let literals = AhoCorasick::builder().match_kind(MatchKind::Standard).build(literals).ok()?;
        Some(Self { literals, filed, anywhere })
    }

    fn first_match<T>(&self, patterns: &[(Pattern, T)], text: &str) -> Option<usize> {
        let mut best = usize::MAX;
        let mut try_all = |filed: &[usize]| {
            for &at in filed.iter().take_while(|at| **at < best) {
                if patterns.get(at).is_some_and(|(pattern, _)| pattern.matches(text)) {
                    best = at;
                    break;
                }
            }
        };
        try_all(&self.anywhere);
        for literal in self.literals.find_overlapping_iter(text) {
            if let Some(filed) = self.filed.get(literal.pattern().as_usize()) {
                try_all(filed);
            }
        }
        (best != usize::MAX).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The slow, obvious matcher: tries every length for every star.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            Some((byte, rest)) => text.split_first().is_some_and(|(t, tail)| t == byte && slow(rest, tail)),
        }
    }

    #[test]
    fn stars_match_empty_texts() {
        for (pattern, text, matches) in [
            ("k_*", "k_", true),
            ("k_a*a", "k_a", false),
            ("k_a**b", "k_ab", true),
            ("*", "", true),
            ("k_*b*c", "k_bbc", true),
            ("k_*b*c", "k_cb", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), matches, "{pattern} on {text:?}");
        }
    }

    proptest! {
        #[test]
        fn matches_as_the_obvious_matcher_does(pattern in "[ab*]{0,3}\\*[ab*]{0,4}", text in "[ab]{0,9}") {
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), slow(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn the_index_finds_what_trying_each_finds(
            patterns in prop::collection::vec("[abc]{0,2}\\*[abc]{0,2}\\*?[abc]{0,1}", INDEX_FROM..40),
            text in "[abc]{0,8}",
        ) {
            let first = patterns.iter().position(|p| slow(p.as_bytes(), text.as_bytes()));
            let all = Wildcards::new(patterns.iter().enumerate().map(|(at, p)| (Pattern::new(p), at)).collect());
            prop_assert!(all.index.is_some());
            prop_assert_eq!(all.first_match(&text).copied(), first);
        }
    }
}
