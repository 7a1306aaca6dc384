//! Sliding logs by key, beside the table: they differ in size, so they are bounded by their bytes.
//!
//! Called by the memory store alone. A log is read and written while its shard is held, for as long as its hits
//! that left the window take to drop. When all logs together exceed the bound, shards that hold more than their
//! share give logs up, after the caller's own shard was let go.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::{
    clock::Time,
    limiter::algorithm::{Hits, SlidingLog, Verdict, sliding_log::Log},
    mutex::lock,
    store::table::{Key, Usage},
};

/// So many shards that cores seldom meet in one: a log is held longer than a slot of the table.
const SHARDS: usize = 256;

/// What a key of the table costs at most: a slot of 24 bytes in a table that has just been doubled.
const BYTES_PER_KEY: usize = 48;

/// How many logs are compared for the one that ends soonest.
const CANDIDATES: usize = 16;

/// A log that grows doubles its memory, which may take the place of many others. One request evicts no more
/// than this; what is still too much is left to the next.
const MOST_EVICTED: usize = 64;

/// A sweep holds a shard for so many logs at a time.
const SWEPT_AT_ONCE: usize = 1024;

/// Logs by key.
pub(super) struct Logs {
    shards: Box<[Counted]>,
    /// Of all logs together.
    bytes: AtomicUsize,
    max_bytes: usize,
    /// The shard that gave up a log last.
    hand: AtomicUsize,
}

/// A shard, and what its logs take, which is read without holding it.
#[derive(Default)]
struct Counted {
    bytes: AtomicUsize,
    shard: Mutex<Shard>,
}

#[derive(Default)]
struct Shard {
    /// In no order. What leaves makes room for the last one.
    logs: Vec<Kept>,
    /// The place of each in `logs`.
    places: HashTable<u32>,
    /// From here on the next log to evict is looked for.
    hand: usize,
    expired: u64,
    evicted: u64,
}

