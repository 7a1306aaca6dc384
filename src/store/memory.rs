//! Counters in this process: exact under contention, small, and alone. Each replica counts by itself.

use smallvec::SmallVec;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Applied, Batch, Check, Counting, Store, StoreUsage, looking};
use crate::{
    algorithm::{Hits, fixed_window},
    clock::Time,
    table::{Key, Table},
};

/// A sweep visits this part of the table at a time, so that each pause is short and a whole round takes
/// as many seconds.
const SWEEP_PARTS: usize = 16;

/// The embedded store.
pub struct MemoryStore {
    counters: Table<u64>,
    swept: AtomicUsize,
    max_keys: usize,
}

impl MemoryStore {
    /// A store that holds about so many keys at once. When a new key finds no room, the counter among
    /// its neighbours whose window ends soonest is forgotten.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        Self { counters: Table::new(max_keys), swept: AtomicUsize::new(0), max_keys }
    }

    fn count(&self, key: Key, check: &Check<'_>, hits: Hits, now: Time) -> u64 {
        if leaves_no_trace(hits) {
            return self.counters.get(key, now).unwrap_or_default();
        }
        let end = fixed_window::window_end(now, check.limit.unit);
        self.counters.update(key, now, end, |count| {
            *count = fixed_window::count(*count, hits);
            *count
        })
    }

    /// Reads every counter and then adds, in one step that no other request can come between.
    fn count_unless_over(&self, batch: &mut Batch<'_>, now: Time) {
        let keys: SmallVec<[Key; 8]> =
            batch.checks().iter().map(|check| self.counters.key(batch.key(check))).collect();
        let mut held = self.counters.lock(keys.iter().copied());
        let over: SmallVec<[bool; 8]> = batch
            .checks()
            .iter()
            .zip(&keys)
            .map(|(check, key)| check.would_be_over(held.get(*key, now).unwrap_or_default()))
            .collect();
        let any_over = over.contains(&true);
        let mut each = keys.into_iter().zip(over);
        batch.answer(|_, check| {
            let Some((key, over)) = each.next() else { return 0 };
            let hits = if any_over && !over { looking(check.hits) } else { check.hits };
            if leaves_no_trace(hits) {
                return held.get(key, now).unwrap_or_default();
            }
            let end = fixed_window::window_end(now, check.limit.unit);
            let counted = held.update(key, now, end, |count| {
                *count = fixed_window::count(*count, hits);
                *count
            });
            counted.unwrap_or_default()
        });
    }
}

/// A counter that is only looked at is not made.
fn leaves_no_trace(hits: Hits) -> bool {
    matches!(hits, Hits::Take(0))
}

impl Store for MemoryStore {
    fn apply<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        match batch.counting {
            Counting::Always => {
                batch.answer(|key, check| self.count(self.counters.key(key), check, check.hits, now));
            }
            Counting::Look => {
                batch
                    .answer(|key, check| self.count(self.counters.key(key), check, looking(check.hits), now));
            }
            Counting::StopWhenOver => self.count_unless_over(batch, now),
        }
        Applied::Now(Ok(()))
    }

    fn answers_at_once(&self) -> bool {
        true
    }

    fn maintain(&self, now: Time) {
        let part = self.swept.fetch_add(1, Ordering::Relaxed) % SWEEP_PARTS;
        self.counters.sweep(part, SWEEP_PARTS, now);
    }

    fn usage(&self) -> Option<StoreUsage> {
        Some(StoreUsage { held: self.counters.usage(), max_keys: self.max_keys })
    }
}
