//! A table of small states that end by themselves: what the memory store counts in, and where the keys
//! over their limit are remembered.
//!
//! A key is stood for by its keyed 128-bit hash, of which 106 bits are kept: ten choose the shard and 96
//! stand in the slot. Two keys share a state only if all of them agree: with ten million keys live at once
//! the odds are 1 in 10¹⁸. The hash key is drawn at start, so that a caller who chooses its keys cannot
//! aim at one part of the table.
//!
//! The table is cut into shards, each under a lock of its own that is held for tens of nanoseconds;
//! no lock is ever held across an await. A slot costs 24 bytes with a 64-bit state.

mod shard;
mod slots;

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use crate::clock::Time;
use shard::Shard;
use slots::Tag;

/// So many shards that two cores seldom meet in one, and that a shard of ten million keys is swept in
/// a fraction of a millisecond.
const SHARDS: usize = 1024;

/// States by key. `S` is what is kept for a key; its default is what an unknown key has.
pub struct Table<S> {
    shards: Box<[Padded<S>]>,
    hasher: SipHasher13,
}

/// A lock to a cache line, so that cores do not fight over neighbours.
#[repr(align(64))]
struct Padded<S>(Mutex<Shard<S>>);

/// What stands for a key: a hash that only this table can make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    shard: u16,
    tag: Tag,
}

/// How full a table is, and what has left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// States that are held, among them those that have ended and were not yet noticed.
    pub entries: usize,
    /// Memory for slots.
    pub bytes: usize,
    /// States that ended and whose slots were given back.
    pub expired: u64,
    /// States that made room for others before their end.
    pub evicted: u64,
}

impl<S: Copy + Default> Table<S> {
    /// An empty table for about so many states. When a shard is full, the state that ends soonest among
    /// the new one's neighbours makes room.
    #[must_use]
    pub fn new(max_entries: usize) -> Self {
        let random = RandomState::new();
        let per_shard = max_entries.div_ceil(SHARDS).max(1);
        Self {
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(Shard::new(per_shard)))).collect(),
            hasher: SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)),
        }
    }

    /// The key that stands for this text.
    #[must_use]
    pub fn key(&self, text: &str) -> Key {
        let hash = self.hasher.hash(text.as_bytes());
        // Two masks and a shift: the ten lowest bits, and the upper half.
        let shard = u16::try_from(hash.h1 % SHARDS as u64).unwrap_or_default();
        Key { shard, tag: Tag { home: hash.h2, more: u32::try_from(hash.h1 >> 32).unwrap_or_default() } }
    }

    /// The state of a key, if it has one that has not ended.
    #[must_use]
    pub fn get(&self, key: Key, now: Time) -> Option<S> {
        self.shard(key).get(key.tag, seconds(now))
    }

    /// Hands the state of a key and its end to `change`, and keeps what that gives back, if anything. A key
    /// without a state has the default, which has ended.
    pub fn change<R>(
        &self,
        key: Key,
        now: Time,
        change: impl FnOnce(S, Time) -> (Option<(S, Time)>, R),
    ) -> R {
        self.shard(key).change(key.tag, seconds(now), in_seconds(change))
    }

    /// Changes the state of a key, which then ends at `end`.
    pub fn update<R>(&self, key: Key, now: Time, end: Time, change: impl FnOnce(&mut S) -> R) -> R {
        self.change(key, now, |mut state, _| {
            let result = change(&mut state);
            (Some((state, end)), result)
        })
    }

    /// Ends the state of a key now.
    pub fn remove(&self, key: Key, now: Time) {
        self.shard(key).remove(key.tag, seconds(now));
    }

    /// Holds every shard of these keys, so that what is read and written through the result is one step.
    pub fn lock(&self, keys: impl IntoIterator<Item = Key>) -> Locked<'_, S> {
        let mut wanted: SmallVec<[usize; 8]> = keys.into_iter().map(shard_of).collect();
        // In one order for all, so that two requests cannot wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        Locked { shards: wanted.into_iter().map(|at| (at, hold(&self.shards[at]))).collect() }
    }

    /// Gives back what has ended in one of `parts` parts of the table; call it for each in turn.
    pub fn sweep(&self, part: usize, parts: usize, now: Time) {
        for shard in self.shards.iter().skip(part).step_by(parts.max(1)) {
            hold(shard).sweep(seconds(now));
        }
    }

    /// How full the table is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shards.iter().fold(Usage::default(), |sum, shard| {
            let one = hold(shard).usage();
            Usage {
                entries: sum.entries + one.entries,
                bytes: sum.bytes + one.bytes,
                expired: sum.expired + one.expired,
                evicted: sum.evicted + one.evicted,
            }
        })
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard<S>> {
        hold(&self.shards[shard_of(key)])
    }
}

