//! The overrides at one time, and the lookup of the one that applies to a request's descriptor.
//!
//! The limiter takes a [`View`] once for each request. Without overrides there is none.

use std::{ops::Deref, sync::Arc};

use arc_swap::Guard;
use foldhash::fast::SeedableRandomState;

use super::{
    Snapshot,
    shard::{LevelsOfRule, bit_of_keys, hash_entries, levels_of_rule},
    shard_of,
};
use crate::{
    model::{Action, MAX_BYTES, MAX_ENTRIES, Override},
    target::Scope,
};
use clock::Time;
use faults::OnStoreFailure;
use limit::Limit;
use rules::{Entry, How, Matched};

/// The override that applies to a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub one: Arc<Override>,
    /// The microseconds until it expires, whatever the clock of this process shows.
    pub left: Option<u64>,
}

impl Deref for Found {
    type Target = Override;

    fn deref(&self) -> &Override {
        &self.one
    }
}

impl Found {
    /// The override as it is found when the clock of the storage shows `now`.
    pub fn new(one: Arc<Override>, now: Time) -> Self {
        let end = one.expires.map(|end| Time::from_seconds(end.into()));
        let left = end.map(|end| end.micros().saturating_sub(now.micros()));
        Self { one, left }
    }

    /// A bit for each level whose value the override names; all bits if it does not follow the levels of a rule.
    pub fn exact_levels(&self) -> u32 {
        if self.is_apart() { u32::MAX } else { !levels_of_rule(&self.target) }
    }

    /// True if it is by entry or of a domain: then it has counters of its own, whatever rule a descriptor matches.
    pub fn is_apart(&self) -> bool {
        self.target.scope() != Scope::Descriptor
    }

    /// True if it changes this limit of a rule, or has replaced one by it.
    pub fn changes(&self, limit: &Limit) -> bool {
        self.action.changes_limits() && (self.limit_name.is_none() || self.limit_name == limit.name)
    }
}

/// True if `other` decides in place of `one`: block, allow, limit or scale, then shadow; of two blocks the one that ends
/// later.
fn is_stronger(other: &Override, one: &Override) -> bool {
    let rank = |action| match action {
        Action::Block => 0,
        Action::Allow => 1,
        Action::Limit { .. } | Action::Scale(_) => 2,
        Action::Shadow | Action::OnStoreFailure(_) => 3,
    };
    let end = |one: &Override| one.expires.unwrap_or(u32::MAX);
    let is_longer_block = other.action == Action::Block && end(other) > end(one);
    rank(other.action) < rank(one.action) || rank(other.action) == rank(one.action) && is_longer_block
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
        let mut found = self.of_descriptor(domain, entries, matched);
        for entry in entries {
            if let Some(by_entry) = self.snapshot.scoped.find(domain, entry, self.now.seconds())
                && found.is_none_or(|found| is_stronger(by_entry, found))
            {
                found = Some(by_entry);
            }
        }
        found.map(|one| Found::new(one.clone(), self.now))
    }

    /// The switch of a domain that allows or shadows its requests.
    pub fn switch(&self, domain: &str) -> Option<Found> {
        let switch = self.snapshot.scoped.switch(domain, self.now.seconds());
        switch.map(|one| Found::new(one.clone(), self.now))
    }

    /// The failure policy that a switch of the domain sets.
    pub fn on_store_failure(&self, domain: &str) -> Option<OnStoreFailure> {
        self.snapshot.scoped.on_store_failure(domain, self.now.seconds())
    }

    /// The override for all values of a descriptor, else the one that leaves the fewest levels to the rule, and of several
    /// the one that names the earlier levels.
    fn of_descriptor<E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        matched: Option<&Matched<'_>>,
    ) -> Option<&Arc<Override>> {
        if self.snapshot.descriptors == 0
            || entries.len() > MAX_ENTRIES
            || self.snapshot.bits_of_keys & bit_of_keys(entries.iter().map(Entry::key)) == 0
        {
            return None;
        }
        let all = self.snapshot.levels_of_rule.iter();
        all.copied().find_map(|levels_of_rule| self.at_levels(domain, entries, levels_of_rule, matched))
    }

    /// The override, if it has not expired, that leaves these levels to the rule and has the others' values.
    fn at_levels<E: Entry>(
        &self,
        domain: &str,
        entries: &[E],
        levels_of_rule: LevelsOfRule,
        matched: Option<&Matched<'_>>,
    ) -> Option<&Arc<Override>> {
        let is_of_rule = |level: usize| levels_of_rule >> level & 1 == 1;
        let is_deeper = u64::from(levels_of_rule) >> entries.len() > 0;
        // No override has a longer value. It is not hashed.
        let is_long = |(level, entry): (usize, &E)| !is_of_rule(level) && entry.value().len() > MAX_BYTES;
        let has_rule = levels_of_rule == 0 || matched.is_some();
        if is_deeper || !has_rule || entries.iter().enumerate().any(is_long) {
            return None;
        }
        let steps = matched.map_or(&[][..], Matched::steps);
        let value = |level: usize| match steps.get(level).filter(|_| is_of_rule(level)) {
            None => Some(entries[level].value()),
            Some(step) if step.how == How::Bare => None,
            // A request with the pattern itself as its value matches the rule exactly.
            Some(step) => Some(step.pattern_value(&entries[level])),
        };
        let texts = entries.iter().enumerate().map(|(level, entry)| (entry.key(), value(level)));
        let hash = hash_entries(domain, texts.clone(), self.hasher);
        let shard = self.snapshot.shards.get(shard_of(Scope::Descriptor, hash))?;
        let found = shard.find(hash, |one| {
            let own = one.target.entries();
            let mut levels = own.iter().zip(texts.clone());
            own.len() == entries.len()
                && levels.all(|((key, value), (wanted_key, wanted))| {
                    **key == *wanted_key && value.text() == wanted
                })
                // A value of a request may be the text of a pattern.
                && self::levels_of_rule(&one.target) == levels_of_rule
                && one.target.domain() == domain
        });
        found.filter(|one| !one.is_over(self.now))
    }
}
