//! Counters in this process: exact under contention, and not shared with other replicas.
//!
//! ```
//! use clock::Time;
//! use counters::{Batch, CounterId};
//! use limit::{Hits, Limit, Unit};
//! use memory::MemoryStore;
//!
//! // Ann may do two requests a minute.
//! let (store, limit) = (MemoryStore::new(1000), Limit::plain(2, Unit::Minute));
//! let is_admitted = |second| {
//!     let (mut batch, ann) = (Batch::default(), CounterId::of_name("ann"));
//!     batch.push([ann, ann], 0..0, &limit, 0, Hits::Take(1));
//!     store.count(&mut batch, Time::from_seconds(second));
//!     batch.check(0).verdict.admitted
//! };
//! assert_eq!([60, 61, 62].map(is_admitted), [true, true, false]);
//! ```
//!
//! A state of one number is in a table. Beside it are sliding logs, in `logs`, and the ledger of what is held, in `holds`.
//! Which store counts, and what a decision makes of a verdict, is left to others.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

mod holds;
mod logs;
#[cfg(test)]
mod tests;

use std::{
    future::ready,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use smallvec::SmallVec;

use clock::Time;
use counters::{
    Applied, Batch, Check, Closing, Count, CounterId, Counting, HoldAccount, KeepHolds, ListingFuture,
    Member, MostHolds, Operate, Report, StoreFuture, SweepFuture,
    table::{Kept, Locked, Mark, Table, Used},
    without_taking,
};
use holds::Holds;
use limit::{Algorithm, Hits, SlidingLog, State, Verdict};
use logs::{LockedLogs, Logs};
use metrics::StoreUsage;

/// A sweep visits one of this many parts, so that each pause is short. A whole round takes as many seconds.
const SWEEP_PARTS: usize = 16;

pub struct MemoryStore {
    states: Table<u64>,
    logs: Logs,
    holds: Holds,
    swept: AtomicUsize,
    max_keys: usize,
}

impl MemoryStore {
    /// A store of at most this many keys. When there is no room for a new key, one of its neighbours is evicted: of the
    /// rules that hold at least as much as its own, the counter that has used least of its limit.
    pub fn new(max_keys: usize) -> Self {
        let states = Table::new(max_keys);
        let logs = Logs::in_place_of(max_keys);
        let holds = Holds::new(MostHolds::default());
        Self { states, logs, holds, swept: AtomicUsize::new(0), max_keys }
    }

    /// The same store with other bounds of holds.
    pub fn holding(self, most: MostHolds) -> Self {
        Self { holds: Holds::new(most), ..self }
    }

    pub fn sweep(&self, now: Time) {
        self.expire_holds(now, |_| ());
    }

    /// Counts every open check of a request and sets its verdict.
    pub fn count(&self, batch: &mut Batch, now: Time) {
        let mut store = self;
        if batch.has_open_holds() {
            self.count_and_hold(batch, now);
        } else if batch.counting == Counting::Always && !batch.has_groups() {
            let decider = batch.decider;
            batch.decide_open(decider, |check| count(&mut store, check, check.hits, now));
        } else {
            self.count_only(batch, batch.is_known_refused(), now);
            batch.decide_read();
        }
    }

    /// Counts the open checks that do not hold.
    fn count_only(&self, batch: &mut Batch, is_refused: bool, now: Time) {
        match batch.counting_if(is_refused) {
            Counting::Always => self.count_groups(batch, now),
            Counting::ReadOnly => {
                batch.only_read();
                for index in 0..batch.checks().len() {
                    let check = batch.check(index);
                    if let (None, Some(hits)) = (&check.hold, check.asked()) {
                        batch.found(index, count(&mut &*self, check, hits, now));
                    }
                }
            }
            Counting::StopWhenOver => self.count_unless_over(batch, now),
        }
    }

    /// Begins the unused counter of a fixed window with these hits.
    pub fn begin(&self, check: &Check, hits: u64, now: Time) {
        let Algorithm::FixedWindow(limit) = check.limit.algorithm else { return };
        let mut states = self;
        states.change((check.id, check.rule_hash), now, |state| match state.number {
            0 if hits > 0 => {
                (State { number: hits, end: limit.period.end(now) }, Used::of(hits, limit.limit), ())
            }
            number => (state, Used::of(number, limit.limit), ()),
        });
    }

    pub fn remove(&self, batch: &mut Batch, now: Time) {
        let mut expired = Vec::new();
        for check in batch.checks() {
            let key = check.id;
            if check.limit.holds {
                expired.extend(self.sweep_counter(key, now));
            }
            self.states.remove(key, now);
            self.logs.remove(key);
            if matches!(check.limit.algorithm, Algorithm::Concurrency(_)) {
                self.forget_holds(key);
            }
        }
        batch.tell_expired(&expired);
    }

    /// Reads every counter and then counts, atomically.
    fn count_unless_over(&self, batch: &mut Batch, now: Time) {
        let mut locked = self.lock(batch.checks());
        for group in counted_groups(batch) {
            locked.read(batch, group, now);
        }
        let is_refused = batch.is_refused(|_, check| check.would_be_over());
        for group in counted_groups(batch) {
            locked.count_group(batch, group, is_refused, now);
        }
    }

    /// Counts each group atomically, and every other check by itself.
    fn count_groups(&self, batch: &mut Batch, now: Time) {
        for group in counted_groups(batch) {
            self.lock(batch.checks_at(group.clone())).count_group(batch, group, false, now);
        }
    }

    fn lock(&self, checks: &[Check]) -> LockedStates<'_> {
        let is_log = |check: &&Check| matches!(check.limit.algorithm, Algorithm::SlidingLog(_));
        LockedStates {
            states: self.states.lock(checks.iter().map(|check| check.id)),
            logs: self.logs.lock(checks.iter().filter(is_log).map(|check| check.id)),
        }
    }
}

