//! The leases of this process, by key. A key that is not hot is in `cold`, and a hot key has a lease, in shards: a lock is
//! held for one lookup, and keys rarely share one. At the maximum number of leases, the coldest of a shard is evicted for a
//! key that is much hotter, and its hits are returned.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::cold::ColdKeys;
use clock::{Time, timer::Random};
use counters::CounterId;
use faults::mutex::lock;
use limit::{
    FixedWindow,
    lease::{Grant, Grants, Lease, LeaseStep, Snapshot, Terms},
};
use metrics::{LeaseCounts, LeaseState, LeaseUsage};
use redis_store::{LeasedCounter, Receipt};

/// The number of shards of the memory store, if there are enough keys.
const SHARDS: usize = 1024;

/// Minimum number of leases of a shard, so that one of them is cold.
const LEAST_IN_A_SHARD: usize = 64;

/// A lease is evicted for a key that is this many times as hot. Among equally hot keys, the earlier ones stay.
const MUCH_HOTTER: f64 = 2.0;

/// The pause after a search of a shard that found no lease to evict, in microseconds.
const PAUSE: u64 = 100_000;

/// Approximate number of leases visited in one call.
const MAX_VISITED: usize = 4096;

/// Approximate number of leases returned in one call: requests wait for the commands before theirs. With 200 calls a
/// second, 12,800 leases.
const MAX_RETURNS: usize = 64;

/// The distance of the epochs of two leases: their hits are lost less often.
const EPOCHS: u32 = 1 << 16;

/// Weight of a new round trip in the average.
const WEIGHT: f64 = 0.1;

pub(super) struct Leases {
    /// This replica's, in receipts.
    id: u64,
    cold: ColdKeys,
    shards: Box<[Shard]>,
    max_keys: usize,
    keys: AtomicUsize,
    /// The first epoch of the next lease.
    epoch: AtomicU32,
    /// The shard that the next call visits first.
    next: AtomicUsize,
    /// The average round trip to the store, in microseconds.
    round_trip: AtomicU32,
    pub(super) counts: LeaseCounts,
}

/// A lock to a cache line, and the microsecond of the next visit to one of its leases.
#[repr(align(64))]
struct Shard {
    due: AtomicU64,
    leases: Mutex<ShardLeases>,
}

#[derive(Default)]
struct ShardLeases {
    entries: HashTable<LeaseEntry>,
    hits: u64,
    /// The last search that found no lease to evict.
    searched: Time,
}

struct LeaseEntry {
    key: LeaseKey,
    due: Time,
    lease: Lease,
    counter: LeasedCounter,
}

/// A counter in all windows, and the limit: two limits of one counter have two leases, in one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeaseKey {
    pub(super) counter: CounterId,
    pub(super) limit: u64,
}

impl LeaseKey {
    fn hash(self) -> u64 {
        self.counter.hash()
    }
}

#[derive(Clone, Copy)]
pub(super) struct Hit {
    pub(super) key: LeaseKey,
    pub(super) limit: FixedWindow,
    pub(super) start: Time,
    pub(super) hits: u64,
}

pub(super) enum Command {
    Renew(Renewal),
    /// Returns hits to a counter, to which this replica has added `own` in total.
    Return {
        counter: LeasedCounter,
        hits: u64,
        own: u64,
        receipt: Receipt,
    },
}

pub(super) type Commands = SmallVec<[Command; 1]>;

pub(super) struct Renewal {
    pub(super) key: LeaseKey,
    pub(super) start: Time,
    pub(super) counter: LeasedCounter,
    pub(super) hits: u64,
}

impl Leases {
    /// At most this many leases, and the paces of as many cold keys.
    pub(super) fn new(max_keys: usize, random: &dyn Random) -> Self {
        let max_keys = max_keys.max(1);
        let most = max_keys.div_ceil(LEAST_IN_A_SHARD).clamp(1, SHARDS);
        let shards = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        let shard = |_| Shard { due: AtomicU64::new(u64::MAX), leases: Mutex::default() };
        Self {
            id: random.number(),
            cold: ColdKeys::new(max_keys),
            shards: (0..shards).map(shard).collect(),
            max_keys,
            keys: AtomicUsize::new(0),
            epoch: AtomicU32::new(0),
            next: AtomicUsize::new(0),
            round_trip: AtomicU32::new(0),
            counts: LeaseCounts::default(),
        }
    }

