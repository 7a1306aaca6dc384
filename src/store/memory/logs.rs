//! Sliding logs by key, beside the table: they differ in size, so they are bounded by their bytes.
//!
//! Used by the memory store alone. A log is read and written under the lock of its shard. When all logs together exceed
//! the bound, shards that hold more than their share evict logs, after the caller has released its own shard.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;
use smallvec::SmallVec;

use crate::{
    clock::Time,
    limiter::algorithm::{Hits, SlidingLog, Verdict, sliding_log::Log},
    mutex::lock,
    store::table::{Key, Usage},
};

/// Enough shards that two cores seldom need the same one: a log is locked for longer than a slot of the table.
const SHARDS: usize = 256;

/// The maximum memory of a key in the table: a slot of 24 bytes in a table that has just been doubled.
const BYTES_PER_KEY: usize = 48;

/// The number of logs among which the one that expires first is evicted.
const CANDIDATES: usize = 16;

/// A log that grows doubles its memory, which may require evicting many others. One request evicts at most this many;
/// the next one continues.
const MAX_EVICTED: usize = 64;

/// Logs that are swept under one lock of a shard.
const SWEPT_AT_ONCE: usize = 1024;

pub(super) struct Logs {
    shards: Box<[Shard]>,
    bytes: AtomicUsize,
    max_bytes: usize,
    /// The shard that evicted a log last.
    hand: AtomicUsize,
}

/// A shard, and the memory of its logs, which is read without the lock.
#[derive(Default)]
struct Shard {
    bytes: AtomicUsize,
    logs: Mutex<ShardLogs>,
}

#[derive(Default)]
struct ShardLogs {
    /// In no order: the last log fills the place of a removed one.
    logs: IndexMap<Key, Timed, DefaultHashBuilder>,
    /// The place of the next candidate for eviction.
    hand: usize,
    expired: u64,
    evicted: u64,
}

/// A log, and the time from which on it equals an unused one.
struct Timed {
    log: Log,
    end: Time,
}

pub(super) struct LockedLogs<'l> {
    logs: &'l Logs,
    shards: SmallVec<[(usize, MutexGuard<'l, ShardLogs>); 1]>,
}

impl Logs {
    /// Logs that take no more memory than this many keys of the table.
    pub(super) fn in_place_of(keys: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            bytes: AtomicUsize::new(0),
            max_bytes: keys.saturating_mul(BYTES_PER_KEY),
            hand: AtomicUsize::new(0),
        }
    }

    /// Applies hits to the log of a key.
    pub(super) fn apply(&self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        let at = shard_of(key);
        let verdict = self.apply_in(at, &mut lock(&self.shard(at).logs), (key, limit), hits, now);
        self.make_room(&[key]);
        verdict
    }

    /// Locks every shard of these keys, so that all that happens through the result is atomic. Call
    /// [`make_room`](Self::make_room) once it is dropped.
    pub(super) fn lock(&self, keys: impl IntoIterator<Item = Key>) -> LockedLogs<'_> {
        let mut shards: SmallVec<[usize; 4]> = keys.into_iter().map(shard_of).collect();
        // In one order for all requests, so that there is no deadlock.
        shards.sort_unstable();
        shards.dedup();
        let locked = |at| (at, lock(&self.shard(at).logs));
        LockedLogs { logs: self, shards: shards.into_iter().map(locked).collect() }
    }

    fn apply_in(
        &self,
        at: usize,
        shard: &mut ShardLogs,
        (key, limit): (Key, SlidingLog),
        hits: Hits,
        now: Time,
    ) -> Verdict {
        let Some((place, _, known)) = shard.logs.get_full_mut(&key) else {
            let mut log = Log::default();
            let verdict = limit.apply(&mut log, hits, now);
            if let Some(end) = limit.end(&log) {
                let new = Timed { log, end };
                self.resize(at, 0, new.bytes());
                shard.logs.insert(key, new);
            }
            return verdict;
        };
        let before = known.bytes();
        let verdict = limit.apply(&mut known.log, hits, now);
        let after = if let Some(end) = limit.end(&known.log) {
            known.end = end;
            known.bytes()
        } else {
            shard.logs.swap_remove_index(place);
            0
        };
        self.resize(at, before, after);
        verdict
    }

    pub(super) fn remove(&self, key: Key) {
        let at = shard_of(key);
        if let Some(removed) = lock(&self.shard(at).logs).logs.swap_remove(&key) {
            self.resize(at, removed.bytes(), 0);
        }
    }

    /// Updates the memory of a shard and of all logs.
    fn resize(&self, at: usize, before: usize, after: usize) {
        for bytes in [&self.shard(at).bytes, &self.bytes] {
            if after >= before {
                bytes.fetch_add(after.saturating_sub(before), Relaxed);
            } else {
                bytes.fetch_sub(before.saturating_sub(after), Relaxed);
            }
        }
    }

    /// Evicts logs until all together are within their bound: of a shard that holds more than its share, and of a few
    /// candidates the one that expires first. Spares these keys. The caller has locked no shard.
    pub(super) fn make_room(&self, spared: &[Key]) {
        for _ in 0..MAX_EVICTED {
            if self.bytes.load(Relaxed) <= self.max_bytes || !self.evict_one(spared) {
                return;
            }
        }
    }

    fn evict_one(&self, spared: &[Key]) -> bool {
        let share = self.max_bytes / SHARDS;
        let hand = self.hand.load(Relaxed);
        let above_share = |at: &usize| self.shard(*at).bytes.load(Relaxed) > share;
        for at in (hand..SHARDS).chain(0..hand).filter(above_share) {
            let evicted = lock(&self.shard(at).logs).evict(spared);
            if let Some(bytes) = evicted {
                self.resize(at, bytes, 0);
                self.hand.store(at, Relaxed);
                return true;
            }
        }
        false
    }

    /// Removes expired logs from one of `parts` parts; call it for each in turn.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Time) {
        for (at, shard) in self.shards.iter().enumerate().skip(part).step_by(parts.max(1)) {
            let mut from = Some(0);
            while let Some(place) = from {
                let (bytes, next) = lock(&shard.logs).sweep(place, now);
                self.resize(at, bytes, 0);
                from = next;
            }
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let usage = |shard: &Shard| {
            let ShardLogs { logs, expired, evicted, .. } = &*lock(&shard.logs);
            let bytes = shard.bytes.load(Relaxed);
            Usage { entries: logs.len(), bytes, expired: *expired, evicted: *evicted }
        };
        self.shards.iter().map(usage).sum()
    }

    #[expect(clippy::indexing_slicing, reason = "`shard_of` is below the number of shards")]
    fn shard(&self, at: usize) -> &Shard {
        &self.shards[at]
    }
}

