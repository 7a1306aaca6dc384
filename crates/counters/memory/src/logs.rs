//! Sliding logs by key, beside the table: they differ in size, so they are bounded by their bytes.
//!
//! Used by the memory store alone. A log is read and written under the lock of its shard. When all logs together exceed
//! the bound, the shard of the log that grew evicts others, or the next shard that has some.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;
use smallvec::SmallVec;

use super::used;

use clock::Time;
use counters::{
    CounterId,
    table::{Candidate, Mark, Used, victim},
};
use faults::mutex::lock;
use limit::{Algorithm, Hits, SlidingLog, Verdict, sliding_log::Log};
use metrics::TableUsage as Usage;

/// Enough shards that two cores seldom need the same one: a log is locked for longer than a slot of the table.
const SHARDS: usize = 256;

/// Minimum number of keys for which a shard has room, unless it is the only one: a hundred or more short logs, among which
/// there are some that matter little.
const LEAST_IN_A_SHARD: usize = 512;

/// The memory of a key in a full table.
const BYTES_PER_KEY: usize = 24;

/// The number of logs among which one is evicted, and the newest of the shard in addition: if all of them are full, it is
/// evicted and older ones stay.
const CANDIDATES: usize = 16;

/// A log that grows doubles its memory, which may require evicting many others. One request evicts at most this many;
/// the next one continues.
const MAX_EVICTED: usize = 64;

/// Logs that are swept under one lock of a shard.
const SWEPT_AT_ONCE: usize = 1024;

pub(super) struct Logs {
    shards: Box<[Mutex<ShardLogs>]>,
    bytes: AtomicUsize,
    max_bytes: usize,
}

#[derive(Default)]
struct ShardLogs {
    /// In no order: the last log fills the place of a removed one.
    logs: IndexMap<CounterId, Timed, DefaultHashBuilder>,
    /// The place of the first candidate for the next eviction.
    hand: usize,
    /// Without the entries, which are those of `logs`, and the bytes, which all shards share.
    usage: Usage,
}

/// A log, the second from which on it equals an unused one, and how much it matters.
#[derive(Default)]
struct Timed {
    log: Log,
    end: u32,
    mark: Mark,
}

pub(super) struct LockedLogs<'l> {
    logs: &'l Logs,
    shards: SmallVec<[(usize, MutexGuard<'l, ShardLogs>); 1]>,
}

impl Logs {
    /// Logs that take no more memory than this many keys of the table.
    pub(super) fn in_place_of(keys: usize) -> Self {
        let shards = (keys / LEAST_IN_A_SHARD).clamp(1, SHARDS);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            bytes: AtomicUsize::new(0),
            max_bytes: keys.saturating_mul(BYTES_PER_KEY),
        }
    }

    /// Applies hits to the log of a key of a rule.
    pub(super) fn apply(&self, key: (CounterId, u16), limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        let at = self.shard_of(key.0);
        self.apply_in(at, &mut self.shard(at), key, limit, hits, now)
    }

    /// Locks every shard of these keys, so that all that happens through the result is atomic.
    pub(super) fn lock(&self, keys: impl IntoIterator<Item = CounterId>) -> LockedLogs<'_> {
        let mut shards: SmallVec<[usize; 4]> = keys.into_iter().map(|key| self.shard_of(key)).collect();
        // In one order for all requests, so that there is no deadlock.
        shards.sort_unstable();
        shards.dedup();
        LockedLogs { logs: self, shards: shards.into_iter().map(|at| (at, self.shard(at))).collect() }
    }

    fn apply_in(
        &self,
        at: usize,
        shard: &mut ShardLogs,
        (key, rule): (CounterId, u16),
        limit: SlidingLog,
        hits: Hits,
        now: Time,
    ) -> Verdict {
        let entry = shard.logs.entry(key);
        let place = entry.index();
        let known = entry.or_default();
        // No log is kept empty.
        let is_new = limit.end(&known.log).is_none();
        let before = if is_new { 0 } else { known.bytes() };
        let verdict = limit.apply(&mut known.log, hits, now);
        let mut after = 0;
        let mut grown = Candidate::default();
        if let Some(end) = limit.end(&known.log) {
            known.end = second_from(end);
            if is_new || hits != Hits::Take(0) {
                known.mark = Mark::new(rule, used(verdict, Algorithm::SlidingLog(limit)));
            }
            after = known.bytes();
            grown = known.candidate();
        } else {
            shard.logs.swap_remove_index(place);
        }
        self.bytes.fetch_add(after, Relaxed);
        self.bytes.fetch_sub(before, Relaxed);
        self.make_room(at, shard, key, grown);
        verdict
    }

    pub(super) fn remove(&self, key: CounterId) {
        if let Some(removed) = self.shard(self.shard_of(key)).logs.swap_remove(&key) {
            self.bytes.fetch_sub(removed.bytes(), Relaxed);
        }
    }

    /// Evicts logs until all together are within their bound: the one of a few candidates that matters least, of the shard
    /// of the log that grew, or of the next one that has others and that no thread uses now. Spares the log that grew.
    fn make_room(&self, at: usize, shard: &mut ShardLogs, spared: CounterId, grown: Candidate) {
        for _ in 0..MAX_EVICTED {
            if self.bytes.load(Relaxed) <= self.max_bytes {
                return;
            }
            let evict_elsewhere = || {
                let others = (at + 1..self.shards.len()).chain(0..at).filter_map(|at| self.shards.get(at));
                // Whoever waits here may be waited for.
                let mut unused = others.filter_map(|other| other.try_lock().ok());
                unused.find_map(|mut other| other.evict(spared, grown))
            };
            let Some(bytes) = shard.evict(spared, grown).or_else(evict_elsewhere) else { return };
            self.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Removes expired logs from one of `parts` parts; call it for each in turn.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Time) {
        for shard in self.shards.iter().skip(part).step_by(parts.max(1)) {
            let mut from = Some(0);
            while let Some(place) = from {
                let (bytes, next) = lock(shard).sweep(place, now);
                self.bytes.fetch_sub(bytes, Relaxed);
                from = next;
            }
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let usage = |shard: &Mutex<ShardLogs>| {
            let shard = lock(shard);
            Usage { entries: shard.logs.len(), ..shard.usage }
        };
        Usage { bytes: self.bytes.load(Relaxed), ..self.shards.iter().map(usage).sum() }
    }

    #[expect(clippy::indexing_slicing, reason = "`shard_of` is below the number of shards")]
    fn shard(&self, at: usize) -> MutexGuard<'_, ShardLogs> {
        lock(&self.shards[at])
    }

    fn shard_of(&self, key: CounterId) -> usize {
        key.shard().checked_rem(self.shards.len()).unwrap_or_default()
    }
}