    /// Takes hits from the lease of a key; all or none without `may_reserve`. `None` without a lease. `counter` makes the
    /// counter's name for a new lease or a new window.
    pub(super) fn take(
        &self,
        hit: Hit,
        may_reserve: bool,
        now: Time,
        counter: impl Fn() -> LeasedCounter,
        commands: &mut Commands,
    ) -> Option<LeaseStep> {
        let terms = self.terms(hit.limit);
        let shard = self.shard(hit.key);
        let mut leases = lock(&shard.leases);
        if leases.find(hit.key).is_none() {
            drop(leases);
            let pace = self.cold.visit(
                hit.key.counter,
                hit.hits,
                terms.duration(),
                self.len() >= self.max_keys,
                now,
            )?;
            leases = lock(&shard.leases);
            if leases.find(hit.key).is_none() {
                let lease = Lease::new(hit.start, pace, self.epoch.fetch_add(EPOCHS, Relaxed));
                if !self.make_room(&mut leases, lease.requests(&terms, now), now, commands) {
                    return None;
                }
                let entry = LeaseEntry { key: hit.key, due: now, lease, counter: counter() };
                leases.entries.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
            }
        }
        let entry = leases.find(hit.key)?;
        self.counts.expired.fetch_add(entry.enter(hit.start, &counter)?, Relaxed);
        let step = entry.take(hit.hits, may_reserve, &terms, now, commands);
        if let LeaseStep::Query { .. } = step {
            self.counts.waits.fetch_add(1, Relaxed);
            entry.due = now;
            shard.visit_at(now);
        } else {
            leases.hits = leases.hits.wrapping_add(1);
        }
        Some(step)
    }

    /// As [`take`](Self::take), if the lease of a key decides these hits. Otherwise nothing changes.
    pub(super) fn take_now(&self, hit: Hit, now: Time, commands: &mut Commands) -> Option<LeaseStep> {
        let terms = self.terms(hit.limit);
        let mut leases = lock(&self.shard(hit.key).leases);
        let entry = leases.find(hit.key).filter(|entry| entry.decides(hit, &terms, now))?;
        let step = entry.take(hit.hits, false, &terms, now, commands);
        leases.hits = leases.hits.wrapping_add(1);
        Some(step)
    }

    /// True if the lease of a key decides these hits.
    pub(super) fn decides(&self, hit: Hit, now: Time) -> bool {
        let terms = self.terms(hit.limit);
        let mut leases = lock(&self.shard(hit.key).leases);
        leases.find(hit.key).is_some_and(|entry| entry.decides(hit, &terms, now))
    }

    /// The counter for a request with 0 hits, if its lease knows it.
    pub(super) fn read(&self, hit: Hit, now: Time) -> Option<u64> {
        let terms = self.terms(hit.limit);
        let mut leases = lock(&self.shard(hit.key).leases);
        let entry = leases.find(hit.key).filter(|entry| entry.lease.start == hit.start)?;
        let count = entry.lease.read(&terms, now)?;
        leases.hits = leases.hits.wrapping_add(1);
        Some(count)
    }

    /// Calls `change` with the lease of a key, if it is still in this window.
    pub(super) fn with<R>(
        &self,
        key: LeaseKey,
        start: Time,
        change: impl FnOnce(&mut Lease) -> R,
    ) -> Option<R> {
        let mut leases = lock(&self.shard(key).leases);
        let entry = leases.find(key).filter(|entry| entry.lease.start == start)?;
        Some(change(&mut entry.lease))
    }