impl LockedLogs<'_> {
    /// Applies hits to the log of a key. A log whose shard is not locked counts as empty.
    pub(super) fn apply(&mut self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        match self.shards.iter_mut().find(|(at, _)| *at == shard_of(key)) {
            Some((at, shard)) => self.logs.apply_in(*at, shard, (key, limit), hits, now),
            None => limit.apply(&mut Log::default(), hits, now),
        }
    }
}

impl ShardLogs {
    /// Evicts the candidate that expires first, and returns its memory.
    fn evict(&mut self, spared: &[Key]) -> Option<usize> {
        let from = if self.hand < self.logs.len() { self.hand } else { 0 };
        let places = (from..self.logs.len()).chain(0..from).take(CANDIDATES);
        let candidates = places.filter_map(|place| Some((place, self.logs.get_index(place)?)));
        let candidates = candidates.filter(|(_, (key, _))| !spared.contains(key));
        let place = candidates.min_by_key(|(_, (_, log))| log.end).map(|(place, _)| place);
        self.hand = from.saturating_add(CANDIDATES);
        let (_, evicted) = self.logs.swap_remove_index(place?)?;
        self.evicted = self.evicted.wrapping_add(1);
        Some(evicted.bytes())
    }

    /// Removes expired logs among some. Returns their memory, and where to continue.
    fn sweep(&mut self, from: usize, now: Time) -> (usize, Option<usize>) {
        let (mut place, mut bytes) = (from, 0_usize);
        for _ in 0..SWEPT_AT_ONCE {
            let Some((_, log)) = self.logs.get_index(place) else {
                if self.logs.len() < self.logs.capacity() / 4 {
                    self.logs.shrink_to(self.logs.len().saturating_mul(2));
                }
                return (bytes, None);
            };
            if log.end > now {
                place = place.saturating_add(1);
            } else {
                bytes = bytes.saturating_add(log.bytes());
                self.logs.swap_remove_index(place);
                self.expired = self.expired.wrapping_add(1);
            }
        }
        (bytes, Some(place))
    }
}