/// The open groups and single checks that do not hold.
fn counted_groups(batch: &Batch) -> SmallVec<[Range<usize>; 4]> {
    let is_counted = |check: &Check| check.hold.is_none() && !check.is_decided();
    batch.groups().filter(|group| batch.checks_at(group.clone()).iter().any(is_counted)).collect()
}

impl LockedStates<'_> {
    fn count(&mut self, batch: &mut Batch, index: usize, hits: Hits, now: Time) {
        let verdict = count(self, batch.check(index), hits, now);
        batch.decide(index, batch.decider, verdict);
    }

    fn read(&mut self, batch: &mut Batch, group: Range<usize>, now: Time) {
        for index in group {
            let check = batch.check(index);
            if check.hold.is_none() && !check.is_decided() {
                batch.read(index, count(self, check, Hits::Take(0), now));
            }
        }
    }

    /// Counts the hits of a group if every limit admits them and the request is not rejected elsewhere, or those of a
    /// single check.
    fn count_group(&mut self, batch: &mut Batch, group: Range<usize>, is_rejected: bool, now: Time) {
        if let [check @ Check { member: Member::Alone, hits, .. }] = batch.checks_at(group.clone()) {
            let hits = if is_rejected && !check.would_be_over() { without_taking(*hits) } else { *hits };
            return self.count(batch, group.start, hits, now);
        }
        self.read(batch, group.clone(), now);
        let is_over =
            |check: &Check| if check.is_decided() { check.is_over() } else { check.would_be_over() };
        let is_rejected = is_rejected || batch.checks_at(group.clone()).iter().any(is_over);
        for index in group {
            let check = batch.check(index);
            match check.limit.algorithm {
                _ if check.hold.is_some() || check.is_decided() => {}
                _ if is_rejected && check.takes() && !check.would_be_over() => {}
                Algorithm::FixedWindow(_) if is_rejected && check.takes() => {
                    let key = (check.id, check.rule_hash);
                    self.change(key, check.limit.clock(now), |state| (state, Used::Over, ()));
                    batch.decide(index, batch.decider, check.not_counted(check.verdict.count, now));
                }
                // No other algorithm counts rejected hits.
                _ => self.count(batch, index, check.hits, now),
            }
        }
    }
}

/// A key, and the hash of its rule.
type RuleKey = (CounterId, u16);

trait States {
    /// Replaces the state of a key by that of `change`, if it differs or has rejected hits.
    fn change<R>(&mut self, key: RuleKey, now: Time, change: impl FnOnce(State) -> (State, Used, R)) -> R;

    fn apply_to_log(&mut self, key: RuleKey, limit: SlidingLog, hits: Hits, now: Time) -> Verdict;
}

impl States for &MemoryStore {
    fn change<R>(&mut self, key: RuleKey, now: Time, change: impl FnOnce(State) -> (State, Used, R)) -> R {
        self.states.change(key.0, now, |before| changed(before, key.1, change))
    }

