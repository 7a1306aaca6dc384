//! The leases of this process, by key.
//!
//! Keys that are not hot have a pace and nothing else, in a [`Table`] that forgets the coldest. A key that becomes hot
//! gets a place for a lease, in shards of their own: a lock is held for one lookup, and two keys share one by chance
//! only. When there are as many leases as there may be, the coldest of a shard leaves for a key that is much hotter, and
//! is given back.

mod usage;

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::rule::{Asked, Cold, Lease, Step, Terms};
use crate::{
    clock::Time,
    rules::Limit,
    store::table::{Key, Table},
};
use usage::Counts;

/// As many shards as the memory store has, if there are enough keys.
const SHARDS: usize = 1024;

/// The fewest leases of a shard, so that there is a cold one in it.
const LEAST_IN_A_SHARD: usize = 64;

/// How long the pace of a cold key is remembered, in seconds: longer than any lease.
const REMEMBERED: u64 = 12;

/// A lease leaves for a key that is so many times as hot. Of keys that are equally hot, those that came first stay.
const MUCH_HOTTER: f64 = 2.0;

/// The pause after a search of a shard that found no lease to leave, in microseconds.
const PAUSE: u64 = 100_000;

/// About so many leases are looked at in one go.
const LOOKED_AT: usize = 4096;

/// Weight of a new round trip in the average.
const WEIGHT: f64 = 0.1;

/// The leases.
pub(super) struct Leases {
    cold: Table<Cold>,
    shards: Box<[Shard]>,
    max_keys: usize,
    /// Leases in all shards.
    keys: AtomicUsize,
    /// The shard at which leases are looked at next.
    next: AtomicUsize,
    /// The average round trip to the store, in microseconds.
    round_trip: AtomicU32,
    pub(super) counts: Counts,
}

/// A lock to a cache line, and the microsecond at which one of its leases wants to be looked at.
#[repr(align(64))]
struct Shard {
    due: AtomicU64,
    leases: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    leases: HashTable<Entry>,
    /// Requests that leases decided.
    hits: u64,
    /// When no lease was found that could leave for another.
    searched: Time,
}

struct Entry {
    key: Key,
    /// When the lease wants to be looked at.
    due: Time,
    lease: Lease,
    counter: Counter,
}

/// The counter of a lease.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    /// Its name in the store, in this window.
    pub(super) name: Box<str>,
    pub(super) is_per_second: bool,
    pub(super) limit: Limit,
}

/// A check on a key.
#[derive(Clone, Copy)]
pub(super) struct Hit<'a> {
    pub(super) key: Key,
    pub(super) limit: &'a Limit,
    /// The start of its window.
    pub(super) start: Time,
    pub(super) hits: u64,
}

/// What becomes of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// There is no lease: the store counts it.
    Cold,
    /// A lease decides it, or has a part of it.
    Lease(Step),
}

/// What has to be sent to the store because of a lease.
pub(super) enum Work {
    /// Asks for hits ahead of time.
    Renew(Renewal),
    /// Gives hits back.
    GiveBack(GiveBack),
}

pub(super) type Works = SmallVec<[Work; 1]>;

/// Hits to ask for ahead of time.
pub(super) struct Renewal {
    pub(super) key: Key,
    pub(super) start: Time,
    pub(super) counter: Counter,
    pub(super) hits: u64,
}

/// Hits to give back.
pub(super) struct GiveBack {
    pub(super) name: Box<str>,
    pub(super) is_per_second: bool,
    pub(super) hits: u64,
    /// This replica's part of the counter, these hits included.
    pub(super) own: u64,
}

impl Leases {
    /// A table of at most so many leases, and the paces of as many cold keys.
    pub(super) fn new(max_keys: usize) -> Self {
        let max_keys = max_keys.max(1);
        let most = max_keys.div_ceil(LEAST_IN_A_SHARD).clamp(1, SHARDS);
        let shards = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        let shard = |_| Shard { due: AtomicU64::new(u64::MAX), leases: Mutex::default() };
        Self {
            cold: Table::new(max_keys),
            shards: (0..shards).map(shard).collect(),
            max_keys,
            keys: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            round_trip: AtomicU32::new(0),
            counts: Counts::default(),
        }
    }

