//! The top keys of a rule: tables of each worker, merged when they are read.
//!
//! A key with many refused hits may have few allowed ones, so each [`HitOutcome`] has a table of its own. Time is
//! divided into panes of two minutes, the same for all workers; the current pane and the previous one are kept, which
//! cover the last two to four minutes. That is simpler than decaying each count, and the counts refer to a known time.

use std::{
    collections::HashMap as Keys,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hashbrown::{HashMap, hash_map::Entry};

use super::{
    HitOutcome, Hits, RuleInfo,
    keys::Key,
    lock,
    sampler::ONE_IN,
    sketch::{Budget, Estimate, Sketch},
};
use clock::Time;

pub(super) const PANE_SECONDS: u64 = 120;

#[derive(Debug)]
pub struct RuleTop(u64);

impl RuleTop {
    pub(super) fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self(NUMBERS.fetch_add(1, Relaxed))
    }

    pub(super) fn number(&self) -> u64 {
        self.0
    }
}

/// The tables of a worker by their [`RuleTop`], created with the first hit of a rule.
#[derive(Debug, Default)]
pub(super) struct Tables(Mutex<HashMap<u64, Box<Panes>>>);

#[derive(Debug, Default)]
struct Panes {
    /// The number of the current pane since 1970.
    number: u64,
    current: Pane,
    previous: Pane,
}

#[derive(Debug, Default)]
struct Pane {
    /// By [`HitOutcome`].
    sketches: [Sketch; HitOutcome::ALL.len()],
    /// Not every decision was recorded.
    is_sampled: bool,
}

/// The memory of a rule's tables without their keys.
const PANES_BYTES: usize = size_of::<Panes>() + 32;

impl Tables {
    /// Notes hits. False if a reader holds the lock.
    pub(super) fn note<'a>(
        &self,
        rule: &RuleTop,
        hash: u64,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: Hits,
        now: Time,
        budget: &Budget,
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
        pane.sketches[hits.outcome as usize].add(hash, entries, count, budget);
        true
    }

    /// Frees the tables of rules without notes in the kept panes.
    pub(super) fn forget_old(&self, now: Time, budget: &Budget) {
        lock(&self.0).retain(|_, panes| {
            panes.turn(now);
            let is_kept = !panes.sketches().all(Sketch::is_empty);
            if !is_kept {
                let bytes: usize = panes.sketches().map(Sketch::bytes).sum();
                budget.0.fetch_sub(PANES_BYTES + bytes, Relaxed);
            }
            is_kept
        });
    }
}

impl Panes {
    fn turn(&mut self, now: Time) {
        let number = now.seconds() / PANE_SECONDS;
        if number == self.number {
            return;
        }
        mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if number != self.number + 1 {
            self.previous.clear();
        }
        self.number = number;
    }

    fn sketches(&self) -> impl Iterator<Item = &Sketch> {
        self.current.sketches.iter().chain(&self.previous.sketches)
    }
}

impl Pane {
    fn clear(&mut self) {
        self.sketches.iter_mut().for_each(Sketch::clear);
        self.is_sampled = false;
    }
}

#[derive(Clone, Debug, Default)]
pub struct TopKeys {
    /// In no particular order.
    pub keys: Vec<TopKey>,
    /// The most allowed hits of a key that is not among them, and the most refused or shadowed ones.
    pub missing: [u64; 2],
}

/// A key, and its hits in the last minutes.
#[derive(Clone, Debug)]
pub struct TopKey {
    pub rule: Arc<RuleInfo>,
    pub key: Key,
    pub allowed: u64,
    pub refused: u64,
    /// Over the limit, and allowed by shadow mode.
    pub shadowed: u64,
    /// The largest error of these numbers; with sampling, it is exceeded in one of 400 cases.
    pub error: u64,
}

impl TopKey {
    pub fn domain(&self) -> &str {
        let first = || self.key.entries().next().map_or("", |(domain, _)| domain);
        if self.rule.has_domain() { &self.rule.domain } else { first() }
    }

    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.key.entries().skip(usize::from(!self.rule.has_domain()))
    }
}

#[derive(Default)]
struct Sum {
    count: u64,
    error: u64,
    /// The most hits of a missing key, in the tables that have this key.
    not_missing: u64,
    sampled: u64,
}

/// The keys of a rule from the tables of all workers.
pub(super) fn merge<'a>(
    rule: &Arc<RuleInfo>,
    workers: impl Iterator<Item = &'a Tables>,
    now: Time,
) -> TopKeys {
    let mut keys: Keys<u64, (Key, [Sum; HitOutcome::ALL.len()])> = Keys::new();
    // The most hits of a key that is in no table.
    let mut missing = [0_u64; HitOutcome::ALL.len()];
    for worker in workers {
        let mut tables = lock(&worker.0);
        let Some(panes) = tables.get_mut(&rule.top.0) else { continue };
        panes.turn(now);
        for Pane { sketches, is_sampled } in [&panes.current, &panes.previous] {
            for (at, (sketch, missing)) in sketches.iter().zip(&mut missing).enumerate() {
                let missing_here = sketch.missing_at_most();
                *missing = missing.saturating_add(missing_here);
                for Estimate { hash, key, count, error } in sketch.estimates() {
                    let (_, sums) = keys.entry(hash).or_insert_with(|| (key.clone(), Default::default()));
                    let sum = &mut sums[at];
                    sum.count = sum.count.saturating_add(count);
                    sum.error = sum.error.saturating_add(error);
                    sum.not_missing = sum.not_missing.saturating_add(missing_here);
                    sum.sampled = sum.sampled.saturating_add(if *is_sampled { count } else { 0 });
                }
            }
        }
    }
    let [missing_allowed, missing_refused, missing_shadowed] = missing;
    let top = |(key, [allowed, refused, shadowed]): (Key, [Sum; HitOutcome::ALL.len()])| TopKey {
        rule: rule.clone(),
        key,
        allowed: allowed.count,
        refused: refused.count,
        shadowed: shadowed.count,
        error: allowed
            .error(missing_allowed)
            .max(refused.error(missing_refused))
            .max(shadowed.error(missing_shadowed)),
    };
    let missing = [missing_allowed, missing_refused.max(missing_shadowed)];
    TopKeys { keys: keys.into_values().map(top).collect(), missing }
}

impl Sum {
    /// The largest error of the count: the errors of tables that have the key, the most hits of a missing key in the
    /// others, and three standard deviations of the sampling. Noting one of 64 hits with 64 times its weight has a
    /// variance of at most 63 times their number, which is that of independent draws.
    fn error(&self, missing: u64) -> u64 {
        let of_tables = self.error.saturating_add(missing.saturating_sub(self.not_missing));
        let variance = self.sampled.saturating_mul(u64::from(ONE_IN - 1));
        of_tables.saturating_add(variance.isqrt().saturating_mul(3))
    }
}
