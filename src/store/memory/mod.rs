//! Counters in this process: exact under contention, small, and alone. Each replica counts by itself.
//!
//! What an algorithm keeps in one number stands in a table; sliding logs stand beside it, in `logs`.

mod logs;
#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use smallvec::SmallVec;

use super::{Applied, Batch, Check, Counting, Member, Outcome, Store, StoreUsage, without_taking};
use crate::{
    clock::Time,
    limiter::algorithm::{Algorithm, FixedWindow, Hits, SlidingLog, State, Verdict, fixed_window},
    store::table::{Key, Locked, Table, Usage},
};
use logs::{LockedLogs, Logs};

/// A sweep visits this part of the counters at a time, so that each pause is short and a whole round takes
/// as many seconds.
const SWEEP_PARTS: usize = 16;

/// The embedded store.
pub struct MemoryStore {
    states: Table<u64>,
    logs: Logs,
    swept: AtomicUsize,
    max_keys: usize,
}

impl MemoryStore {
    /// A store that holds at most so many keys at once. When a new key finds no room, the counter among
    /// its neighbours that ends soonest is forgotten.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        let logs = Logs::in_place_of(max_keys);
        Self { states: Table::new(max_keys), logs, swept: AtomicUsize::new(0), max_keys }
    }

    /// Looks at every counter and then counts, in one step that no other request can come between.
    fn count_unless_over(&self, batch: &mut Batch<'_>, now: Time) {
        let places = 0..batch.checks().len();
        let keys = self.keys(batch, places.clone());
        let mut held = self.hold(batch, places.clone(), &keys);
        for (place, key) in places.zip(&keys) {
            held.count(batch, place, *key, Some(Hits::Take(0)), now);
        }
        let any_over = batch.checks().iter().any(|check| check.would_be_over(check.outcome));
        let hits = batch.hits_after_read();
        let mut next = 0;
        while let Some(group) = batch.group_at(next) {
            next = group.end;
            match (batch.checks_at(group.clone()), keys.get(group.clone())) {
                ([Check { member: Member::Alone, .. }], Some([key])) => {
                    let hits = hits.get(group.start).copied().flatten();
                    held.count(batch, group.start, *key, hits, now);
                }
                (_, keys) => held.count_group(batch, group, keys.unwrap_or_default(), any_over, now),
            }
        }
        drop(held);
        self.logs.make_room(&keys);
    }

    /// Counts each group in one step, and every other check by itself.
    fn count_groups(&self, batch: &mut Batch<'_>, now: Time) {
        let mut next = 0;
        while let Some(group) = batch.group_at(next) {
            next = group.end;
            let keys = self.keys(batch, group.clone());
            let mut held = self.hold(batch, group.clone(), &keys);
            match (batch.checks_at(group.clone()), keys.as_slice()) {
                ([Check { member: Member::Alone, hits, .. }], [key]) => {
                    let hits = *hits;
                    held.count(batch, group.start, *key, Some(hits), now);
                }
                (_, keys) => held.count_group(batch, group, keys, false, now),
            }
            drop(held);
            self.logs.make_room(&keys);
        }
    }

    fn keys(&self, batch: &Batch<'_>, places: Range<usize>) -> SmallVec<[Key; 8]> {
        batch.checks_at(places).iter().map(|check| self.states.key(batch.full_key(check))).collect()
    }

    /// Holds all that the checks at these places keep.
    fn hold(&self, batch: &Batch<'_>, places: Range<usize>, keys: &[Key]) -> Held<'_> {
        let logs = batch.checks_at(places).iter().zip(keys).filter(|(check, _)| keeps_a_log(check));
        Held {
            states: self.states.lock(keys.iter().copied()),
            logs: self.logs.lock(logs.map(|(_, key)| *key)),
        }
    }
}

impl Held<'_> {
    /// Counts these hits, and sets the outcome.
    fn count(&mut self, batch: &mut Batch<'_>, place: usize, key: Key, hits: Option<Hits>, now: Time) {
        let (Some(check), Some(hits)) = (batch.checks().get(place), hits) else { return };
        let outcome = count(self, key, check, hits, now);
        batch.set(place, outcome);
    }

    /// Counts the hits of a group if every limit admits them, and the request is not refused elsewhere.
    fn count_group(
        &mut self,
        batch: &mut Batch<'_>,
        group: Range<usize>,
        keys: &[Key],
        is_refused: bool,
        now: Time,
    ) {
        for (place, key) in group.clone().zip(keys) {
            self.count(batch, place, *key, Some(Hits::Take(0)), now);
        }
        let is_over = |check: &Check<'_>| check.takes() && check.would_be_over(check.outcome);
        let is_refused = is_refused || batch.checks_at(group.clone()).iter().any(is_over);
        for (place, key) in group.zip(keys) {
            let Some(check) = batch.checks().get(place) else { continue };
            match check.outcome {
                _ if is_refused && check.takes() && !is_over(check) => {}
                Outcome::Counted(count) if is_refused && check.takes() => {
                    batch.set(place, Outcome::NotCounted(count));
                }
                // Refused hits are not counted by any other algorithm.
                _ => self.count(batch, place, *key, Some(check.hits), now),
            }
        }
    }
}

