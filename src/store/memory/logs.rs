//! Sliding logs by key, beside the table: they differ in size, so they are bounded by their bytes.
//!
//! Called by the memory store alone. A log is asked while its shard is held, for as long as its hits that
//! left the window take to drop.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{
    algorithm::{Hits, SlidingLog, Verdict, sliding_log::Log},
    clock::Time,
    table::{Key, Usage},
};

/// So many shards that cores seldom meet in one: a log is held longer than a slot of the table.
const SHARDS: usize = 256;

/// What a key of the table costs at most: a slot of 24 bytes in a table that has just been doubled.
const BYTES_PER_KEY: usize = 48;

/// How many neighbours are looked at for the one that ends soonest.
const NEIGHBOURS: usize = 16;

/// Logs by key.
pub(super) struct Logs {
    shards: Box<[Mutex<Shard>]>,
    /// Of all logs together.
    bytes: AtomicUsize,
    max_bytes: usize,
}

#[derive(Default)]
struct Shard {
    logs: HashMap<Key, Kept>,
    expired: u64,
    evicted: u64,
}

/// A log, and the moment from which on it says nothing any more.
#[derive(Default)]
struct Kept {
    log: Log,
    end: Time,
}

/// Several shards, held at once.
pub(super) struct LockedLogs<'l> {
    logs: &'l Logs,
    shards: SmallVec<[(usize, MutexGuard<'l, Shard>); 1]>,
}

impl Logs {
    /// Logs that take no more memory than so many keys of the table.
    pub(super) fn in_place_of(keys: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, bytes: AtomicUsize::new(0), max_bytes: keys.saturating_mul(BYTES_PER_KEY) }
    }

    /// Asks the log of a key.
    pub(super) fn ask(&self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        self.ask_in(&mut hold(&self.shards[shard_of(key)]), key, limit, hits, now)
    }

    /// Holds every shard of these keys, so that what is asked through the result is one step.
    pub(super) fn lock(&self, keys: impl IntoIterator<Item = Key>) -> LockedLogs<'_> {
        let mut wanted: SmallVec<[usize; 4]> = keys.into_iter().map(shard_of).collect();
        // In one order for all, so that two requests cannot wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        let shards = wanted.into_iter().map(|at| (at, hold(&self.shards[at]))).collect();
        LockedLogs { logs: self, shards }
    }

    fn ask_in(&self, shard: &mut Shard, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        let mut kept = shard.logs.remove(&key).unwrap_or_default();
        let before = kept.bytes();
        let verdict = limit.ask(&mut kept.log, hits, now);
        self.bytes.fetch_sub(before, Relaxed);
        if let Some(end) = limit.end(&kept.log) {
            kept.end = end;
            self.bytes.fetch_add(kept.bytes(), Relaxed);
            self.make_room(shard);
            shard.logs.insert(key, kept);
        }
        verdict
    }

    /// Forgets logs of this shard, of some neighbours always the one that ends soonest, until all logs
    /// together are within their bound.
    fn make_room(&self, shard: &mut Shard) {
        while self.bytes.load(Relaxed) > self.max_bytes {
            let neighbours = shard.logs.iter().take(NEIGHBOURS);
            let Some(key) = neighbours.min_by_key(|(_, kept)| kept.end).map(|(key, _)| *key) else { return };
            let evicted = shard.logs.remove(&key).map_or(0, |kept| kept.bytes());
            self.bytes.fetch_sub(evicted, Relaxed);
            shard.evicted += 1;
        }
    }

    /// Gives back what has ended in one of `parts` parts; call it for each in turn.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Time) {
        for shard in self.shards.iter().skip(part).step_by(parts.max(1)) {
            let mut shard = hold(shard);
            let mut ended = 0;
            let before = shard.logs.len();
            shard.logs.retain(|_, kept| {
                let lasts = kept.end > now;
                ended += if lasts { 0 } else { kept.bytes() };
                lasts
            });
            self.bytes.fetch_sub(ended, Relaxed);
            shard.expired += (before - shard.logs.len()) as u64;
            if shard.logs.len() < shard.logs.capacity() / 4 {
                shard.logs.shrink_to_fit();
            }
        }
    }

    /// How many logs there are, and what they take.
    pub(super) fn usage(&self) -> Usage {
        let none = Usage { bytes: self.bytes.load(Relaxed), ..Usage::default() };
        self.shards.iter().fold(none, |sum, shard| {
            let shard = hold(shard);
            Usage {
                entries: sum.entries + shard.logs.len(),
                expired: sum.expired + shard.expired,
                evicted: sum.evicted + shard.evicted,
                ..sum
            }
        })
    }
}

impl LockedLogs<'_> {
    /// Asks the log of a key; one whose shard is not held is as if it were empty.
    pub(super) fn ask(&mut self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        match self.shards.iter_mut().find(|(at, _)| *at == shard_of(key)) {
            Some((_, shard)) => self.logs.ask_in(shard, key, limit, hits, now),
            None => limit.ask(&mut Log::default(), hits, now),
        }
    }
}

impl Kept {
    /// What it takes, its place in the map included; nothing while it is empty.
    fn bytes(&self) -> usize {
        if self.end == Time::default() { 0 } else { size_of::<(Key, Time)>() + self.log.bytes() }
    }
}

fn shard_of(key: Key) -> usize {
    key.shard() % SHARDS
}

/// A panic while a shard was held leaves whole logs behind: counting on is better than never again.
fn hold(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