    /// The store has granted or rejected a renewal.
    pub(super) fn granted(&self, renewal: &Renewal, snapshot: Snapshot, after: u64, grant: Grant, now: Time) {
        let Renewal { key, start, counter, hits } = renewal;
        let terms = self.terms(counter.limit.fixed());
        let lost = self
            .with(*key, *start, |lease| lease.granted(*hits, grant, after, snapshot, &terms, now))
            // The window has ended, or the lease was evicted.
            .unwrap_or(if grant == Grant::Added { *hits } else { 0 });
        if grant == Grant::Added {
            self.counts.grants.fetch_add(1, Relaxed);
            self.counts.granted.fetch_add(*hits, Relaxed);
        } else {
            self.counts.ungranted.fetch_add(1, Relaxed);
        }
        self.counts.expired.fetch_add(lost, Relaxed);
        let shard = self.shard(*key);
        // Under the lock: a visit of the shard sets the time too.
        if let Some(entry) = lock(&shard.leases).find(*key) {
            entry.due = now;
            shard.visit_at(now);
        }
    }

    pub(super) fn renewal_lost(&self, renewal: &Renewal) {
        self.counts.ungranted.fetch_add(1, Relaxed);
        self.with(renewal.key, renewal.start, Lease::renewal_lost);
    }

    /// Visits leases that are due, and collects the hits that they return. Of many, the next call visits the rest.
    pub(super) fn visit(&self, now: Time, commands: &mut Commands) {
        let first = self.next.load(Relaxed);
        let mut visited = 0_usize;
        let shards = self.shards.iter().enumerate().cycle().skip(first).take(self.shards.len());
        for (index, shard) in shards {
            if visited >= MAX_VISITED || commands.len() >= MAX_RETURNS {
                self.next.store(index, Relaxed);
                return;
            }
            if shard.due.load(Relaxed) <= now.micros() {
                visited += self.visit_shard(shard, now, commands);
            }
        }
    }

    /// Visits the leases of a shard that are due. Returns the number of all.
    fn visit_shard(&self, shard: &Shard, now: Time, commands: &mut Commands) -> usize {
        let mut leases = lock(&shard.leases);
        let all = leases.entries.len();
        let mut next = u64::MAX;
        leases.entries.retain(|entry| {
            if entry.due <= now {
                let visit = entry.lease.visit(&self.terms(entry.counter.limit.fixed()), now);
                self.counts.expired.fetch_add(visit.expired, Relaxed);
                self.return_hits(entry, (visit.returned, visit.own), commands);
                let Some(due) = visit.next else { return false };
                entry.due = due;
            }
            next = next.min(entry.due.micros());
            true
        });
        shard.due.store(next, Relaxed);
        self.keys.fetch_sub(all - leases.entries.len(), Relaxed);
        all
    }

    pub(super) fn end(&self, commands: &mut Commands) {
        self.return_all(Lease::end, commands);
    }

    /// Resets may have been missed: all hits are returned, and replies to earlier requests mean nothing.
    pub(super) fn distrust(&self, commands: &mut Commands) {
        self.return_all(Lease::distrust, commands);
    }

    fn return_all(&self, end: impl Fn(&mut Lease) -> (u64, u64), commands: &mut Commands) {
        for shard in &self.shards {
            for entry in &mut lock(&shard.leases).entries {
                let left = end(&mut entry.lease);
                self.return_hits(entry, left, commands);
            }
        }
    }

    /// A counter was reset: the hits of its leases are neither spent nor returned. `names` are those that it may have.
    pub(super) fn forget(&self, full_key: &str, names: &[String]) {
        self.change_all_of(full_key, names, |lease| {
            self.counts.expired.fetch_add(lease.forget(), Relaxed);
        });
    }

    /// A counter was refunded.
    pub(super) fn read_again(&self, full_key: &str, names: &[String]) {
        self.change_all_of(full_key, names, Lease::read_again);
    }