impl LockedLogs<'_> {
    /// Applies hits to the log of a key. A log whose shard is not locked counts as empty.
    pub(super) fn apply(
        &mut self,
        key: (CounterId, u16),
        limit: SlidingLog,
        hits: Hits,
        now: Time,
    ) -> Verdict {
        match self.shards.iter_mut().find(|(at, _)| *at == self.logs.shard_of(key.0)) {
            Some((at, shard)) => self.logs.apply_in(*at, shard, key, limit, hits, now),
            None => limit.apply(&mut Log::default(), hits, now),
        }
    }
}

impl ShardLogs {
    /// Evicts the candidate that matters least, and returns its memory.
    fn evict(&mut self, spared: CounterId, new: Candidate) -> Option<usize> {
        let count = self.logs.len();
        let from = if self.hand < count { self.hand } else { 0 };
        self.hand = from + 1;
        // Evenly spaced: logs that were added together are neighbours, and no fair sample.
        let step = (count / CANDIDATES).max(1);
        let is_other = |place: &usize| self.logs.get_index(*place).is_some_and(|(key, _)| *key != spared);
        let mut places: SmallVec<[usize; CANDIDATES + 1]> =
            (from..count).chain(0..from).step_by(step).take(CANDIDATES).filter(is_other).collect();
        places.extend((0..count).rev().find(is_other));
        // By age, since `victim` prefers the last of several full logs.
        places.sort_unstable();
        places.dedup();
        let logs = places.iter().filter_map(|place| self.logs.get_index(*place));
        let place = victim(logs.map(|(_, log)| log.candidate()), new, from)?;
        let (_, evicted) = self.logs.swap_remove_index(*places.get(place)?)?;
        self.usage.evicted = self.usage.evicted.wrapping_add(1);
        self.usage.evicted_over =
            self.usage.evicted_over.wrapping_add(u64::from(evicted.mark.used() == Used::Over));
        Some(evicted.bytes())
    }

    /// Removes expired logs among some. Returns their memory, and where to continue.
    fn sweep(&mut self, from: usize, now: Time) -> (usize, Option<usize>) {
        let mut place = from;
        let mut bytes = 0_usize;
        for _ in 0..SWEPT_AT_ONCE {
            let Some((_, log)) = self.logs.get_index(place) else {
                if self.logs.len() < self.logs.capacity() / 4 {
                    self.logs.shrink_to(self.logs.len() * 2);
                }
                return (bytes, None);
            };
            if Time::from_seconds(log.end.into()) > now {
                place += 1;
            } else {
                bytes += log.bytes();
                self.logs.swap_remove_index(place);
                self.usage.expired = self.usage.expired.wrapping_add(1);
            }
        }
        (bytes, Some(place))
    }
}

impl Timed {
    fn bytes(&self) -> usize {
        size_of::<(u64, CounterId, u32, Mark)>() + self.log.bytes()
    }

    fn candidate(&self) -> Candidate {
        Candidate { mark: self.mark, end: self.end, size: self.bytes() }
    }
}