    /// The key of a counter in all windows. Two limits of one counter have two leases.
    pub(super) fn key(&self, texts: [&str; 2], limit: &Limit) -> Key {
        self.cold.key_of(texts, limit.requests_per_unit)
    }

    /// Takes hits from the lease of a key; all or nothing without `may_reserve`. `counter` makes the counter's name for
    /// a new lease or a new window.
    pub(super) fn take(
        &self,
        hit: Hit<'_>,
        may_reserve: bool,
        now: Time,
        counter: impl Fn() -> Counter,
        works: &mut Works,
    ) -> Found {
        let terms = self.terms(hit.limit);
        let shard = self.shard(hit.key);
        let mut held = shard.lock();
        let found = held.find(hit.key).is_some();
        if !found {
            drop(held);
            let visit = |cold: &mut Cold| cold.visit(hit.hits, now, terms.duration());
            let end = Time::from_seconds(now.seconds().saturating_add(REMEMBERED));
            let Some(pace) = self.cold.update(hit.key, now, end, visit) else { return Found::Cold };
            held = shard.lock();
            if held.find(hit.key).is_none() {
                let lease = Lease::new(hit.start, pace);
                if !self.make_room(&mut held, lease.requests(&terms, now), now, works) {
                    return Found::Cold;
                }
                held.insert(Entry { key: hit.key, due: now, lease, counter: counter() });
            }
        }
        let Some(entry) = held.find(hit.key) else { return Found::Cold };
        match entry.enter(hit.start, &counter) {
            Some(expired) => self.counts.expired.fetch_add(expired, Relaxed),
            None => return Found::Cold,
        };
        let step = entry.lease.take(hit.hits, may_reserve, &terms, now);
        if let Some(hits) = entry.lease.renew(&terms, now) {
            works.push(Work::Renew(entry.renewal(hits)));
        }
        match step {
            Step::Admit(_) | Step::Refuse(_) => held.hits = held.hits.wrapping_add(1),
            Step::Ask { .. } => {
                self.counts.waits.fetch_add(1, Relaxed);
                entry.due = now;
                shard.look_at(now);
            }
        }
        Found::Lease(step)
    }

    /// As [`take`](Self::take), if the lease of a key decides these hits. Else nothing is changed.
    pub(super) fn take_now(&self, hit: Hit<'_>, now: Time, works: &mut Works) -> Option<Step> {
        let terms = self.terms(hit.limit);
        let mut held = self.shard(hit.key).lock();
        let entry = held.find(hit.key).filter(|entry| entry.can_take(hit, &terms, now))?;
        let step = entry.lease.take(hit.hits, false, &terms, now);
        if let Some(hits) = entry.lease.renew(&terms, now) {
            works.push(Work::Renew(entry.renewal(hits)));
        }
        held.hits = held.hits.wrapping_add(1);
        Some(step)
    }

    /// True if the lease of a key decides these hits.
    pub(super) fn can_take(&self, hit: Hit<'_>, now: Time) -> bool {
        let terms = self.terms(hit.limit);
        self.shard(hit.key).lock().find(hit.key).is_some_and(|entry| entry.can_take(hit, &terms, now))
    }

    /// The counter as a request sees it that adds nothing, if its lease knows it.
    pub(super) fn look(&self, hit: Hit<'_>, now: Time) -> Option<u64> {
        let terms = self.terms(hit.limit);
        let mut held = self.shard(hit.key).lock();
        let entry = held.find(hit.key).filter(|entry| entry.lease.start() == hit.start)?;
        let count = entry.lease.look(&terms, now)?;
        held.hits = held.hits.wrapping_add(1);
        Some(count)
    }

    /// Calls `change` with the lease of a key, if it is still in this window.
    pub(super) fn with<R>(
        &self,
        key: Key,
        start: Time,
        limit: &Limit,
        change: impl FnOnce(&mut Lease, &Terms) -> R,
    ) -> Option<R> {
        let terms = self.terms(limit);
        let mut held = self.shard(key).lock();
        let entry = held.find(key).filter(|entry| entry.lease.start() == start)?;
        Some(change(&mut entry.lease, &terms))
    }

