//! A part of the overrides.

use std::sync::Arc;

use foldhash::fast::SeedableRandomState;
use hashbrown::{HashTable, hash_table::Entry};

use super::shapes::hash_target;
use crate::{
    model::{Action, Override},
    target::Target,
};

#[derive(Clone, Default)]
pub(super) struct Shard {
    table: HashTable<Arc<Override>>,
    /// Without the switches of domains.
    pub(super) by_action: [u32; Action::NAMES.len()],
    pub(super) has_local_calendar: bool,
    /// The first second at which one expires.
    pub(super) next_end: Option<u32>,
    /// The memory of the overrides, without that of the table.
    bytes: usize,
}

impl Shard {
    /// Sets overrides, each with the hash of its target. Calls `is_new` with targets that had none.
    pub(super) fn set(
        &mut self,
        all: &[(u64, Arc<Override>)],
        hasher: &SeedableRandomState,
        mut is_new: impl FnMut(&Target),
    ) {
        let hash = |one: &Arc<Override>| hash_target(&one.target, hasher);
        self.table.reserve(all.len(), hash);
        for (of_target, one) in all {
            match self.table.entry(*of_target, |known| known.target == one.target, hash) {
                Entry::Occupied(mut known) => *known.get_mut() = one.clone(),
                Entry::Vacant(vacant) => {
                    vacant.insert(one.clone());
                    is_new(&one.target);
                }
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
        (self.by_action, self.has_local_calendar, self.next_end, self.bytes) =
            (Default::default(), false, None, 0);
        for one in &self.table {
            if !one.target.scope().is_switch() {
                self.by_action[one.action.index()] += 1;
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