    /// Changes the leases of a counter, under the lock that its own requests take.
    fn change_all_of(&self, full_key: &str, names: &[String], change: impl Fn(&mut Lease)) {
        let Some((counter, Some(_))) = CounterId::of_full_key(full_key) else { return };
        let mut leases = lock(&self.shard_of(counter).leases);
        // The lease may be in another window.
        let is_of = |entry: &LeaseEntry| {
            entry.key.counter == counter && names.iter().any(|name| **name == *entry.counter.name)
        };
        let entries = leases.entries.iter_hash_mut(counter.hash());
        entries.filter(|entry| is_of(entry)).for_each(|entry| change(&mut entry.lease));
    }

    /// Makes room for the lease of a key with this many requests per second. False if there is none.
    fn make_room(&self, leases: &mut ShardLeases, requests: f64, now: Time, commands: &mut Commands) -> bool {
        if self.keys.fetch_add(1, Relaxed) < self.max_keys {
            return true;
        }
        self.keys.fetch_sub(1, Relaxed);
        if now.micros().abs_diff(leases.searched.micros()) < PAUSE {
            return false;
        }
        let pace = |entry: &LeaseEntry| entry.lease.demand(&self.terms(entry.counter.limit.fixed()), now);
        let coldest = leases.entries.iter().map(|entry| (pace(entry), entry.key));
        let coldest = coldest.min_by(|(one, _), (other, _)| one.total_cmp(other));
        let found = coldest
            .filter(|(pace, _)| pace * MUCH_HOTTER <= requests)
            .and_then(|(_, key)| leases.entries.find_entry(key.hash(), |entry| entry.key == key).ok());
        let Some(found) = found else {
            leases.searched = now;
            return false;
        };
        let (mut entry, _) = found.remove();
        let left = entry.lease.end();
        self.return_hits(&entry, left, commands);
        self.counts.evicted.fetch_add(1, Relaxed);
        true
    }

    fn return_hits(&self, entry: &LeaseEntry, (hits, own): (u64, u64), commands: &mut Commands) {
        if hits > 0 {
            self.counts.returned.fetch_add(hits, Relaxed);
            let counter = entry.counter.clone();
            let receipt = self.receipt(counter.limit.fixed(), entry.lease.grants);
            commands.push(Command::Return { counter, hits, own, receipt });
        }
    }

    /// The receipt of a lease. Two limits of one counter have two leases.
    pub(super) fn receipt(&self, limit: FixedWindow, Grants { confirmed, requested }: Grants) -> Receipt {
        Receipt { holder: self.id.wrapping_add(limit.limit), confirmed, requested }
    }

    /// Adds a round trip to the average, in microseconds.
    pub(super) fn add_round_trip(&self, micros: f64) {
        let before = f64::from(f32::from_bits(self.round_trip.load(Relaxed)));
        let average = if before > 0.0 { before + WEIGHT * (micros - before) } else { micros };
        #[expect(clippy::cast_possible_truncation, reason = "an average needs no more precision")]
        self.round_trip.store((average as f32).to_bits(), Relaxed);
    }

    pub(super) fn terms(&self, limit: FixedWindow) -> Terms {
        Terms {
            limit: limit.limit,
            period: limit.period,
            round_trip: f64::from(f32::from_bits(self.round_trip.load(Relaxed))) / 1e6,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.load(Relaxed)
    }

    /// Forgets the paces of keys that are no longer hit.
    pub(super) fn sweep(&self, now: Time) {
        self.cold.sweep(now);
    }

    pub(super) fn usage(&self) -> LeaseUsage<'_> {
        let mut held = 0_u64;
        let mut hits = 0_u64;
        for shard in &self.shards {
            let leases = lock(&shard.leases);
            hits = hits.wrapping_add(leases.hits);
            held = leases.entries.iter().fold(held, |sum, entry| sum.saturating_add(entry.lease.left));
        }
        let keys = self.len();
        let max_keys = self.max_keys;
        LeaseUsage { keys, max_keys, held, hits, counts: &self.counts }
    }