    /// Gives hits back to a lease that were taken from it.
    pub(super) fn restore(&self, key: Key, start: Time, limit: &Limit, hits: u64) {
        self.with(key, start, limit, |lease, _| lease.restore(hits));
    }

    /// The hits of a request were answered, or never will be.
    pub(super) fn unanswered(&self, key: Key, start: Time, hits: u64) {
        if let Some(entry) = self.shard(key).lock().find(key).filter(|entry| entry.lease.start() == start) {
            entry.lease.unanswered(hits);
        }
    }

    /// The store has answered to hits that were asked for ahead of time.
    pub(super) fn granted(&self, renewal: &Renewal, asked: Asked, after: u64, is_granted: bool, now: Time) {
        let Renewal { key, start, counter, hits } = renewal;
        let count = |counter: &AtomicU64, n: u64| {
            counter.fetch_add(n, Relaxed);
        };
        let change =
            |lease: &mut Lease, terms: &Terms| lease.granted(*hits, is_granted, after, asked, terms, now);
        let lost = self.with(*key, *start, &counter.limit, change);
        if is_granted {
            count(&self.counts.grants, 1);
            count(&self.counts.granted, *hits);
        } else {
            count(&self.counts.ungranted, 1);
        }
        match lost {
            Some(lost) => count(&self.counts.expired, lost),
            // The window has ended, or the lease has left.
            None if is_granted => count(&self.counts.expired, *hits),
            None => {}
        }
        self.look_at(*key, now);
    }

    /// The store has not answered to hits that were asked for ahead of time.
    pub(super) fn lost(&self, renewal: &Renewal) {
        self.counts.ungranted.fetch_add(1, Relaxed);
        self.with(renewal.key, renewal.start, &renewal.counter.limit, |lease, _| lease.lost());
    }

    /// Has a lease looked at soon, because it has got hits.
    pub(super) fn look_at(&self, key: Key, now: Time) {
        let shard = self.shard(key);
        // Not while it is tended, which sets the time as well.
        if let Some(entry) = shard.lock().find(key) {
            entry.due = now;
            shard.look_at(now);
        }
    }

    /// Looks at leases that want it, and collects what they give back. Of many, the next call looks at the rest.
    pub(super) fn tend(&self, now: Time, works: &mut Works) {
        let (first, mut looked_at) = (self.next.load(Relaxed), 0_usize);
        let shards = self.shards.iter().enumerate().cycle().skip(first).take(self.shards.len());
        for (index, shard) in shards {
            if looked_at >= LOOKED_AT {
                self.next.store(index, Relaxed);
                return;
            }
            if shard.due.load(Relaxed) <= now.micros() {
                looked_at = looked_at.saturating_add(self.tend_shard(shard, now, works));
            }
        }
    }

    /// Looks at the leases of a shard that want it. Returns the number of all.
    fn tend_shard(&self, shard: &Shard, now: Time, works: &mut Works) -> usize {
        let mut held = shard.lock();
        let all = held.leases.len();
        let mut next = u64::MAX;
        held.leases.retain(|entry| {
            if entry.due <= now {
                let tended = entry.lease.tend(&self.terms(&entry.counter.limit), now);
                self.counts.expired.fetch_add(tended.expired, Relaxed);
                self.give_back(entry, tended.returned, tended.own, works);
                let Some(due) = tended.next else { return false };
                entry.due = due;
            }
            next = next.min(entry.due.micros());
            true
        });
        shard.due.store(next, Relaxed);
        self.keys.fetch_sub(all.saturating_sub(held.leases.len()), Relaxed);
        all
    }

    /// Takes all hits out of all leases.
    pub(super) fn end(&self, works: &mut Works) {
        for shard in &self.shards {
            for entry in &mut shard.lock().leases {
                let (left, own) = entry.lease.end();
                self.give_back(entry, left, own, works);
            }
        }
    }

    /// Counters with these names were reset: nothing of their leases is spent or given back.
    pub(super) fn forget(&self, names: &HashSet<String>) {
        for shard in &self.shards {
            for entry in &mut shard.lock().leases {
                if names.contains(&*entry.counter.name) {
                    self.counts.expired.fetch_add(entry.lease.forget(), Relaxed);
                }
            }
        }
    }