impl Timed {
    /// Its memory, with the key and the hash.
    fn bytes(&self) -> usize {
        size_of::<(u64, Key, Time)>().saturating_add(self.log.bytes())
    }
}

fn shard_of(key: Key) -> usize {
    key.shard() % SHARDS
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{limiter::algorithm::Window, store::table::Table};

    fn of_seconds(seconds: u64) -> SlidingLog {
        SlidingLog { limit: 100_000, window: Window::of_seconds(seconds).unwrap() }
    }

    /// Keys of one shard, and keys of others.
    fn keys_in_and_beside_a_shard(count: usize) -> (Vec<Key>, Vec<Key>) {
        let table: Table<u64> = Table::new(1);
        let keys = (0..).map(|n: u32| table.key(&n.to_string()));
        let beside = keys.clone().filter(|key| shard_of(*key) != 7).take(count).collect();
        (keys.filter(|key| shard_of(*key) == 7).take(count).collect(), beside)
    }

    #[test]
    fn a_shard_above_its_share_evicts_logs() {
        let now = Time::from_seconds(100);
        // One shard has 18,000 logs of one hit that expire last, of 20,000 for which there is room.
        let logs = Logs::in_place_of(20_000 * 104 / BYTES_PER_KEY);
        let (inside, beside) = keys_in_and_beside_a_shard(18_000);
        for key in &inside {
            logs.apply(*key, of_seconds(86_400), Hits::Take(1), now);
        }
        for key in &beside {
            logs.apply(*key, of_seconds(60), Hits::Take(1), now);
        }
        assert!(logs.usage().bytes <= logs.max_bytes, "{:?}", logs.usage());
        let left = |keys: &[Key]| {
            let taken =
                |key: &&Key| logs.apply(**key, of_seconds(60), Hits::Take(0), now).remaining < 100_000;
            keys.iter().filter(taken).count()
        };
        assert_eq!(left(&beside), 18_000, "other shards evict nothing");
        let inside = left(&inside);
        assert!((1900..=2000).contains(&inside), "{inside} are left of the shard over its share");
    }

    #[test]
    fn a_log_that_exceeds_the_bound_alone_is_kept_while_it_is_used() {
        let logs = Logs::in_place_of(100);
        let (keys, _) = keys_in_and_beside_a_shard(2);
        for n in 1..2000_u64 {
            let verdict =
                logs.apply(keys[0], of_seconds(3600), Hits::Take(1), Time::from_micros(1 << 40 | n));
            assert_eq!(u64::from(verdict.remaining), 100_000 - n);
        }
        logs.apply(keys[1], of_seconds(60), Hits::Take(1), Time::from_seconds(1 << 21));
        assert_eq!(logs.usage().entries, 1, "the next log evicts it: {:?}", logs.usage());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn behaves_as_a_map_that_evicts_only_above_its_bytes(
            bound in 0..60_usize,
            steps in prop::collection::vec((0..200_u16, 0..4_u64, 0..3_u64), 1..300),
        ) {
            let logs = Logs::in_place_of(bound * 10);
            let table: Table<u64> = Table::new(1);
            let mut model: HashMap<u16, Log> = HashMap::new();
            let mut now = 1000;
            for (name, hits, pause) in steps {
                now += pause;
                let at = Time::from_seconds(now);
                // A key has one window.
                let (key, limit) = (table.key(&name.to_string()), of_seconds(1 + u64::from(name) % 29));
                let verdict = logs.apply(key, limit, Hits::Take(hits), at);
                let expected = limit.apply(model.entry(name).or_default(), Hits::Take(hits), at);
                let usage = logs.usage();
                if usage.evicted == 0 {
                    prop_assert_eq!(verdict, expected);
                } else {
                    prop_assert!(verdict.remaining >= expected.remaining);
                }
                let own = table.key(&name.to_string());
                let own = usize::from(lock(&logs.shards[shard_of(own)].logs).logs.contains_key(&own));
                prop_assert!(usage.bytes <= logs.max_bytes || usage.entries <= own, "{usage:?}");
                if hits == 3 {
                    logs.sweep(0, 1, at);
                }
            }
            logs.sweep(0, 1, Time::from_seconds(now + 100));
            prop_assert_eq!((logs.usage().entries, logs.usage().bytes), (0, 0));
            prop_assert!(logs.shards.iter().all(|shard| shard.bytes.load(Relaxed) == 0));
        }
    }
}