    /// At most `count` leases: first those with most hits left, then those with most requests.
    pub(super) fn top(&self, count: usize, now: Time) -> Vec<LeaseState> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(lock(&shard.leases).entries.iter().map(|entry| LeaseState {
                key: entry.counter.name.clone(),
                limit: entry.counter.limit.requests_per_unit,
                left: entry.lease.left,
                counter: entry.lease.counter(),
                requests_per_second: entry.lease.requests(&self.terms(entry.counter.limit.fixed()), now),
            }));
        }
        all.sort_by(|one, other| {
            other.left.cmp(&one.left).then(other.requests_per_second.total_cmp(&one.requests_per_second))
        });
        all.truncate(count);
        all
    }

    fn shard(&self, key: LeaseKey) -> &Shard {
        self.shard_of(key.counter)
    }

    #[expect(clippy::indexing_slicing, reason = "masked by the number of shards, a power of two")]
    fn shard_of(&self, counter: CounterId) -> &Shard {
        &self.shards[counter.shard() & (self.shards.len() - 1)]
    }
}

impl Shard {
    fn visit_at(&self, time: Time) {
        self.due.fetch_min(time.micros(), Relaxed);
    }
}

impl ShardLeases {
    fn find(&mut self, key: LeaseKey) -> Option<&mut LeaseEntry> {
        self.entries.find_mut(key.hash(), |entry| entry.key == key)
    }
}

impl LeaseEntry {
    /// Enters the window of a check. Returns the lost hits of the last one, or `None` for the window before the lease's:
    /// this thread has read the clock before another one.
    fn enter(&mut self, start: Time, counter: &impl Fn() -> LeasedCounter) -> Option<u64> {
        let current = self.lease.start;
        if start == current {
            return Some(0);
        }
        if start < current && self.counter.limit.period().end(start) >= current {
            return None;
        }
        self.counter = counter();
        Some(self.lease.enter(start))
    }

    /// Takes hits, and renews the lease if it will soon be spent.
    fn take(
        &mut self,
        hits: u64,
        may_reserve: bool,
        terms: &Terms,
        now: Time,
        commands: &mut Commands,
    ) -> LeaseStep {
        let step = self.lease.take(hits, may_reserve, terms, now);
        if let Some(hits) = self.lease.renew(terms, now) {
            let key = self.key;
            let start = self.lease.start;
            let counter = self.counter.clone();
            commands.push(Command::Renew(Renewal { key, start, counter, hits }));
        }
        step
    }

