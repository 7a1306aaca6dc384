//! The top keys of one rule: tables of each worker, merged when they are read.
//!
//! Keys with many refused hits need not have many hits, so allowed and refused hits have a table each. Time is cut into
//! panes of two minutes, the same for all workers; the pane that fills and the one before it are kept, so that what is
//! shown is of the last two to four minutes. That is simpler than a decay of each count, and the counts remain numbers
//! of hits in a known time.

use std::{
    collections::HashMap as Keys,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use hashbrown::{HashMap, hash_map::Entry};

use super::{
    Hits, RuleInfo,
    keys::Key,
    lock,
    sampler::ONE_IN,
    sketch::{Estimate, Sketch},
};
use crate::clock::Time;

/// The length of a pane.
pub(super) const PANE_SECONDS: u64 = 120;

/// The memory of all tables together.
const MAX_BYTES: usize = 8 << 20;

/// The seconds that two panes cover now.
pub(super) fn window_seconds(started: Time, now: Time) -> u64 {
    let pane = now.seconds() / PANE_SECONDS;
    let first = pane.saturating_sub(1).saturating_mul(PANE_SECONDS);
    now.seconds().saturating_sub(first.max(started.seconds()))
}

/// What is left of the memory of all tables.
#[derive(Debug, Default)]
pub(super) struct Budget {
    taken: AtomicUsize,
}

impl Budget {
    /// Takes memory, if there is as much.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= MAX_BYTES);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

/// Identifies the tables of a rule, for as long as somebody holds it.
#[derive(Debug)]
pub struct RuleTop(u64);

impl RuleTop {
    /// One that nobody had before.
    pub(super) fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self(NUMBERS.fetch_add(1, Relaxed))
    }
}

/// The tables of one worker by the numbers of their rules, each made with the first hit of its rule.
#[derive(Debug, Default)]
pub(super) struct Tables(Mutex<HashMap<u64, Box<Panes>>>);

/// The tables of a rule and a worker.
#[derive(Debug, Default)]
struct Panes {
    /// The number of the current pane since 1970.
    number: u64,
    current: Pane,
    previous: Pane,
}

#[derive(Debug, Default)]
struct Pane {
    allowed: Sketch,
    refused: Sketch,
    /// Not every decision was noted.
    is_sampled: bool,
}

/// The bytes of a rule's tables without their keys.
const PANES_BYTES: usize = size_of::<Panes>() + 32;

impl Tables {
    /// Notes hits; false if a reader is in the way.
    pub(super) fn note<'a>(
        &self,
        rule: &RuleTop,
        hash: u64,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: Hits,
        (now, budget): (Time, &Budget),
    ) -> bool {
        let Ok(mut tables) = self.0.try_lock() else { return false };
        let panes = match tables.entry(rule.0) {
            Entry::Occupied(panes) => panes.into_mut(),
            Entry::Vacant(vacant) if budget.take(PANES_BYTES) => vacant.insert(Box::default()),
            // There is no memory for another rule.
            Entry::Vacant(_) => return true,
        };
        panes.turn(now);
        let pane = &mut panes.current;
        pane.is_sampled |= hits.weight > 1;
        let count = hits.count.saturating_mul(u64::from(hits.weight));
        let sketch = if hits.refused { &mut pane.refused } else { &mut pane.allowed };
        sketch.add(hash, entries, count, budget);
        true
    }

    /// Frees the tables of rules of which nothing was noted in the panes that are kept.
    pub(super) fn forget_old(&self, now: Time, budget: &Budget) {
        lock(&self.0).retain(|_, panes| {
            panes.turn(now);
            let is_kept = !panes.is_empty();
            if !is_kept {
                budget.give_back(panes.bytes().saturating_add(PANES_BYTES));
            }
            is_kept
        });
    }
}

impl Panes {
    /// Begins a new pane when the time of the current one is over.
    fn turn(&mut self, now: Time) {
        let number = now.seconds() / PANE_SECONDS;
        if number == self.number {
            return;
        }
        mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if number != self.number.saturating_add(1) {
            self.previous.clear();
        }
        self.number = number;
    }

    fn all(&self) -> [&Pane; 2] {
        [&self.current, &self.previous]
    }

    fn is_empty(&self) -> bool {
        self.all().iter().all(|pane| pane.allowed.is_empty() && pane.refused.is_empty())
    }

