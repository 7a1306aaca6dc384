//! A part of the overrides: a hash table, and what is known of all that it has.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    sync::Arc,
};

use foldhash::fast::SeedableRandomState;
use hashbrown::{HashTable, hash_table::Entry};
use smallvec::SmallVec;

use crate::{
    model::{Action, Override},
    target::{Scope, Target},
};

/// The levels of a descriptor whose values an override leaves to the rule, a bit each.
pub(super) type LevelsOfRule = u32;

#[derive(Clone, Default)]
pub(super) struct Shard {
    table: HashTable<Arc<Override>>,
    /// Without the switches of domains.
    pub(super) by_action: [u32; Action::NAMES.len()],
    pub(super) has_local_calendar: bool,
    /// The first second at which one expires.
    pub(super) next_end: Option<u32>,
    /// Each that an override for descriptors has.
    pub(super) levels_of_rule: SmallVec<[LevelsOfRule; 2]>,
    /// The [bits](bit_of_keys) of their keys.
    pub(super) bits_of_keys: u64,
    /// The memory of the overrides, without that of the table.
    bytes: usize,
}

impl Shard {
    /// Sets overrides, each with the hash of its target.
    pub(super) fn set(&mut self, all: &[(u64, Arc<Override>)], hasher: &SeedableRandomState) {
        let hash = |one: &Arc<Override>| hash_target(&one.target, hasher);
        self.table.reserve(all.len(), hash);
        for (of_target, one) in all {
            match self.table.entry(*of_target, |known| known.target == one.target, hash) {
                Entry::Occupied(mut known) => *known.get_mut() = one.clone(),
                Entry::Vacant(vacant) => drop(vacant.insert(one.clone())),
            }
        }
        self.summarize();
    }

    /// Removes up to a number of overrides for which `is_gone` is true, and returns them.
    pub(super) fn remove(
        &mut self,
        most: usize,
        mut is_gone: impl FnMut(&Override) -> bool,
    ) -> Vec<Arc<Override>> {
        let removed = self.table.extract_if(|one| is_gone(one)).take(most).collect();
        self.summarize();
        removed
    }

    fn summarize(&mut self) {
        *self = Self { table: std::mem::take(&mut self.table), ..Self::default() };
        for one in &self.table {
            let scope = one.target.scope();
            if let Some(index) = one.action.index().filter(|_| !scope.is_switch()) {
                self.by_action[index] += 1;
            }
            self.bits_of_keys |= bit_of_keys(one.target.entries().iter().map(|(key, _)| &**key));
            let levels_of_rule = levels_of_rule(&one.target);
            if scope == Scope::Descriptor && !self.levels_of_rule.contains(&levels_of_rule) {
                self.levels_of_rule.push(levels_of_rule);
            }
            self.has_local_calendar |= one.action.has_local_calendar();
            self.next_end = [self.next_end, one.expires].into_iter().flatten().min();
            self.bytes += one.memory();
        }
    }

    pub(super) fn find(&self, hash: u64, is_same: impl Fn(&Override) -> bool) -> Option<&Arc<Override>> {
        self.table.find(hash, |one| is_same(one))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Override>> {
        self.table.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.bytes + self.table.allocation_size() + size_of::<Self>()
    }
}

pub(super) fn levels_of_rule(target: &Target) -> LevelsOfRule {
    let levels = target.entries().iter().zip(0..);
    levels.map(|((_, value), level)| u32::from(value.is_of_rule()) << level).sum()
}

/// A bit for the keys of a descriptor, by their ends, so that one whose keys no override has is seldom looked up. Operators
/// choose the keys of overrides, so there are few lists of them.
pub(super) fn bit_of_keys<'k>(keys: impl Iterator<Item = &'k str>) -> u64 {
    let mixed = keys.fold(0_u32, |mixed, key| {
        let ends = [key.as_bytes().first(), key.as_bytes().last()];
        ends.into_iter()
            .flatten()
            .fold(mixed, |mixed, byte| mixed.wrapping_mul(31).wrapping_add((*byte).into()))
    });
    1 << (mixed % 64)
}

pub(super) fn hash_target(target: &Target, hasher: &SeedableRandomState) -> u64 {
    let entries = target.entries().iter();
    hash_entries(target.domain(), entries.map(|(key, value)| (&**key, value.text())), hasher)
}

/// The hash of a target. `None` is a value that the override leaves to the rule.
pub(super) fn hash_entries<'t>(
    domain: &str,
    entries: impl Iterator<Item = (&'t str, Option<&'t str>)>,
    hasher: &SeedableRandomState,
) -> u64 {
    let mut state = hasher.build_hasher();
    let mut add = |text: &str| {
        state.write(text.as_bytes());
        // No text has this byte, so that the end of a text is unambiguous.
        state.write_u8(0xff);
    };
    add(domain);
    for (key, value) in entries {
        add(key);
        add(value.unwrap_or_default());
    }
    state.finish()
}
