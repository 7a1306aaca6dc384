//! The path of a descriptor's entries down the rules: on each level the descriptor that matched, near descriptors that
//! did not, and why.
//!
//! It uses the matcher's steps, so that it finds the rule that a request matches.

use rules::{
    Entry, How, Rule,
    model::{Domain, Level, Node},
    wildcard::Pattern,
};
use text::spelling::nearest;

/// The maximum number of near descriptors of a level.
const MAX_NEAR: usize = 8;

/// The levels that the entries reached, and the end of the path.
#[derive(Debug)]
pub(super) struct Path<'r> {
    /// One for each entry that reached a level.
    pub(super) levels: Vec<PathStep<'r>>,
    pub(super) end: End<'r>,
}

/// One entry on its level.
#[derive(Debug)]
pub(super) struct PathStep<'r> {
    pub(super) matched: Option<Match<'r>>,
    /// Near descriptors, at most [`MAX_NEAR`].
    pub(super) near: Vec<Near<'r>>,
    /// The number of other descriptors on the level.
    pub(super) others: usize,
}

/// The descriptor that an entry matches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match<'r> {
    pub(super) node: &'r Node,
    pub(super) how: How,
}

/// How an entry matches, in JSON and in text.
pub(super) fn words(how: How) -> (&'static str, &'static str) {
    match how {
        How::Exact => ("exact", "exact value"),
        How::Wildcard => ("wildcard", "the pattern matches"),
        How::Bare => ("any_value", "any value"),
    }
}

/// A descriptor that was not chosen.
#[derive(Debug)]
pub(super) struct Near<'r> {
    pub(super) node: &'r Node,
    pub(super) why: Why,
}

/// Why a descriptor was not chosen, the nearest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// It matches, but an exact value takes precedence.
    AfterExact,
    /// It matches, but a wildcard before it in the file matches too.
    AfterWildcard,
    /// It has no value and matches, but a wildcard takes precedence.
    AfterValue,
    OtherValue,
    /// Its pattern does not match.
    OtherPattern,
    Similar,
    OtherKey,
}

#[derive(Debug)]
pub(super) enum End<'r> {
    /// A rule, and the descriptor that has it.
    Rule(&'r Node, &'r Rule),
    /// The last entry matches no descriptor.
    NoMatch,
    /// No level is left for the entry with this index.
    TooManyEntries { first: usize },
    /// The last descriptor has no limit, but descriptors below it.
    TooFewEntries { below: Vec<&'r str> },
    /// The last descriptor has no limit and nothing below it: an exemption.
    NoLimit(&'r Node),
}

impl<'r> Path<'r> {
    /// The rule at the end, and the descriptor that has it.
    pub(super) fn matched(&self) -> Option<(&'r Node, &'r Rule)> {
        match self.end {
            End::Rule(node, rule) => Some((node, rule)),
            _ => None,
        }
    }
}

impl Why {
    /// True if the descriptor matches and another one takes precedence.
    pub(super) fn matches(self) -> bool {
        matches!(self, Self::AfterExact | Self::AfterWildcard | Self::AfterValue)
    }

    /// The reason in JSON and in text.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::AfterExact => {
                ("exact_takes_precedence", "matches too, but an exact value takes precedence")
            }
            Self::AfterWildcard => (
                "earlier_wildcard_takes_precedence",
                "matches too, but is after the other pattern in the file",
            ),
            Self::AfterValue => {
                ("wildcard_takes_precedence", "matches too, but a pattern takes precedence over any value")
            }
            Self::OtherValue => ("other_value", "another value"),
            Self::OtherPattern => ("other_pattern", "the pattern does not match"),
            Self::Similar => ("similar_spelling", "similar spelling"),
            Self::OtherKey => ("other_key", "another key"),
        }
    }
}

/// The path of these entries.
pub(super) fn walk<'r, E: Entry>(domain: &'r Domain, entries: &[E]) -> Path<'r> {
    let mut levels = Vec::new();
    let mut level = &domain.root;
    let mut last: Option<&Node> = None;
    let mut scratch = String::new();
    for (first, entry) in entries.iter().enumerate() {
        if level.is_empty() {
            return Path { levels, end: End::TooManyEntries { first } };
        }
        let step = level.step(entry, &mut scratch);
        let matched = step.map(|step| Match { node: step.node, how: step.how });
        levels.push(step_of(level, entry, matched));
        let Some(matched) = matched else { return Path { levels, end: End::NoMatch } };
        last = Some(matched.node);
        level = &matched.node.children;
    }
    let end = match last {
        None => End::NoMatch,
        Some(node) => match &node.rule {
            Some(rule) => End::Rule(node, rule),
            None if level.is_empty() => End::NoLimit(node),
            None => {
                let below = level.in_order().into_iter().map(|(_, node)| &*node.text).take(MAX_NEAR);
                End::TooFewEntries { below: below.collect() }
            }
        },
    };
    Path { levels, end }
}

fn step_of<'r>(level: &'r Level, entry: &impl Entry, matched: Option<Match<'r>>) -> PathStep<'r> {
    let text = format!("{}_{}", entry.key(), entry.value());
    let mut all = level.in_order();
    all.retain(|(_, node)| matched.is_none_or(|matched| !std::ptr::eq(matched.node, *node)));
    let why =
        |pattern, node: &Node| why(pattern, node, entry.key(), &text, matched.map(|matched| matched.how));
    let mut near: Vec<Near<'r>> =
        all.iter().map(|(pattern, node)| Near { node, why: why(*pattern, node) }).collect();
    if matched.is_none() {
        let similar = [entry.key(), &text].map(|word| nearest(word, all.iter().map(|(_, node)| &*node.text)));
        for near in near.iter_mut().filter(|near| near.why == Why::OtherKey) {
            if similar.contains(&Some(&near.node.text)) {
                near.why = Why::Similar;
            }
        }
    }
    // Descriptors of other keys are listed only if there is nothing nearer.
    if matched.is_some() || near.iter().any(|near| near.why != Why::OtherKey) {
        near.retain(|near| near.why != Why::OtherKey);
    }
    near.sort_by_key(|near| near.why as u8);
    near.truncate(MAX_NEAR);
    PathStep { matched, others: all.len() - near.len(), near }
}

fn why(pattern: Option<&Pattern>, node: &Node, key: &str, text: &str, matched: Option<How>) -> Why {
    let is_of_key = node.text.strip_prefix(key).is_some_and(|rest| rest.starts_with('_'));
    match (pattern, matched) {
        (Some(pattern), Some(How::Exact)) if pattern.matches(text) => Why::AfterExact,
        (Some(pattern), _) if pattern.matches(text) => Why::AfterWildcard,
        (Some(_), _) if is_of_key => Why::OtherPattern,
        (None, Some(How::Exact)) if *node.text == *key => Why::AfterExact,
        (None, _) if *node.text == *key => Why::AfterValue,
        (None, _) if is_of_key => Why::OtherValue,
        _ => Why::OtherKey,
    }
}
