//! Finds the rule that a request's descriptor matches.
//!
//! Each entry of the descriptor is matched on one level of the tree: first the exact `key_value`, then the wildcards in the
//! order of the file, then the bare `key`. Keys and values are compared joined, as in the Go service: the entry `a` = `b`
//! also matches a rule whose bare key is `a_b`. A rule applies only on the level of the last entry.

use std::sync::Arc;

use smallvec::SmallVec;

use super::model::{Domain, Level, Metadata, Node, Rule};

/// One `key = value` of a request's descriptor.
pub trait Entry {
    fn key(&self) -> &str;
    /// The value; empty if it has none.
    fn value(&self) -> &str;
}

impl Entry for (&str, &str) {
    fn key(&self) -> &str {
        self.0
    }

    fn value(&self) -> &str {
        self.1
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum How {
    /// `key_value`.
    Exact,
    Wildcard,
    Bare,
}

#[derive(Clone, Copy, Debug)]
pub struct MatchStep<'r> {
    pub node: &'r Node,
    pub how: How,
}

#[derive(Debug)]
pub struct Matched<'r> {
    pub rule: &'r Rule,
    steps: SmallVec<[MatchStep<'r>; 4]>,
    /// There are levels below the last one.
    has_children: bool,
    /// The metric name is the rule's full key.
    as_written: bool,
}

impl Domain {
    /// The rule that these entries match. `scratch` is used as a buffer and left as it was.
    pub fn find<E: Entry>(&self, entries: &[E], scratch: &mut String) -> Option<Matched<'_>> {
        let mut steps: SmallVec<[MatchStep<'_>; 4]> = SmallVec::new();
        let mut level = &self.root;
        let mut as_written = true;
        for entry in entries {
            let step = level.step(entry, scratch)?;
            as_written &= step.is_as_written(entry);
            steps.push(step);
            level = &step.node.children;
        }
        let last = steps.last()?;
        let rule = last.node.rule.as_ref()?;
        let as_written = as_written && !rule.detailed_metric;
        Some(Matched { rule, has_children: !level.is_empty(), steps, as_written })
    }

    /// True if a descriptor without a limit is written for entries that match no rule: it has none below it, or its key alone
    /// has a limit. `scratch` is used as a buffer and left as it was.
    pub fn exempts<E: Entry>(&self, entries: &[E], scratch: &mut String) -> bool {
        let Some((last, before)) = entries.split_last() else { return false };
        let mut level = &self.root;
        for entry in before {
            let Some(step) = level.step(entry, scratch) else { return false };
            level = &step.node.children;
        }
        let is_limited = |node: &Node| node.rule.is_some();
        level.step(last, scratch).is_some_and(|MatchStep { node, .. }| {
            let is_end = node.children.is_empty();
            !is_limited(node) && (is_end || level.named(last.key()).is_some_and(is_limited))
        })
    }

    /// An order in which these entries match a rule, as indexes: on each level first an exact value, then a wildcard, then
    /// a bare key, and of several the first key. It visits no more descriptors than the rules have.
    pub fn order<E: Entry>(&self, entries: &[E]) -> Option<Vec<usize>> {
        let mut order = Vec::with_capacity(entries.len());
        self.root.order(entries, &mut order, &mut String::new()).then_some(order)
    }
}

impl Level {
    /// The step of this entry on this level. `scratch` is used as a buffer and left as it was.
    pub fn step(&self, entry: &impl Entry, scratch: &mut String) -> Option<MatchStep<'_>> {
        if self.is_empty() {
            return None;
        }
        let bare = || self.named(entry.key()).map(|node| MatchStep { node, how: How::Bare });
        let length = entry.key().len() + entry.value().len();
        if length >= self.longest && self.wildcards.is_empty() {
            // With the underscore it is longer than every text: on levels of bare keys, joining it costs as much as the
            // rest of the match.
            return bare();
        }
        let start = scratch.len();
        scratch.push_str(entry.key());
        scratch.push('_');
        scratch.push_str(entry.value());
        let text = scratch.split_at(start).1;
        let found = if let Some(node) = self.named(text) {
            Some(MatchStep { node, how: How::Exact })
        } else if let Some(node) = self.wildcards.first_match(text) {
            Some(MatchStep { node, how: How::Wildcard })
        } else {
            bare()
        };
        scratch.truncate(start);
        found
    }