    fn apply_to_log(&mut self, key: RuleKey, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        self.logs.apply(key, limit, hits, now)
    }
}

struct LockedStates<'s> {
    states: Locked<'s, u64>,
    logs: LockedLogs<'s>,
}

impl States for LockedStates<'_> {
    fn change<R>(&mut self, key: RuleKey, now: Time, change: impl FnOnce(State) -> (State, Used, R)) -> R {
        self.states.change(key.0, now, |before| changed(before, key.1, change))
    }

    fn apply_to_log(&mut self, key: RuleKey, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        self.logs.apply(key, limit, hits, now)
    }
}

/// The new state for the table, if it differs. A rejection changes only the mark; an unused counter has none.
fn changed<R>(
    before: Kept<u64>,
    rule: u16,
    change: impl FnOnce(State) -> (State, Used, R),
) -> (Option<Kept<u64>>, R) {
    let unchanged = State { number: before.state, end: before.end };
    let (after, used, result) = change(unchanged);
    let is_first_rejection =
        used == Used::Over && before.mark.used() != Used::Over && unchanged != State::default();
    let kept = Kept { state: after.number, end: after.end, mark: Mark::new(rule, used) };
    ((after != unchanged || is_first_rejection).then_some(kept), result)
}

/// How much of a limit is used after this verdict.
fn used(verdict: Verdict, limit: Algorithm) -> Used {
    let capacity = limit.capacity();
    let hits = capacity.saturating_sub(verdict.remaining);
    Used::of(if verdict.admitted { hits } else { u64::MAX }, capacity)
}

fn count(states: &mut impl States, check: &Check, hits: Hits, now: Time) -> Verdict {
    let key = (check.id, check.rule_hash);
    let algorithm = check.limit.algorithm;
    let decided = |(after, verdict)| (after, used(verdict, algorithm), verdict);
    match algorithm {
        Algorithm::FixedWindow(limit) => {
            // What ends before a window that begins soon is not over yet.
            let count = states.change(key, check.limit.clock(now), |state| {
                let (after, count) = limit.apply(state, hits, now);
                (after, Used::of(count, limit.limit), count)
            });
            check.counted(count, now)
        }
        Algorithm::SlidingWindow(limit) => {
            states.change(key, now, |state| decided(limit.apply(state, hits, now)))
        }
        Algorithm::Bucket(limit) => states.change(key, now, |state| decided(limit.apply(state, hits, now))),
        Algorithm::SlidingLog(limit) => states.apply_to_log(key, limit, hits, now),
        Algorithm::Concurrency(_) => unreachable!("a limit of requests under way holds"),
    }
}

impl Count for MemoryStore {
    fn needs_names(&self) -> bool {
        false
    }

    fn try_apply(&self, batch: &mut Batch, now: Time) -> Applied {
        self.count(batch, now);
        Applied::Done
    }

    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.count(batch, now);
        Box::pin(ready(Ok(())))
    }
}

impl KeepHolds for MemoryStore {
    fn close_holds<'a>(&'a self, closing: &'a mut Closing, now: Time) -> StoreFuture<'a> {
        self.close(closing, now);
        Box::pin(ready(Ok(())))
    }

    fn try_close_holds(&self, closing: &Closing, now: Time) -> Applied {
        self.close(closing, now);
        Applied::Done
    }

    fn open_holds(&self) -> u64 {
        self.holds.open()
    }

    fn sweep_holds<'a>(&'a self, account: &'a HoldAccount, now: Time) -> SweepFuture<'a> {
        self.expire_holds(now, |closed| account.answered(closed));
        Box::pin(ready(()))
    }

    fn list_holds<'a>(&'a self, batch: &'a Batch, most: usize, _now: Time) -> ListingFuture<'a> {
        Box::pin(ready(Ok(self.list(batch, most))))
    }
}

impl Operate for MemoryStore {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.remove(batch, now);
        Box::pin(ready(Ok(())))
    }

    fn maintain(&self, now: Time) {
        let part = self.swept.fetch_add(1, Ordering::Relaxed) % SWEEP_PARTS;
        self.states.sweep(part, SWEEP_PARTS, now);
        self.logs.sweep(part, SWEEP_PARTS, now);
    }
}

impl Report for MemoryStore {
    fn usage(&self) -> Option<StoreUsage> {
        let held = [self.states.usage(), self.logs.usage()].into_iter().sum();
        Some(StoreUsage { held, max_keys: self.max_keys })
    }
}