    fn bytes(&self) -> usize {
        let bytes = self.all().map(|pane| pane.allowed.bytes().saturating_add(pane.refused.bytes()));
        bytes.into_iter().fold(0, usize::saturating_add)
    }
}

impl Pane {
    fn clear(&mut self) {
        self.allowed.clear();
        self.refused.clear();
        self.is_sampled = false;
    }
}

/// A key, and its hits of the last minutes.
#[derive(Clone, Debug)]
pub struct TopKey {
    /// Its rule.
    pub rule: Arc<RuleInfo>,
    /// The descriptor.
    pub key: Key,
    /// Hits that passed.
    pub allowed: u64,
    /// Hits that were refused.
    pub refused: u64,
    /// The true numbers differ by at most this; where decisions were sampled, in all but one of 400 cases.
    pub error: u64,
}

/// The tables of all workers of a rule, being merged.
pub(super) struct Merge {
    rule: Arc<RuleInfo>,
    keys: Keys<u64, Merged>,
    /// What a key that is in no table has at most.
    missing_allowed: u64,
    missing_refused: u64,
}

#[derive(Default)]
struct Merged {
    key: Key,
    allowed: Sum,
    refused: Sum,
}

/// The counts of a key in several tables.
#[derive(Default)]
struct Sum {
    count: u64,
    error: u64,
    /// What the tables that have the key say of keys that they do not have.
    not_missing: u64,
    /// Hits in panes that were sampled.
    sampled: u64,
}

impl Merge {
    /// Merges the tables of this rule.
    pub(super) fn of<'a>(rule: &Arc<RuleInfo>, workers: impl Iterator<Item = &'a Tables>, now: Time) -> Self {
        let mut merge =
            Self { rule: rule.clone(), keys: Keys::new(), missing_allowed: 0, missing_refused: 0 };
        for worker in workers {
            let mut tables = lock(&worker.0);
            let Some(panes) = tables.get_mut(&rule.top.0) else { continue };
            panes.turn(now);
            for pane in panes.all() {
                merge.add(pane);
            }
        }
        merge
    }

    fn add(&mut self, pane: &Pane) {
        let Self { keys, missing_allowed, missing_refused, .. } = self;
        add(keys, &pane.allowed, pane.is_sampled, missing_allowed, |merged| &mut merged.allowed);
        add(keys, &pane.refused, pane.is_sampled, missing_refused, |merged| &mut merged.refused);
    }

    /// The keys, in no particular order.
    pub(super) fn keys(self) -> impl Iterator<Item = TopKey> {
        let Self { rule, keys, missing_allowed, missing_refused } = self;
        keys.into_values().map(move |Merged { key, allowed, refused }| TopKey {
            rule: rule.clone(),
            key,
            allowed: allowed.count,
            refused: refused.count,
            error: allowed.error(missing_allowed).max(refused.error(missing_refused)),
        })
    }
}

fn add(
    keys: &mut Keys<u64, Merged>,
    sketch: &Sketch,
    is_sampled: bool,
    missing: &mut u64,
    of: impl Fn(&mut Merged) -> &mut Sum,
) {
    let missing_here = sketch.missing_at_most();
    *missing = missing.saturating_add(missing_here);
    for Estimate { hash, key, count, error } in sketch.estimates() {
        let merged = keys.entry(hash).or_insert_with(|| Merged { key: key.clone(), ..Merged::default() });
        let sum = of(merged);
        sum.count = sum.count.saturating_add(count);
        sum.error = sum.error.saturating_add(error);
        sum.not_missing = sum.not_missing.saturating_add(missing_here);
        if is_sampled {
            sum.sampled = sum.sampled.saturating_add(count);
        }
    }
}

impl Sum {
    /// By how much the true number may differ: where a table has the key, by its error; where it has not, by what it
    /// says of missing keys; and by three standard deviations of the sampling. Noting one of 64 hits with 64 times its
    /// weight has a variance of at most 63 times their number, which is that of drawing each of them alone.
    fn error(&self, missing: u64) -> u64 {
        let of_tables = self.error.saturating_add(missing.saturating_sub(self.not_missing));
        let variance = self.sampled.saturating_mul(u64::from(ONE_IN.saturating_sub(1)));
        of_tables.saturating_add(variance.isqrt().saturating_mul(3))
    }
}
