//! The way of a request's entries down the rules: what each level took, what stood near and why it did not.
//!
//! A plain function of rules and entries. It walks by the matcher's own steps, so that it cannot come out
//! elsewhere than a request does.

use crate::rules::{
    Entry, How, Rule,
    model::{Domain, Level, Node},
    nearest,
    wildcard::Pattern,
};

/// As many near descriptors of a level as somebody may want to read.
const MOST_NEAR: usize = 8;

/// The levels that the entries came to, and how it ended.
#[derive(Debug)]
pub(super) struct Path<'r> {
    /// One for each entry that met a level.
    pub(super) levels: Vec<Step<'r>>,
    pub(super) end: End<'r>,
}

/// What an entry came by on its level.
#[derive(Debug)]
pub(super) struct Step<'r> {
    pub(super) taken: Option<Taken<'r>>,
    /// What stood near, at most [`MOST_NEAR`].
    pub(super) near: Vec<Near<'r>>,
    /// How many more descriptors stand on this level.
    pub(super) others: usize,
}

/// The descriptor that an entry went on by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken<'r> {
    pub(super) node: &'r Node,
    pub(super) how: How,
}

/// A descriptor that was not taken.
#[derive(Debug)]
pub(super) struct Near<'r> {
    pub(super) text: &'r str,
    pub(super) why: Why,
}

/// Why a descriptor was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// It matches, but an exact text goes first.
    AfterExact,
    /// It matches, but a wildcard that matches stands before it in the file.
    AfterWildcard,
    /// It has no value and matches, but a wildcard that matches goes first.
    AfterValue,
    /// It is for another value.
    OtherValue,
    /// Its pattern does not take the entry.
    OtherPattern,
    /// It is spelled much alike.
    Alike,
    /// It is for another key.
    OtherKey,
}

/// How the way ended.
#[derive(Debug)]
pub(super) enum End<'r> {
    /// At a rule.
    Rule(&'r Rule),
    /// An entry, the last of the levels, met nothing.
    Nothing,
    /// The rules end above this entry, by its number.
    TooManyEntries { first: usize },
    /// The last level has no limit, but there are further levels.
    TooFewEntries { below: Vec<&'r str> },
    /// The last level has no limit and leads nowhere: an exemption.
    NoLimit,
}

/// The way of these entries.
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
        let taken = step.map(|step| Taken { node: step.node(), how: step.how() });
        levels.push(passage(level, entry, taken));
        let Some(taken) = taken else { return Path { levels, end: End::Nothing } };
        last = Some(taken.node);
        level = &taken.node.children;
    }
    let end = match last.and_then(|node| node.rule.as_ref()) {
        Some(rule) => End::Rule(rule),
        None if level.is_empty() => End::NoLimit,
        None => {
            let below = level.in_order().into_iter().map(|(_, node)| &*node.text).take(MOST_NEAR).collect();
            End::TooFewEntries { below }
        }
    };
    Path { levels, end }
}

fn passage<'r>(level: &'r Level, entry: &impl Entry, taken: Option<Taken<'r>>) -> Step<'r> {
    let text = format!("{}_{}", entry.key(), entry.value());
    let mut all = level.in_order();
    all.retain(|(_, node)| taken.is_none_or(|taken| !std::ptr::eq(taken.node, *node)));
    let why = |pattern, node: &Node| why(pattern, node, entry.key(), &text, taken.map(|taken| taken.how));
    let mut near: Vec<Near<'r>> =
        all.iter().map(|(pattern, node)| Near { text: &node.text, why: why(*pattern, node) }).collect();
    if taken.is_none() {
        let alike = [entry.key(), &text].map(|word| nearest(word, all.iter().map(|(_, node)| &*node.text)));
        for near in near.iter_mut().filter(|near| near.why == Why::OtherKey) {
            if alike.contains(&Some(near.text)) {
                near.why = Why::Alike;
            }
        }
    }
    // Those for another key are worth telling only where there is nothing nearer.
    if taken.is_some() || near.iter().any(|near| near.why != Why::OtherKey) {
        near.retain(|near| near.why != Why::OtherKey);
    }
    near.sort_by_key(|near| near.why as u8);
    near.truncate(MOST_NEAR);
    Step { taken, others: all.len() - near.len(), near }
}

fn why(pattern: Option<&Pattern>, node: &Node, key: &str, text: &str, taken: Option<How>) -> Why {
    let is_of_key = node.text.strip_prefix(key).is_some_and(|rest| rest.starts_with('_'));
    match (pattern, taken) {
        (Some(pattern), Some(How::Exact)) if pattern.matches(text) => Why::AfterExact,
        (Some(pattern), _) if pattern.matches(text) => Why::AfterWildcard,
        (Some(_), _) if is_of_key => Why::OtherPattern,
        (None, Some(How::Exact)) if *node.text == *key => Why::AfterExact,
        (None, _) if *node.text == *key => Why::AfterValue,
        (None, _) if is_of_key => Why::OtherValue,
        _ => Why::OtherKey,
    }
}