/// A log, and the moment from which on it says nothing any more.
struct Kept {
    key: Key,
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
        Self {
            shards: (0..SHARDS).map(|_| Counted::default()).collect(),
            bytes: AtomicUsize::new(0),
            max_bytes: keys.saturating_mul(BYTES_PER_KEY),
            hand: AtomicUsize::new(0),
        }
    }

    /// Asks the log of a key.
    pub(super) fn apply(&self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        let at = shard_of(key);
        let verdict = match self.shards.get(at) {
            Some(counted) => self.ask_in(at, &mut lock(&counted.shard), key, limit, hits, now),
            None => limit.apply(&mut Log::default(), hits, now),
        };
        self.make_room(&[key]);
        verdict
    }

    /// Holds every shard of these keys, so that what is asked through the result is one step. Call
    /// [`make_room`](Self::make_room) when it is let go.
    pub(super) fn lock(&self, keys: impl IntoIterator<Item = Key>) -> LockedLogs<'_> {
        let mut wanted: SmallVec<[usize; 4]> = keys.into_iter().map(shard_of).collect();
        // In one order for all, so that two requests cannot wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        let held = |at| self.shards.get(at).map(|counted: &Counted| (at, lock(&counted.shard)));
        LockedLogs { logs: self, shards: wanted.into_iter().filter_map(held).collect() }
    }

    fn ask_in(
        &self,
        at: usize,
        shard: &mut Shard,
        key: Key,
        limit: SlidingLog,
        hits: Hits,
        now: Time,
    ) -> Verdict {
        let mut new = Log::default();
        let place = shard.place(key);
        let known = place.and_then(|place| shard.logs.get_mut(place));
        let before = known.as_ref().map_or(0, |kept| kept.bytes());
        let (verdict, end, after) = if let Some(kept) = known {
            let verdict = limit.apply(&mut kept.log, hits, now);
            let end = limit.end(&kept.log);
            kept.end = end.unwrap_or(kept.end);
            (verdict, end, kept.bytes())
        } else {
            let verdict = limit.apply(&mut new, hits, now);
            (verdict, limit.end(&new), 0)
        };
        let after = match (place, end) {
            (Some(_), Some(_)) => after,
            (Some(place), None) => {
                shard.take(place);
                0
            }
            (None, Some(end)) => shard.add(Kept { key, log: new, end }),
            (None, None) => 0,
        };
        self.count(at, before, after);
        verdict
    }

    /// Removes the log of a key.
    pub(super) fn remove(&self, key: Key) {
        let at = shard_of(key);
        let Some(counted) = self.shards.get(at) else { return };
        let mut shard = lock(&counted.shard);
        if let Some(gone) = shard.place(key).and_then(|place| shard.take(place)) {
            self.count(at, gone.bytes(), 0);
        }
    }

    /// Notes that the logs of a shard take another number of bytes.
    fn count(&self, at: usize, before: usize, after: usize) {
        let of_shard = self.shards.get(at).map(|counted| &counted.bytes);
        for bytes in of_shard.into_iter().chain([&self.bytes]) {
            if after >= before {
                bytes.fetch_add(after.saturating_sub(before), Relaxed);
            } else {
                bytes.fetch_sub(before.saturating_sub(after), Relaxed);
            }
        }
    }

    /// Evicts logs until all together are within their bound: of a shard that holds more than its share, among
    /// some always the one that ends soonest. These keys are spared. The caller holds no shard.
    pub(super) fn make_room(&self, spared: &[Key]) {
        for _ in 0..MOST_EVICTED {
            if self.bytes.load(Relaxed) <= self.max_bytes || !self.evict_one(spared) {
                return;
            }
        }
    }

    fn evict_one(&self, spared: &[Key]) -> bool {
        let share = self.max_bytes / SHARDS;
        let hand = self.hand.load(Relaxed);
        let turn =
            (hand..SHARDS).chain(0..hand).filter_map(|at| self.shards.get(at).map(|shard| (at, shard)));
        for (at, counted) in turn.filter(|(_, counted)| counted.bytes.load(Relaxed) > share) {
            let evicted = lock(&counted.shard).evict(spared);
            if let Some(bytes) = evicted {
                self.count(at, bytes, 0);
                self.hand.store(at, Relaxed);
                return true;
            }
        }
        false
    }

    /// Gives back what has ended in one of `parts` parts; call it for each in turn.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Time) {
        for (at, counted) in self.shards.iter().enumerate().skip(part).step_by(parts.max(1)) {
            let mut from = Some(0);
            while let Some(place) = from {
                let (ended, next) = lock(&counted.shard).sweep(place, now);
                self.count(at, ended, 0);
                from = next;
            }
        }
    }

    /// How many logs there are, and what they take.
    pub(super) fn usage(&self) -> Usage {
        let none = Usage { bytes: self.bytes.load(Relaxed), ..Usage::default() };
        self.shards.iter().fold(none, |sum, counted| {
            let shard = lock(&counted.shard);
            Usage {
                entries: sum.entries.saturating_add(shard.logs.len()),
                expired: sum.expired.saturating_add(shard.expired),
                evicted: sum.evicted.saturating_add(shard.evicted),
                ..sum
            }
        })
    }
}

impl LockedLogs<'_> {
    /// Asks the log of a key; one whose shard is not held is as if it were empty.
    pub(super) fn apply(&mut self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        match self.shards.iter_mut().find(|(at, _)| *at == shard_of(key)) {
            Some((at, shard)) => self.logs.ask_in(*at, shard, key, limit, hits, now),
            None => limit.apply(&mut Log::default(), hits, now),
        }
    }
}

impl Shard {
    fn place(&self, key: Key) -> Option<usize> {
        let is_it = |place: &u32| self.logs.get(*place as usize).is_some_and(|kept| kept.key == key);
        self.places.find(key.hash(), is_it).map(|place| *place as usize)
    }

    /// Adds a log, and returns what it takes.
    fn add(&mut self, kept: Kept) -> usize {
        let (bytes, hash) = (kept.bytes(), kept.key.hash());
        // A log takes more than 64 bytes, so there are never four thousand million.
        let place = u32::try_from(self.logs.len()).unwrap_or(u32::MAX);
        self.logs.push(kept);
        let Self { logs, places, .. } = self;
        places.insert_unique(hash, place, |place| hash_at(logs, *place));
        bytes
    }

