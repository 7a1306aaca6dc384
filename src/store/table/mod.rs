//! A table of small states that end by themselves: what the memory store counts in, and where the keys
//! over their limit are remembered.
//!
//! A key is stood for by its keyed 128-bit hash: some bits choose the shard, ten of them in a table of ten million
//! keys, and 96 stand in the slot. Two keys share a state only if all of them agree: with ten million keys live
//! at once the odds are 1 in 10¹⁸. The hash key is drawn at start, so that a caller who chooses its keys cannot
//! aim at one part of the table.
//!
//! The table is cut into shards, each under a lock of its own that is held for tens of nanoseconds, and for the
//! time of moving 16,384 states at most when a shard grows; no lock is ever held across an await. A slot costs
//! 24 bytes with a 64-bit state. ARCHITECTURE.md says why the table is our own.

mod shard;
mod slots;

use std::{
    hash::{BuildHasher, Hasher as _, RandomState},
    sync::{Mutex, MutexGuard},
};

use siphasher::sip128::{Hash128, Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use crate::{clock::Time, mutex::lock};
use shard::Shard;
use slots::{Shape, Tag};

/// So many shards that two cores seldom meet in one. Small tables have fewer, and large ones more.
const SHARDS: usize = 1024;

/// A shard is no smaller unless it is the only one. Of so many slots chance leaves one shard in a hundred full
/// while nine tenths of all are taken; of fewer it would be more.
const LEAST_IN_A_SHARD: usize = 512;

/// A shard is no larger unless there are as many shards as a key can select: moving so many states to grow takes a
/// fraction of a millisecond.
const MOST_IN_A_SHARD: usize = 16_384;

/// As many shards as 16 bits can number.
const MOST_SHARDS: usize = 1 << 16;

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
    /// What one state costs, in bytes.
    pub const BYTES_PER_ENTRY: usize = size_of::<slots::Slot<S>>();

    /// An empty table of at most so many states, and at least one. When the two buckets of a new state are
    /// full, the one in them that ends soonest makes room; that begins when about nine tenths are taken.
    #[must_use]
    pub fn new(max_entries: usize) -> Self {
        let random = RandomState::new();
        let max_entries = max_entries.max(1);
        let shards = shards_for(max_entries);
        let shape = Shape::within(max_entries.checked_div(shards).unwrap_or(max_entries));
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(shape)))).collect(),
            hasher: SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)),
        }
    }

    /// The key that stands for this text.
    #[must_use]
    pub fn key(&self, text: &str) -> Key {
        Self::of_hash(self.hasher.hash(text.as_bytes()))
    }

    fn of_hash(hash: Hash128) -> Key {
        let [a, b, _, _, rest @ ..] = hash.h1.to_le_bytes();
        Key { shard: u16::from_le_bytes([a, b]), tag: Tag { home: hash.h2, more: u32::from_le_bytes(rest) } }
    }

    /// The key that stands for these texts, one after the other, and a number.
    #[must_use]
    pub fn key_of(&self, texts: [&str; 2], number: u32) -> Key {
        let mut hasher = self.hasher;
        for text in texts {
            hasher.write(text.as_bytes());
        }
        hasher.write(&number.to_le_bytes());
        Self::of_hash(hasher.finish128())
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
        let mut wanted: SmallVec<[usize; 8]> = keys.into_iter().map(|key| self.shard_of(key)).collect();
        // In one order for all, so that two requests cannot wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        let held = |at| self.shards.get(at).map(|shard: &Padded<S>| (at, lock(&shard.0)));
        Locked { table: self, shards: wanted.into_iter().filter_map(held).collect() }
    }

    /// Gives back what has ended in one of `parts` parts of the table; call it for each in turn. A shard is
    /// held for one piece of it at a time.
    pub fn sweep(&self, part: usize, parts: usize, now: Time) {
        for shard in self.shards.iter().skip(part).step_by(parts.max(1)) {
            let mut pieces = 0..;
            while pieces.next().is_some_and(|piece| lock(&shard.0).sweep(piece, seconds(now))) {}
        }
    }

    /// How full the table is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shards.iter().fold(Usage::default(), |sum, shard| {
            let one = lock(&shard.0).usage();
            Usage {
                entries: sum.entries.saturating_add(one.entries),
                bytes: sum.bytes.saturating_add(one.bytes),
                expired: sum.expired.saturating_add(one.expired),
                evicted: sum.evicted.saturating_add(one.evicted),
            }
        })
    }

    #[expect(clippy::indexing_slicing, reason = "`shard_of` masks by the number of shards, a power of two")]
    fn shard(&self, key: Key) -> MutexGuard<'_, Shard<S>> {
        lock(&self.shards[self.shard_of(key)].0)
    }

    /// The number of shards is a power of two.
    fn shard_of(&self, key: Key) -> usize {
        key.shard() & self.shards.len().saturating_sub(1)
    }
}

/// Several shards, held at once.
pub struct Locked<'t, S> {
    table: &'t Table<S>,
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
        let wanted = self.table.shard_of(key);
        match self.shards.iter_mut().find(|(shard, _)| *shard == wanted) {
            Some((_, shard)) => shard.change(key.tag, seconds(now), in_seconds(change)),
            None => change(S::default(), Time::default()).1,
        }
    }
}

impl Key {
    /// A number of 16 bits that is as good as drawn at random.
    #[must_use]
    pub fn shard(self) -> usize {
        self.shard.into()
    }

    /// A hash of it for a table of another kind.
    #[must_use]
    pub fn hash(self) -> u64 {
        self.tag.home
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

/// How many shards a table of so many states has: a power of two.
fn shards_for(max_entries: usize) -> usize {
    let wanted = (max_entries / LEAST_IN_A_SHARD).clamp(1, SHARDS);
    let few = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
    let many = max_entries.div_ceil(MOST_IN_A_SHARD).min(MOST_SHARDS).next_power_of_two();
    few.max(many)
}

/// Ends are kept in whole seconds in 32 bits, which last until 2106.
fn seconds(time: Time) -> u32 {
    u32::try_from(time.seconds()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
