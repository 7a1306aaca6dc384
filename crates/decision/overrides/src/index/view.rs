//! The overrides at one time, and the lookup of the one that applies to a request's descriptor.
//!
//! The limiter takes a [`View`] once for each request. Without overrides there is none.

use std::sync::Arc;

use arc_swap::Guard;
use foldhash::fast::SeedableRandomState;
use smallvec::SmallVec;

use super::{
    Snapshot,
    shapes::{Level, Shape},
};
use crate::{
    model::{Action, MAX_BYTES, MAX_ENTRIES, Override},
    record::Record,
};
use clock::Time;
use faults::OnStoreFailure;
use rules::{Entry, How, Matched};

/// The override that applies to a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub action: Action,
    /// The second at which it expires, if it does.
    pub expires: Option<u32>,
    /// A bit for each level whose value the override names; all bits if it does not follow the levels of a rule.
    pub exact_levels: u32,
    /// The override, if it is by entry or of a domain. Others are not copied for each request.
    pub by: Option<Arc<Override>>,
}

impl Found {
    pub fn is_limit(&self) -> bool {
        matches!(self.action, Action::Limit { .. })
    }

    fn of(by: &Arc<Override>) -> Self {
        Self { action: by.action, expires: by.expires, exact_levels: u32::MAX, by: Some(by.clone()) }
    }
}

/// True if another override decides in place of the own one: block, allow, limit, then shadow; of two blocks the one that
/// ends later.
fn stronger((own, own_end): (Action, Option<u32>), (other, end): (Action, Option<u32>)) -> bool {
    let rank = |action| match action {
        Action::Block => 0,
        Action::Allow => 1,
        Action::Limit { .. } => 2,
        Action::Shadow => 3,
    };
    let until = |end: Option<u32>| end.unwrap_or(u32::MAX);
    let is_longer_block = own == Action::Block && until(end) > until(own_end);
    rank(other) < rank(own) || rank(other) == rank(own) && is_longer_block
}

/// The overrides at one time. A request uses one view, so that a change does not affect a part of it.
pub struct View<'i> {
    pub(super) snapshot: Guard<Arc<Snapshot>>,
    pub(super) hasher: &'i SeedableRandomState,
    pub(super) now: Time,
}

impl View<'_> {
    /// The override for a descriptor: that for its keys and values, or the one for an entry of it that is stronger.
    /// `matched` finds the rule that the descriptor matches; it is called only if an override may leave a level to the rule.
    pub fn find<'r, E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        matched: impl FnOnce() -> Option<Matched<'r>>,
    ) -> Option<Found> {
        let has_descriptors = self.snapshot.descriptors > 0 && entries.len() <= MAX_ENTRIES;
        let found = |snapshot: &Snapshot, record: &Record<'_>| Found {
            action: record.action,
            expires: record.expires,
            exact_levels: snapshot.shapes.get(record.shape).exact_levels(),
            by: None,
        };
        let of_descriptor =
            if has_descriptors { self.of_descriptor(domain, entries, matched, found) } else { None };
        let scoped = &self.snapshot.scoped;
        if !scoped.has_entries() {
            return of_descriptor;
        }
        let mut strongest: Option<&Arc<Override>> = None;
        for entry in entries {
            let found = scoped.find(domain, entry, self.now.seconds());
            if let Some(found) = found
                && strongest
                    .is_none_or(|one| stronger((one.action, one.expires), (found.action, found.expires)))
            {
                strongest = Some(found);
            }
        }
        match (of_descriptor, strongest) {
            (Some(found), Some(by)) if stronger((found.action, found.expires), (by.action, by.expires)) => {
                Some(Found::of(by))
            }
            (Some(found), _) => Some(found),
            (None, by) => by.map(Found::of),
        }
    }

    /// The switch of a domain that allows or shadows its requests.
    pub fn switch(&self, domain: &str) -> Option<Found> {
        let scoped = &self.snapshot.scoped;
        if scoped.has_switches() { scoped.switch(domain, self.now.seconds()).map(Found::of) } else { None }
    }

    /// The failure policy that a switch of the domain sets.
    pub fn on_store_failure(&self, domain: &str) -> Option<OnStoreFailure> {
        self.snapshot.scoped.on_store_failure(domain, self.now.seconds())
    }

    /// The override that [`find`](Self::find) finds, which does not copy one for keys and values.
    pub fn deciding<'r, E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        matched: impl Fn() -> Option<Matched<'r>>,
    ) -> Option<Override> {
        match self.find(domain, entries, &matched)?.by {
            Some(by) => Some(Override::clone(&by)),
            None => self.of_descriptor(domain, entries, &matched, Snapshot::decode),
        }
    }

    /// The override for all values of a descriptor, else the one that leaves the fewest levels to the rule, and of several
    /// the one that names the earlier levels.
    fn of_descriptor<'r, E: Entry, T>(
        &self,
        domain: &str,
        entries: &[E],
        matched: impl FnOnce() -> Option<Matched<'r>>,
        make: impl Fn(&Snapshot, &Record<'_>) -> T,
    ) -> Option<T> {
        let Self { snapshot, hasher, now } = self;
        let mut shapes = snapshot.shapes.of(domain, entries.iter().map(Entry::key), hasher);
        if let Some((first, rest)) = shapes.split_first()
            && let shape = snapshot.shapes.get(*first)
            && shape.is_exact()
        {
            let values = entries.iter().map(Entry::value);
            if values.clone().all(fits)
                && let Some(record) = snapshot.find(*first, shape, values, *now, hasher)
            {
                return Some(make(snapshot, &record));
            }
            shapes = rest;
        }
        if shapes.is_empty() {
            return None;
        }
        let matched = matched()?;
        shapes.iter().find_map(|number| {
            let shape = snapshot.shapes.get(*number);
            let values = values_by_rule(shape, entries, &matched)?;
            let record = snapshot.find(*number, shape, values.iter().copied(), *now, hasher)?;
            Some(make(snapshot, &record))
        })
    }
}

impl Snapshot {
    /// The record of this shape with these values, if it has not expired.
    fn find<'v>(
        &self,
        number: u16,
        shape: &Shape,
        values: impl Iterator<Item = &'v str> + Clone,
        now: Time,
        hasher: &SeedableRandomState,
    ) -> Option<Record<'_>> {
        self.record(number, shape, values, hasher).filter(|record| !record.is_over(now.seconds()))
    }
}

/// The values of a lookup in which the rule determines the values of some levels. `None` if the rule has an exact value
/// on such a level.
fn values_by_rule<'v, 'r: 'v, E: Entry>(
    shape: &Shape,
    entries: &'v [E],
    matched: &'v Matched<'r>,
) -> Option<SmallVec<[&'v str; 4]>> {
    let mut values = SmallVec::new();
    for ((level, entry), step) in shape.levels.iter().zip(entries).zip(matched.steps()) {
        match (level, step.how) {
            (Level::Exact, _) if fits(entry.value()) => values.push(entry.value()),
            (Level::Any, How::Bare) => {}
            // A request with the pattern itself as its value matches the rule exactly.
            (Level::Pattern, How::Wildcard | How::Exact) => values.push(step.pattern_value(entry)),
            _ => return None,
        }
    }
    Some(values)
}

/// False for values that no override can have; they are not hashed.
fn fits(value: &str) -> bool {
    value.len() <= MAX_BYTES
}
