//! Counters in this process: exact under contention, small, and alone. Each replica counts by itself.
//!
//! What an algorithm keeps in one number stands in a table; sliding logs stand beside it, in `logs`.

mod logs;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::{Applied, Batch, Check, Counting, Outcome, Store, StoreUsage, looking};
use crate::{
    algorithm::{Algorithm, FixedWindow, Hits, SlidingLog, State, Verdict, fixed_window},
    clock::Time,
    table::{Key, Locked, Table, Usage},
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
        let keys: SmallVec<[Key; 8]> =
            batch.checks().iter().map(|check| self.states.key(batch.full_key(check))).collect();
        let logs = batch.checks().iter().zip(&keys).filter(|(check, _)| keeps_a_log(check));
        let mut held = Held {
            states: self.states.lock(keys.iter().copied()),
            logs: self.logs.lock(logs.map(|(_, key)| *key)),
        };
        let mut count_each = |batch: &mut Batch<'_>, hits: &dyn Fn(usize, &Check<'_>) -> Hits| {
            let mut each = keys.iter().enumerate();
            batch.answer(|_, check| match each.next() {
                Some((place, key)) => count(&mut held, *key, check, hits(place, check), now),
                None => check.outcome,
            });
        };
        count_each(batch, &|_, _| Hits::Take(0));
        let hits = batch.hits_after_look();
        count_each(batch, &hits);
        drop(held);
        self.logs.make_room(&keys);
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
        self.logs.ask(key, limit, hits, now)
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
        self.logs.ask(key, limit, hits, now)
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
            keeps.change(key, now, |state| changed(state, limit.ask(state, hits, now)))
        }
        Algorithm::Bucket(limit) => {
            keeps.change(key, now, |state| changed(state, limit.ask(state, hits, now)))
        }
        Algorithm::SlidingLog(limit) => keeps.ask_log(key, limit, hits, now),
    };
    Outcome::Judged(verdict)
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
            Counting::Always => {
                batch.answer(|key, check| count(&mut store, self.states.key(key), check, check.hits, now));
            }
            Counting::Look => batch.answer(|key, check| {
                count(&mut store, self.states.key(key), check, looking(check.hits), now)
            }),
            Counting::StopWhenOver => self.count_unless_over(batch, now),
        }
        Applied::Now(Ok(()))
    }

    fn answers_at_once(&self) -> bool {
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
            entries: states.entries + logs.entries,
            bytes: states.bytes + logs.bytes,
            expired: states.expired + logs.expired,
            evicted: states.evicted + logs.evicted,
        };
        Some(StoreUsage { held, max_keys: self.max_keys })
    }
}