/// Several shards, held at once.
pub struct Locked<'t, S> {
    shards: SmallVec<[(usize, MutexGuard<'t, Shard<S>>); 8]>,
}

impl<S: Copy + Default> Locked<'_, S> {
    /// As [`Table::change`]. A key whose shard is not held has the default, and nothing is kept of it.
    pub fn change<R>(
        &mut self,
        key: Key,
        now: Time,
        change: impl FnOnce(S, Time) -> (Option<(S, Time)>, R),
    ) -> R {
        match self.shards.iter_mut().find(|(shard, _)| *shard == shard_of(key)) {
            Some((_, shard)) => shard.change(key.tag, seconds(now), in_seconds(change)),
            None => change(S::default(), Time::default()).1,
        }
    }
}

impl Key {
    /// A number below 1024 that is as good as drawn at random.
    #[must_use]
    pub fn shard(self) -> usize {
        self.shard.into()
    }
}

/// The same with ends as slots keep them.
fn in_seconds<S, R>(
    change: impl FnOnce(S, Time) -> (Option<(S, Time)>, R),
) -> impl FnOnce(S, u32) -> (Option<(S, u32)>, R) {
    |state, end| {
        let (kept, result) = change(state, Time::from_seconds(end.into()));
        (kept.map(|(state, end)| (state, seconds(end))), result)
    }
}

fn shard_of(key: Key) -> usize {
    key.shard()
}

/// A panic while a shard was held leaves whole slots behind: counting on is better than never again.
fn hold<S>(shard: &Padded<S>) -> MutexGuard<'_, Shard<S>> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends are kept in whole seconds in 32 bits, which last until 2106.
fn seconds(time: Time) -> u32 {
    u32::try_from(time.seconds()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn count(table: &Table<u64>, key: &str, now: u64, end: u64) -> u64 {
        table.update(table.key(key), Time::from_seconds(now), Time::from_seconds(end), |n| {
            *n += 1;
            *n
        })
    }

    #[test]
    fn a_state_ends_and_begins_anew() {
        let table = Table::new(1000);
        assert_eq!((count(&table, "a", 10, 20), count(&table, "a", 19, 20)), (1, 2));
        assert_eq!(table.get(table.key("a"), Time::from_seconds(20)), None);
        assert_eq!(count(&table, "a", 20, 30), 1);
    }

    #[test]
    fn sweeping_gives_memory_back() {
        let table = Table::new(1_000_000);
        for n in 0..50_000 {
            count(&table, &n.to_string(), 10, 20);
        }
        assert_eq!(table.usage().entries, 50_000);
        table.sweep(0, 1, Time::from_seconds(20));
        assert_eq!(table.usage(), Usage { entries: 0, bytes: 0, expired: 50_000, evicted: 0 });
    }

    #[test]
    fn a_full_table_stays_within_its_bound_and_drops_what_ends_soonest() {
        let table = Table::new(SHARDS * 8);
        let lasting = table.key("lasting");
        table.update(lasting, Time::from_seconds(1), Time::from_seconds(1000), |n| *n = 7);
        for n in 0..100_000_u64 {
            count(&table, &n.to_string(), 10, 20);
        }
        let usage = table.usage();
        assert!(usage.entries <= SHARDS * 8, "{usage:?}");
        assert_eq!(usage.entries as u64 + usage.evicted, 100_001);
        assert_eq!(table.get(lasting, Time::from_seconds(10)), Some(7));
    }

    #[test]
    fn every_hit_of_many_threads_is_counted_once() {
        let table: Table<u64> = Table::new(1000);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for n in 0..20_000 {
                        count(&table, if n % 2 == 0 { "even" } else { "odd" }, 1, 9);
                    }
                });
            }
        });
        for key in ["even", "odd"] {
            assert_eq!(table.get(table.key(key), Time::from_seconds(1)), Some(40_000));
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_map_would(
            steps in prop::collection::vec((0..40_u8, 0..3_u64, 1..20_u64, any::<bool>()), 1..400)
        ) {
            let table: Table<u64> = Table::new(1_000_000);
            let mut model: HashMap<u8, (u64, u64)> = HashMap::new();
            let mut now = 1;
            for (name, pause, life, forget) in steps {
                now += pause;
                model.retain(|_, (end, _)| *end > now);
                let key = table.key(&name.to_string());
                if forget {
                    table.remove(key, Time::from_seconds(now));
                    model.remove(&name);
                } else {
                    let entry = model.entry(name).or_default();
                    *entry = (now + life, entry.1 + 1);
                    prop_assert_eq!(count(&table, &name.to_string(), now, now + life), entry.1);
                }
                if pause == 2 {
                    table.sweep(0, 1, Time::from_seconds(now));
                    prop_assert_eq!(table.usage().entries, model.len());
                }
            }
        }
    }
}
