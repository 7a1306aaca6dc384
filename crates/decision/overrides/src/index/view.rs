//! The overrides at one time, and the lookup of the one that applies to a request's descriptor.
//!
//! The limiter takes a [`View`] once for each request. Without overrides there is none.

use std::sync::Arc;

use arc_swap::Guard;
use foldhash::fast::SeedableRandomState;
use smallvec::SmallVec;

use super::{
    Snapshot,
    shapes::{Family, Level, LevelValue, Shape},
    shard_of,
};
use crate::{
    model::{Action, MAX_BYTES, MAX_ENTRIES, Override, in_words},
    target::{Scope, Value},
};
use clock::Time;
use faults::OnStoreFailure;
use limit::Limit;
use rules::{Entry, How, Matched};

/// The override that applies to a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub action: Action,
    /// The name of the only limit that it changes; `None` for all.
    pub limit_name: Option<Arc<str>>,
    /// The second at which it expires by the clock of the storage, if it does.
    pub expires: Option<u32>,
    /// The microseconds until then, whatever the clock of this process shows.
    pub left: Option<u64>,
    /// A bit for each level whose value the override names; all bits if it does not follow the levels of a rule.
    pub exact_levels: u32,
    /// The override, if it is by entry or of a domain.
    pub by: Option<Arc<Override>>,
}

impl Found {
    /// The override as it is found when the clock of the storage shows `now`.
    pub fn new(one: &Arc<Override>, now: Time) -> Self {
        let by = (one.target.scope() != Scope::Descriptor).then(|| one.clone());
        let exact = |((_, value), level): (&(_, Value), u32)| match value {
            Value::Exact(_) => 1 << level,
            Value::Any | Value::Pattern(_) => 0,
        };
        let exact_levels = match by {
            Some(_) => u32::MAX,
            None => one.target.entries().iter().zip(0..).map(exact).sum(),
        };
        let end = one.expires.map(|end| Time::from_seconds(end.into()));
        Self {
            action: one.action,
            limit_name: one.limit_name.clone(),
            expires: one.expires,
            left: end.map(|end| end.micros().saturating_sub(now.micros())),
            exact_levels,
            by,
        }
    }

    /// True if it changes this limit of a rule, or has replaced one by it.
    pub fn changes(&self, limit: &Limit) -> bool {
        self.action.changes_limits() && (self.limit_name.is_none() || self.limit_name == limit.name)
    }

    /// The effect in a word or two: `limit 100 per minute`, `scale "burst" to 50%`, `block`.
    pub fn effect(&self) -> String {
        in_words(self.action, self.limit_name.as_deref())
    }
}

/// True if another override decides in place of the own one: block, allow, limit or scale, then shadow; of two blocks the one that
/// ends later.
fn stronger((own, own_end): (Action, Option<u32>), (other, end): (Action, Option<u32>)) -> bool {
    let rank = |action| match action {
        Action::Block => 0,
        Action::Allow => 1,
        Action::Limit { .. } | Action::Scale(_) => 2,
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
    /// `matched` is the rule that the descriptor matches, to which an override may leave a level.
    pub fn find<E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        matched: Option<&Matched<'_>>,
    ) -> Option<Found> {
        let of_descriptor = self.of_descriptor(domain, entries, matched);
        let scoped = &self.snapshot.scoped;
        if !scoped.has_entries() {
            return of_descriptor.map(|one| Found::new(one, self.now));
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
            (Some(one), Some(by)) if stronger((one.action, one.expires), (by.action, by.expires)) => {
                Some(Found::new(by, self.now))
            }
            (Some(one), _) | (None, Some(one)) => Some(Found::new(one, self.now)),
            (None, None) => None,
        }
    }

    /// The switch of a domain that allows or shadows its requests.
    pub fn switch(&self, domain: &str) -> Option<Found> {
        let scoped = &self.snapshot.scoped;
        let found = || scoped.switch(domain, self.now.seconds()).map(|one| Found::new(one, self.now));
        if scoped.has_switches() { found() } else { None }
    }

    /// The failure policy that a switch of the domain sets.
    pub fn on_store_failure(&self, domain: &str) -> Option<OnStoreFailure> {
        self.snapshot.scoped.on_store_failure(domain, self.now.seconds())
    }

    /// The override that [`find`](Self::find) finds.
    pub fn deciding<E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        matched: Option<&Matched<'_>>,
    ) -> Option<Arc<Override>> {
        let by = self.find(domain, entries, matched)?.by;
        by.or_else(|| self.of_descriptor(domain, entries, matched).cloned())
    }

    /// The override for all values of a descriptor, else the one that leaves the fewest levels to the rule, and of several
    /// the one that names the earlier levels.
    fn of_descriptor<E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        matched: Option<&Matched<'_>>,
    ) -> Option<&Arc<Override>> {
        if self.snapshot.descriptors == 0 || entries.len() > MAX_ENTRIES {
            return None;
        }
        let family = self.snapshot.shapes.find(domain, &entries.iter().map(Entry::key), self.hasher)?;
        let mut shapes = family.shapes.as_slice();
        if let Some((_, rest)) = shapes.split_first().filter(|(first, _)| first.is_exact()) {
            let values = entries.iter().map(|entry| (Level::Exact, entry.value()));
            if entries.iter().all(|entry| fits(entry.value()))
                && let Some(one) = self.with_values(family, &values)
            {
                return Some(one);
            }
            shapes = rest;
        }
        if shapes.is_empty() {
            return None;
        }
        let matched = matched?;
        shapes.iter().find_map(|shape| {
            let values = values_by_rule(shape, entries, matched)?;
            self.with_values(family, &values.iter().copied())
        })
    }

    /// The override with these values, if it has not expired.
    fn with_values<'v>(
        &self,
        family: &Family,
        values: &(impl Iterator<Item = LevelValue<'v>> + Clone),
    ) -> Option<&Arc<Override>> {
        let hash = family.hash(values.clone(), self.hasher);
        let shard = self.snapshot.shards.get(shard_of(Scope::Descriptor, hash))?;
        let found = shard.find(hash, |one| family.is_of(&one.target, values.clone()));
        found.filter(|one| !one.is_over(self.now))
    }
}

/// The values of a lookup in which the rule determines the values of some levels. `None` if the rule has an exact value
/// on such a level.
fn values_by_rule<'v, 'r: 'v, E: Entry>(
    shape: &Shape,
    entries: &'v [E],
    matched: &'v Matched<'r>,
) -> Option<SmallVec<[LevelValue<'v>; 4]>> {
    let mut values = SmallVec::new();
    for ((level, entry), step) in shape.levels.iter().zip(entries).zip(matched.steps()) {
        match (level, step.how) {
            (Level::Exact, _) if fits(entry.value()) => values.push((Level::Exact, entry.value())),
            (Level::Any, How::Bare) => values.push((Level::Any, "")),
            // A request with the pattern itself as its value matches the rule exactly.
            (Level::Pattern, How::Wildcard | How::Exact) => {
                values.push((Level::Pattern, step.pattern_value(entry)));
            }
            _ => return None,
        }
    }
    Some(values)
}

/// False for values that no override can have; they are not hashed.
fn fits(value: &str) -> bool {
    value.len() <= MAX_BYTES
}