    /// Takes out the log at this place, where the last one then stands.
    fn take(&mut self, place: usize) -> Option<Kept> {
        let last = self.logs.len().checked_sub(1)?;
        let (gone, moved) = (self.logs.get(place)?.key, self.logs.last()?.key);
        let at = |wanted: usize| move |place: &u32| *place as usize == wanted;
        if let Ok(entry) = self.places.find_entry(gone.hash(), at(place)) {
            entry.remove();
        }
        if let Some(entry) = self.places.find_mut(moved.hash(), at(last)) {
            *entry = u32::try_from(place).unwrap_or(u32::MAX);
        }
        Some(self.logs.swap_remove(place))
    }

    /// Evicts of some logs the one that ends soonest, and returns what it took.
    fn evict(&mut self, spared: &[Key]) -> Option<usize> {
        let from = if self.hand < self.logs.len() { self.hand } else { 0 };
        let places = (from..self.logs.len()).chain(0..from).take(CANDIDATES);
        let some = places.filter_map(|place| self.logs.get(place).map(|kept| (place, kept)));
        let some = some.filter(|(_, kept)| !spared.contains(&kept.key));
        let place = some.min_by_key(|(_, kept)| kept.end).map(|(place, _)| place);
        self.hand = from.saturating_add(CANDIDATES);
        let evicted = self.take(place?)?;
        self.evicted = self.evicted.wrapping_add(1);
        Some(evicted.bytes())
    }

    /// Gives back what has ended among some logs. Returns what it took, and where to go on.
    fn sweep(&mut self, from: usize, now: Time) -> (usize, Option<usize>) {
        let (mut place, mut ended) = (from, 0_usize);
        for _ in 0..SWEPT_AT_ONCE {
            let Some(kept) = self.logs.get(place) else {
                if self.logs.len() < self.logs.capacity() / 4 {
                    self.shrink();
                }
                return (ended, None);
            };
            if kept.end > now {
                place = place.saturating_add(1);
            } else if let Some(gone) = self.take(place) {
                ended = ended.saturating_add(gone.bytes());
                self.expired = self.expired.wrapping_add(1);
            }
        }
        (ended, Some(place))
    }

    fn shrink(&mut self) {
        let Self { logs, places, .. } = self;
        logs.shrink_to(logs.len().saturating_mul(2));
        places.shrink_to(logs.len(), |place| hash_at(logs, *place));
    }
}

impl Kept {
    /// What it takes, its place among the others included.
    fn bytes(&self) -> usize {
        size_of::<(Key, Time)>().saturating_add(self.log.bytes())
    }
}

fn hash_at(logs: &[Kept], place: u32) -> u64 {
    logs.get(place as usize).map_or(0, |kept| kept.key.hash())
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

    /// Keys whose logs stand in one shard, and keys whose logs do not.
    fn keys_in_and_beside_a_shard(count: usize) -> (Vec<Key>, Vec<Key>) {
        let table: Table<u64> = Table::new(1);
        let keys = (0..).map(|n: u32| table.key(&n.to_string()));
        let beside = keys.clone().filter(|key| shard_of(*key) != 7).take(count).collect();
        (keys.filter(|key| shard_of(*key) == 7).take(count).collect(), beside)
    }

    #[test]
    fn the_shard_that_holds_more_than_its_share_gives_logs_up() {
        let now = Time::from_seconds(100);
        // One shard is given 18,000 logs of one hit that last longest, of 20,000 for which there is room.
        let logs = Logs::in_place_of(20_000 * 96 / BYTES_PER_KEY);
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
        assert_eq!(left(&beside), 18_000, "callers in other shards lost nothing");
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
        assert_eq!(logs.usage().entries, 1, "it gives way to the next: {:?}", logs.usage());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn behaves_as_a_map_that_forgets_only_beyond_its_bytes(
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
                // A key holds the length of its window.
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
                let own = usize::from(lock(&logs.shards[shard_of(own)].shard).place(own).is_some());
                prop_assert!(usage.bytes <= logs.max_bytes || usage.entries <= own, "{usage:?}");
                if hits == 3 {
                    logs.sweep(0, 1, at);
                }
            }
            logs.sweep(0, 1, Time::from_seconds(now + 100));
            prop_assert_eq!((logs.usage().entries, logs.usage().bytes), (0, 0));
            prop_assert!(logs.shards.iter().all(|counted| counted.bytes.load(Relaxed) == 0));
        }
    }
}
