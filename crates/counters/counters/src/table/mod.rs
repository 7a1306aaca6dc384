//! A table of small states that expire: the counters of the memory store, and the keys over their limit.
//!
//! A key is a [`CounterId`]: some bits of the hash select the shard, ten of them in a table of ten million keys, and 80
//! are in the slot. Two keys share a state only if all of these bits are equal: with ten million live keys the odds are 1
//! in 10¹³. A slot also has the [`Mark`] of its state, which decides when a full table evicts one.
//!
//! Each shard has a lock, which is held for tens of nanoseconds, or while a shard that grows moves at most 16,384
//! states; no lock is held across an await. A slot takes 24 bytes with a 64-bit state. ARCHITECTURE.md explains why the
//! table is written by hand.

mod eviction;
mod shard;
mod slots;

use std::sync::{Mutex, MutexGuard};

use metrics::TableUsage;
use smallvec::SmallVec;

use crate::id::CounterId;
use clock::Time;
pub use eviction::{Candidate, victim};
pub use eviction::{Mark, Used};
use faults::mutex::lock;
use shard::Shard;
use slots::{Shape, Tag};

/// Enough shards that two cores seldom need the same one. Small tables have fewer, and large ones more.
const SHARDS: usize = 1024;

/// Slots of a bucket. Ten buckets of 24-byte slots fill a piece to the last 16 bytes, and with two buckets for each key
/// 90 to 95 % of all slots are taken before a key has no room.
const BUCKET: usize = 17;

/// Minimum number of slots of a shard, unless it is the only one. With this number, one shard in a hundred is full when
/// nine tenths of all slots are taken; with fewer slots more shards would be.
const LEAST_IN_A_SHARD: usize = 512;

/// Maximum number of slots of a shard, unless there are already [`MOST_SHARDS`]: moving this many states takes a
/// fraction of a millisecond.
const MOST_IN_A_SHARD: usize = 16_384;

/// The number of shards that 16 bits can select.
const MOST_SHARDS: usize = 1 << 16;

/// States by key. An unknown key has the default state.
pub struct Table<S> {
    shards: Box<[Padded<S>]>,
}

/// A lock to a cache line, which avoids false sharing.
#[repr(align(64))]
struct Padded<S>(Mutex<Shard<S>>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept<S> {
    pub state: S,
    pub end: Time,
    pub mark: Mark,
}

impl<S: Copy + Default> Table<S> {
    pub const BYTES_PER_ENTRY: usize = size_of::<slots::Slot<S>>();

    /// An empty table of at most this many states, and at least one. When both buckets of a new key are full, a state in
    /// them is evicted; this begins when about nine tenths of the slots are taken.
    pub fn new(max_entries: usize) -> Self {
        let max_entries = max_entries.max(1);
        let shards = shards_for(max_entries);
        let shape = Shape::within(max_entries.checked_div(shards).unwrap_or(max_entries));
        Self { shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(shape)))).collect() }
    }

    pub fn get(&self, key: CounterId, now: Time) -> Option<S> {
        self.shard(key).get(key.tag(), seconds(now))
    }

    /// Calls `change` with the state of a key, and stores the new one if there is any. A key without a live state has the
    /// default, which has ended.
    pub fn change<R>(
        &self,
        key: CounterId,
        now: Time,
        change: impl FnOnce(Kept<S>) -> (Option<Kept<S>>, R),
    ) -> R {
        self.shard(key).change(key.tag(), seconds(now), change)
    }

    /// Changes the state of a key, which then expires at `end`. Of such states the one that expires first is evicted.
    pub fn update<R>(&self, key: CounterId, now: Time, end: Time, change: impl FnOnce(&mut S) -> R) -> R {
        self.change(key, now, |Kept { mut state, mark, .. }| {
            let result = change(&mut state);
            (Some(Kept { state, end, mark }), result)
        })
    }

    pub fn remove(&self, key: CounterId, now: Time) {
        self.shard(key).remove(key.tag(), seconds(now));
    }

    /// Locks every shard of these keys, so that all that happens through the result is atomic.
    pub fn lock(&self, keys: impl IntoIterator<Item = CounterId>) -> Locked<'_, S> {
        let mut shards: SmallVec<[usize; 8]> = keys.into_iter().map(|key| self.shard_of(key)).collect();
        // In one order for all requests, so that there is no deadlock.
        shards.sort_unstable();
        shards.dedup();
        let locked = |at| self.shards.get(at).map(|shard: &Padded<S>| (at, lock(&shard.0)));
        Locked { table: self, shards: shards.into_iter().filter_map(locked).collect() }
    }

    /// Removes expired states from one of `parts` parts of the table; call it for each in turn. A lock is held for one
    /// piece of a shard at a time.
    pub fn sweep(&self, part: usize, parts: usize, now: Time) {
        for shard in self.shards.iter().skip(part).step_by(parts.max(1)) {
            let mut pieces = 0..;
            while pieces.next().is_some_and(|piece| lock(&shard.0).sweep(piece, seconds(now))) {}
        }
    }

    /// The mark of a live state.
    #[cfg(any(test, feature = "testing"))]
    pub fn mark(&self, key: CounterId, now: Time) -> Option<Mark> {
        self.shard(key).mark(key.tag(), seconds(now))
    }

    pub fn usage(&self) -> TableUsage {
        self.shards.iter().map(|shard| lock(&shard.0).usage()).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "`shard_of` masks by the number of shards, a power of two")]
    fn shard(&self, key: CounterId) -> MutexGuard<'_, Shard<S>> {
        lock(&self.shards[self.shard_of(key)].0)
    }

    fn shard_of(&self, key: CounterId) -> usize {
        key.shard() & (self.shards.len() - 1)
    }
}

pub struct Locked<'t, S> {
    table: &'t Table<S>,
    shards: SmallVec<[(usize, MutexGuard<'t, Shard<S>>); 8]>,
}

impl<S: Copy + Default> Locked<'_, S> {
    /// As [`Table::change`]. A key whose shard is not locked has the default state, and no change of it is stored.
    pub fn change<R>(
        &mut self,
        key: CounterId,
        now: Time,
        change: impl FnOnce(Kept<S>) -> (Option<Kept<S>>, R),
    ) -> R {
        let wanted = self.table.shard_of(key);
        match self.shards.iter_mut().find(|(shard, _)| *shard == wanted) {
            Some((_, shard)) => shard.change(key.tag(), seconds(now), change),
            None => change(Kept::default()).1,
        }
    }
}

impl CounterId {
    fn tag(self) -> Tag {
        Tag { home: self.home, more: self.more }
    }
}

/// The number of shards of a table: a power of two.
fn shards_for(max_entries: usize) -> usize {
    let wanted = (max_entries / LEAST_IN_A_SHARD).clamp(1, SHARDS);
    let few = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
    let many = max_entries.div_ceil(MOST_IN_A_SHARD).min(MOST_SHARDS).next_power_of_two();
    few.max(many)
}

/// Ends are whole seconds in 32 bits, until 2106.
fn seconds(time: Time) -> u32 {
    u32::try_from(time.seconds()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