/// The first second at or after a time.
fn second_from(time: Time) -> u32 {
    u32::try_from(time.micros().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use limit::Window;

    fn of_seconds(seconds: u64) -> SlidingLog {
        SlidingLog { limit: 100_000, window: Window::of_seconds(seconds).unwrap() }
    }

    fn id(name: &str) -> CounterId {
        CounterId::hashed_by([1, 2], name)
    }

    #[test]
    fn logs_in_other_shards_make_room_for_one_that_is_alone_in_its_own() {
        let logs = Logs::in_place_of(20_000);
        let now = Time::from_seconds(100);
        let [first, others] = [true, false].map(|is_first| {
            let keys = (0..).map(|n: u32| id(&n.to_string()));
            keys.filter(|key| (logs.shard_of(*key) == 0) == is_first).take(1_000).collect::<Vec<_>>()
        });
        for key in &others {
            for micros in 0..100 {
                let at = Time::from_micros(now.micros() + micros);
                logs.apply((*key, 0), of_seconds(60), Hits::Take(1), at);
            }
        }
        let before = logs.usage();
        assert!(before.evicted > 0 && before.bytes <= logs.max_bytes, "{before:?}");
        for micros in 0..10_000 {
            let at = Time::from_micros(now.micros() + micros);
            let verdict = logs.apply((first[0], 0), of_seconds(60), Hits::Take(1), at);
            assert_eq!(verdict.remaining, 100_000 - micros - 1, "it is not evicted while it is used");
        }
        let after = logs.usage();
        assert!(after.evicted > before.evicted && after.bytes <= logs.max_bytes, "{after:?}");
    }

    #[test]
    fn a_log_that_exceeds_the_bound_alone_is_kept_while_it_is_used() {
        let logs = Logs::in_place_of(100);
        let keys = [id("a"), id("b")];
        for n in 1..2000_u64 {
            let verdict =
                logs.apply((keys[0], 0), of_seconds(3600), Hits::Take(1), Time::from_micros(1 << 40 | n));
            assert_eq!(verdict.remaining, 100_000 - n);
        }
        logs.apply((keys[1], 0), of_seconds(60), Hits::Take(1), Time::from_seconds(1 << 21));
        assert_eq!(logs.usage().entries, 1, "the next log evicts it: {:?}", logs.usage());
    }

    /// Full logs of 50 keys of rule 1, after a flood of logs of another rule or the same one.
    fn full_after_a_flood(rule: u16, hits: u64) -> usize {
        let logs = Logs::in_place_of(4000);
        let (five, now) = (SlidingLog { limit: 5, ..of_seconds(3600) }, Time::from_seconds(7200));
        let victims: Vec<CounterId> = (0..50).map(|n| id(&format!("victim {n}"))).collect();
        let hit = |key, rule, limit| logs.apply((key, rule), limit, Hits::Take(1), now).admitted;
        for key in victims.iter().cycle().take(6 * 50) {
            hit(*key, 1, five);
        }
        for n in 0..20_000 {
            let key = id(&n.to_string());
            for _ in 0..hits {
                hit(key, rule, SlidingLog { limit: 5, ..of_seconds(86_400) });
            }
        }
        assert!(logs.usage().bytes <= logs.max_bytes, "{:?}", logs.usage());
        assert!(logs.usage().evicted > 10_000, "{:?}", logs.usage());
        victims.iter().filter(|key| !hit(**key, 1, five)).count()
    }

    #[test]
    fn a_flood_evicts_no_full_log() {
        for (rule, hits) in [(1, 1), (2, 1), (2, 6)] {
            assert_eq!(full_after_a_flood(rule, hits), 50, "rule {rule}, {hits} hits");
        }
        // Nothing distinguishes a full log from others of its rule but its age.
        let left = full_after_a_flood(1, 6);
        assert!(left >= 45, "{left}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn behaves_as_a_map_that_evicts_only_above_its_bytes(
            bound in 0..60_usize,
            steps in prop::collection::vec((0..200_u16, 0..4_u64, 0..3_u64), 1..300),
        ) {
            let logs = Logs::in_place_of(bound * 10);
            let mut model: HashMap<u16, Log> = HashMap::new();
            let mut now = 1000;
            for (name, hits, pause) in steps {
                now += pause;
                let at = Time::from_seconds(now);
                // A key has one window.
                let (key, limit) = (id(&name.to_string()), of_seconds(1 + u64::from(name) % 29));
                let verdict = logs.apply((key, 0), limit, Hits::Take(hits), at);
                let expected = limit.apply(model.entry(name).or_default(), Hits::Take(hits), at);
                let usage = logs.usage();
                if usage.evicted == 0 {
                    prop_assert_eq!(verdict, expected);
                } else {
                    prop_assert!(verdict.remaining >= expected.remaining);
                }
                let own = id(&name.to_string());
                let own = usize::from(logs.shard(logs.shard_of(own)).logs.contains_key(&own));
                prop_assert!(usage.bytes <= logs.max_bytes || usage.entries <= own, "{usage:?}");
                if hits == 3 {
                    logs.sweep(0, 1, at);
                }
            }
            logs.sweep(0, 1, Time::from_seconds(now + 100));
            prop_assert_eq!((logs.usage().entries, logs.usage().bytes), (0, 0));
        }
    }
}