/// What keeps states and lends them atomicity.
trait Keeps {
    /// Hands the state of a key to `change`, and keeps what it gives back if that is another one.
    fn change<R>(&mut self, key: Key, now: Time, change: impl FnOnce(State) -> (Option<State>, R)) -> R;

    /// Asks the log of a key.
    fn ask_log(&mut self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict;
}

/// Every state for itself.
impl Keeps for &MemoryStore {
    fn change<R>(&mut self, key: Key, now: Time, change: impl FnOnce(State) -> (Option<State>, R)) -> R {
        self.states.change(key, now, |number, end| kept(change(State { number, end })))
    }

    fn ask_log(&mut self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        self.logs.apply(key, limit, hits, now)
    }
}

/// All states of a request in one step.
struct Held<'s> {
    states: Locked<'s, u64>,
    logs: LockedLogs<'s>,
}

impl Keeps for Held<'_> {
    fn change<R>(&mut self, key: Key, now: Time, change: impl FnOnce(State) -> (Option<State>, R)) -> R {
        self.states.change(key, now, |number, end| kept(change(State { number, end })))
    }

    fn ask_log(&mut self, key: Key, limit: SlidingLog, hits: Hits, now: Time) -> Verdict {
        self.logs.apply(key, limit, hits, now)
    }
}

/// As the table keeps a state.
fn kept<R>((state, result): (Option<State>, R)) -> (Option<(u64, Time)>, R) {
    (state.map(|state| (state.number, state.end)), result)
}

fn keeps_a_log(check: &Check<'_>) -> bool {
    matches!(check.limit.algorithm, Algorithm::SlidingLog(_))
}

fn count(keeps: &mut impl Keeps, key: Key, check: &Check<'_>, hits: Hits, now: Time) -> Outcome {
    let verdict = match check.limit.algorithm {
        Algorithm::FixedWindow(limit) => {
            return Outcome::Counted(
                keeps.change(key, now, |state| count_in_window(limit, state, hits, now)),
            );
        }
        Algorithm::SlidingWindow(limit) => {
            keeps.change(key, now, |state| changed(state, limit.apply(state, hits, now)))
        }
        Algorithm::Bucket(limit) => {
            keeps.change(key, now, |state| changed(state, limit.apply(state, hits, now)))
        }
        Algorithm::SlidingLog(limit) => keeps.ask_log(key, limit, hits, now),
    };
    Outcome::Decided(verdict)
}

/// A counter that is only looked at is not made.
fn count_in_window(limit: FixedWindow, state: State, hits: Hits, now: Time) -> (Option<State>, u64) {
    let number = fixed_window::count(state.number, hits);
    let state = (number != state.number).then(|| State { number, end: limit.window.end(now) });
    (state, number)
}

fn changed(before: State, (after, verdict): (State, Verdict)) -> (Option<State>, Verdict) {
    ((after != before).then_some(after), verdict)
}

impl Store for MemoryStore {
    fn apply<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        let mut store = self;
        match batch.counting {
            Counting::Always if batch.has_groups() => self.count_groups(batch, now),
            Counting::Always => {
                batch.set_all(|key, check| count(&mut store, self.states.key(key), check, check.hits, now));
            }
            Counting::ReadOnly => batch.set_all(|key, check| {
                count(&mut store, self.states.key(key), check, without_taking(check.hits), now)
            }),
            Counting::StopWhenOver => self.count_unless_over(batch, now),
        }
        Applied::Now(Ok(()))
    }

    fn reset<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        for check in batch.checks() {
            let key = self.states.key(batch.full_key(check));
            self.states.remove(key, now);
            self.logs.remove(key);
        }
        Applied::Now(Ok(()))
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn maintain(&self, now: Time) {
        let part = self.swept.fetch_add(1, Ordering::Relaxed) % SWEEP_PARTS;
        self.states.sweep(part, SWEEP_PARTS, now);
        self.logs.sweep(part, SWEEP_PARTS, now);
    }

    fn usage(&self) -> Option<StoreUsage> {
        let (states, logs) = (self.states.usage(), self.logs.usage());
        let held = Usage {
            entries: states.entries.saturating_add(logs.entries),
            bytes: states.bytes.saturating_add(logs.bytes),
            expired: states.expired.saturating_add(logs.expired),
            evicted: states.evicted.saturating_add(logs.evicted),
        };
        Some(StoreUsage { held, max_keys: self.max_keys })
    }
}