    fn order<E: Entry>(&self, entries: &[E], order: &mut Vec<usize>, scratch: &mut String) -> bool {
        let left = entries.iter().enumerate().filter(|(index, _)| !order.contains(index));
        let steps = left.filter_map(|(index, entry)| Some((self.step(entry, scratch)?, entry.key(), index)));
        let mut steps: SmallVec<[_; 4]> = steps.collect();
        steps.sort_unstable_by_key(|(step, key, _)| (step.how, *key));
        for (MatchStep { node, .. }, _, index) in steps {
            order.push(index);
            let is_last = order.len() == entries.len();
            if if is_last { node.rule.is_some() } else { node.children.order(entries, order, scratch) } {
                return true;
            }
            order.pop();
        }
        false
    }
}

impl<'r> MatchStep<'r> {
    /// The part of the pattern after `key_`; the complete pattern if the key has the `*`.
    pub fn pattern_value(&self, entry: &impl Entry) -> &'r str {
        let text = &*self.node.text;
        text.strip_prefix(entry.key()).and_then(|rest| rest.strip_prefix('_')).unwrap_or(text)
    }

    /// The pattern that replaces the request's value in the counter's key.
    fn shared_value(&self, entry: &impl Entry) -> Option<&'r str> {
        if self.how != How::Wildcard || !self.node.share_threshold {
            return None;
        }
        Some(self.pattern_value(entry)).filter(|value| !value.is_empty())
    }

    /// The value of this level in metric names; empty for the key alone.
    #[inline]
    fn metric_value<'a>(&self, entry: &'a impl Entry) -> &'a str
    where
        'r: 'a,
    {
        match self.how {
            How::Exact => entry.value(),
            How::Bare if self.node.value_to_metric => entry.value(),
            How::Bare => "",
            How::Wildcard => match self.shared_value(entry) {
                Some(shared) => shared,
                None if self.node.value_to_metric => entry.value(),
                None => self.pattern_value(entry),
            },
        }
    }

    /// True if metric names have the text of the file for this level.
    fn is_as_written(&self, entry: &impl Entry) -> bool {
        match (self.how, self.metric_value(entry)) {
            (How::Exact, value) => !value.is_empty(),
            (How::Bare, value) => value.is_empty(),
            (How::Wildcard, value) => {
                let after_key = self.node.text.strip_prefix(entry.key());
                !value.is_empty() && after_key.and_then(|rest| rest.strip_prefix('_')) == Some(value)
            }
        }
    }
}

impl<'r> Matched<'r> {
    /// The levels of the path, from first to last.
    pub fn steps(&self) -> &[MatchStep<'r>] {
        &self.steps
    }

    /// The pattern that replaces the value of entry `index` in the counter's key, if all values that match it share one
    /// counter. The pattern itself is one of those values.
    pub fn shared_value<E: Entry>(&self, index: usize, entry: &E) -> Option<&'r str> {
        let step = self.steps.get(index).filter(|step| step.how != How::Bare && step.node.share_threshold)?;
        Some(step.pattern_value(entry)).filter(|value| !value.is_empty())
    }

    /// True if the metric name is the rule's full key, so that no name is built.
    pub fn is_as_written(&self) -> bool {
        self.as_written
    }

    /// Appends the metric name of this request and rule.
    pub fn write_metric_key<E: Entry>(&self, domain: &str, entries: &[E], into: &mut String) {
        into.push_str(domain);
        let shares = entries.iter().zip(&self.steps).any(|(entry, step)| step.shared_value(entry).is_some());
        for (entry, step) in entries.iter().zip(&self.steps) {
            into.push('.');
            into.push_str(entry.key());
            let value = if self.rule.detailed_metric {
                step.shared_value(entry).unwrap_or_else(|| entry.value())
            } else {
                step.metric_value(entry)
            };
            // The Go service writes an underscore after a detailed key without a value, unless a level shares
            // its counter.
            if !value.is_empty() || (self.rule.detailed_metric && !shares) {
                into.push('_');
                into.push_str(value);
            }
        }
    }

    /// The metadata of the response. The Go service loses it if it builds the metric name: on a detailed rule without levels
    /// below, and if the name differs from the rule's full key.
    #[inline]
    pub fn metadata(&self) -> Option<&'r Arc<Metadata>> {
        let kept = if self.rule.detailed_metric { self.has_children } else { self.as_written };
        self.rule.metadata.as_ref().filter(|_| kept)
    }
}