    fn decides(&self, hit: Hit, terms: &Terms, now: Time) -> bool {
        self.lease.start == hit.start && self.lease.decides(hit.hits, terms, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limit::{Limit, Unit, lease::SentHits};

    /// Takes a hit, and gives it the counter's reply: nothing is leased before the first one of a window.
    fn take(
        leases: &Leases,
        hit: Hit,
        now: Time,
        counter: impl Fn() -> LeasedCounter,
        commands: &mut Commands,
    ) {
        if let Some(LeaseStep::Query { .. }) = leases.take(hit, true, now, counter, commands) {
            let terms = leases.terms(hit.limit);
            leases.with(hit.key, hit.start, |lease| {
                let sent = lease.send(SentHits::Always(hit.hits));
                lease.complete(sent);
                lease.counted(hit.hits, 500_000, sent, &terms, now)
            });
        }
    }

    #[test]
    fn many_leases_are_returned_gradually() {
        let (leases, limit) =
            (Leases::new(10_000, &*net::edges::Edges::system().random), Limit::plain(1_000_000, Unit::Hour));
        let start = Time::from_seconds(7200);
        let at = |millis: u64| Time::from_micros(start.micros() + millis * 1000);
        let counter = || LeasedCounter { name: "name".into(), is_per_second: false, limit: limit.rate };
        let mut commands = Commands::new();
        for millis in 0..20 {
            for key in 0..1000 {
                let key = LeaseKey {
                    counter: CounterId::of_name(&key.to_string()),
                    limit: limit.requests_per_unit,
                };
                let hit = Hit { key, limit: limit.fixed(), start, hits: 1 };
                take(&leases, hit, at(millis * 100), counter, &mut commands);
            }
            for command in commands.drain(..) {
                let Command::Renew(renewal) = command else { panic!("the requests go on") };
                let snapshot = leases.with(renewal.key, start, |lease| lease.send_renewal(1)).unwrap();
                leases.granted(&renewal, snapshot, 500_000, Grant::Added, at(millis * 100));
            }
        }
        assert_eq!(leases.usage().keys, 1000);
        let mut returned = 0;
        for call in 0..100 {
            leases.visit(at(60_000 + call * 5), &mut commands);
            assert!(commands.len() < MAX_RETURNS + 40, "and those of one shard: {}", commands.len());
            returned += commands.drain(..).count();
        }
        assert_eq!((returned, leases.usage().held), (1000, 0));
    }

    /// The message must not take the lock of any other lease: those are all held here.
    #[test]
    fn a_reset_and_a_refund_of_a_counter_wait_for_its_own_lease_alone() {
        let random = &*net::edges::Edges::system().random;
        let (leases, limit) = (Leases::new(100_000, random), Limit::plain(1_000_000, Unit::Hour));
        let (start, mut commands) = (Time::from_seconds(7200), Commands::new());
        let full_key = "d_k_v_7200#0.1.1.1/3600";
        let names = [full_key.rsplit_once('#').unwrap().0.to_owned()];
        let key =
            LeaseKey { counter: CounterId::of_full_key(full_key).unwrap().0, limit: limit.requests_per_unit };
        let counter = || LeasedCounter { name: (*names[0]).into(), is_per_second: false, limit: limit.rate };
        for millis in 0..20 {
            let now = Time::from_micros(start.micros() + millis * 100_000);
            take(&leases, Hit { key, limit: limit.fixed(), start, hits: 1 }, now, counter, &mut commands);
        }
        let known = || leases.with(key, start, |lease| lease.counter()).expect("it has a lease");
        assert!(known().is_some());
        let own = leases.shard(key);
        let others: Vec<_> = leases
            .shards
            .iter()
            .filter(|shard| !std::ptr::eq(*shard, own))
            .map(|shard| lock(&shard.leases))
            .collect();
        assert_eq!(others.len(), SHARDS - 1);
        let (sender, done) = std::sync::mpsc::channel();
        let leases = &leases;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                leases.read_again(full_key, &names);
                leases.forget("d_k_v_3600#0.1.1.1/3600", &["d_k_v_3600".to_owned()]);
                let before = leases.with(key, start, |lease| lease.counter());
                leases.forget(full_key, &names);
                sender.send(before).expect("the test waits");
            });
            let before = done.recv_timeout(std::time::Duration::from_secs(60));
            drop(others);
            assert!(before.expect("no other lock is taken").flatten().is_some(), "another window was reset");
        });
        assert_eq!(known(), None);
    }

    #[test]
    fn a_later_lease_of_a_key_gets_no_hits_that_were_reserved_in_an_earlier_one() {
        let (leases, limit) =
            (Leases::new(10_000, &*net::edges::Edges::system().random), Limit::plain(1_000_000, Unit::Hour));
        let start = Time::from_seconds(7200);
        let at = |millis: u64| Time::from_micros(start.micros() + millis * 1000);
        let counter = || LeasedCounter { name: "name".into(), is_per_second: false, limit: limit.rate };
        let (key, mut commands) = (
            LeaseKey { counter: CounterId::of_name("d_k_"), limit: limit.requests_per_unit },
            Commands::new(),
        );
        let mut make_hot = |from: u64| {
            let hit = Hit { key, limit: limit.fixed(), start, hits: 1 };
            for millis in 0..20 {
                take(&leases, hit, at(from + millis * 100), counter, &mut commands);
                for command in commands.drain(..) {
                    let Command::Renew(renewal) = command else { panic!("nothing was leased") };
                    leases.renewal_lost(&renewal);
                }
            }
            leases.with(key, start, |lease| lease.send(SentHits::Always(1))).expect("the key is hot")
        };
        let request = make_hot(0);
        leases.visit(at(600_000), &mut Commands::new());
        assert_eq!(leases.len(), 0);
        make_hot(700_000);
        assert_eq!(leases.with(key, start, |lease| lease.is_outdated(request)), Some(true));
    }
}