    /// Makes room for a lease of a key with so many requests per second. False if there is none.
    fn make_room(&self, held: &mut Held, requests: f64, now: Time, works: &mut Works) -> bool {
        if self.keys.fetch_add(1, Relaxed) < self.max_keys {
            return true;
        }
        self.keys.fetch_sub(1, Relaxed);
        if now.micros().abs_diff(held.searched.micros()) < PAUSE {
            return false;
        }
        let pace = |entry: &Entry| entry.lease.demand(&self.terms(&entry.counter.limit), now);
        let coldest = held.leases.iter().map(|entry| (pace(entry), entry.key));
        let coldest = coldest.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let found = coldest
            .filter(|(pace, _)| pace * MUCH_HOTTER <= requests)
            .and_then(|(_, key)| held.leases.find_entry(key.hash(), |entry| entry.key == key).ok());
        let Some(found) = found else {
            held.searched = now;
            return false;
        };
        let (mut entry, _) = found.remove();
        let (left, own) = entry.lease.end();
        self.give_back(&entry, left, own, works);
        self.counts.evicted.fetch_add(1, Relaxed);
        true
    }

    fn give_back(&self, entry: &Entry, hits: u64, own: u64, works: &mut Works) {
        if hits == 0 {
            return;
        }
        self.counts.returned.fetch_add(hits, Relaxed);
        let Counter { name, is_per_second, .. } = &entry.counter;
        works.push(Work::GiveBack(GiveBack { name: name.clone(), is_per_second: *is_per_second, hits, own }));
    }

    /// Adds a round trip to the average, in microseconds.
    pub(super) fn add_round_trip(&self, micros: f64) {
        let before = f64::from(f32::from_bits(self.round_trip.load(Relaxed)));
        let average = if before > 0.0 { before + WEIGHT * (micros - before) } else { micros };
        #[expect(clippy::cast_possible_truncation, reason = "an average needs no more precision")]
        self.round_trip.store((average as f32).to_bits(), Relaxed);
    }

    fn terms(&self, limit: &Limit) -> Terms {
        Terms {
            limit: limit.requests_per_unit.into(),
            window: limit.window(),
            round_trip: f64::from(f32::from_bits(self.round_trip.load(Relaxed))) / 1e6,
        }
    }

    /// The number of leases.
    pub(super) fn len(&self) -> usize {
        self.keys.load(Relaxed)
    }

    /// Forgets the paces of keys that are not hit any more.
    pub(super) fn sweep(&self, now: Time) {
        self.cold.sweep(0, 1, now);
    }

    #[expect(clippy::indexing_slicing, reason = "masked by the number of shards, a power of two")]
    fn shard(&self, key: Key) -> &Shard {
        &self.shards[key.shard() & self.shards.len().saturating_sub(1)]
    }
}

impl Shard {
    /// What a panic left behind is whole: leases change in one step.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_at(&self, now: Time) {
        self.due.fetch_min(now.micros(), Relaxed);
    }
}

impl Held {
    fn find(&mut self, key: Key) -> Option<&mut Entry> {
        self.leases.find_mut(key.hash(), |entry| entry.key == key)
    }

    fn insert(&mut self, entry: Entry) {
        self.leases.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }
}

impl Entry {
    /// Enters the window of a check, and returns the hits that were lost with the last one. `None` for the window
    /// before the lease's: this thread has read the clock before another one.
    fn enter(&mut self, start: Time, counter: &impl Fn() -> Counter) -> Option<u64> {
        let current = self.lease.start();
        if start == current {
            return Some(0);
        }
        let window = self.counter.limit.window().micros();
        if start < current && current.micros().saturating_sub(start.micros()) <= window {
            return None;
        }
        self.counter = counter();
        Some(self.lease.enter(start))
    }

    fn can_take(&self, hit: Hit<'_>, terms: &Terms, now: Time) -> bool {
        self.lease.start() == hit.start && self.lease.decides(hit.hits, terms, now)
    }

    fn renewal(&self, hits: u64) -> Renewal {
        Renewal { key: self.key, start: self.lease.start(), counter: self.counter.clone(), hits }
    }
}
