//! What happened in the last minutes: the busiest and the most refused keys of each rule, and the last refusals.
//!
//! The limiter notes decisions with [`Recent::note_hits`] and [`Recent::note_decision`]; the admin API, the page and
//! the metrics read them. Each worker writes to tables of its own, so that two workers never wait for each other. A
//! reader takes a worker's lock for microseconds; a worker that finds it taken does not wait: it passes over that note,
//! and counts it. Above a rate at which every decision is noted (`sampler`), one in 64 is, with 64 times its weight. So
//! a note costs little at any rate, and allocates nothing once the tables are filled.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod decision;
pub mod decision_log;
mod keys;
mod ring;
mod sampler;
mod sketch;
#[cfg(test)]
mod tests;
mod top;

use std::{
    collections::HashMap,
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hashbrown::DefaultHashBuilder;

pub use self::{
    decision::{DecidedBy, Decision, LimitShown},
    decision_log::DecisionLog,
    keys::{Key, SharedEntry},
    top::{RuleTop, TopKey},
};
use self::{
    decision_log::Pending,
    ring::Ring,
    sampler::Sampler,
    top::{Budget, Merge, PANE_SECONDS, Tables},
};
use crate::{
    clock::Time,
    mutex::lock,
    rules::RuleSet,
    settings::{KeyValues, Logged},
    telemetry::metrics::{ShardCount, shard},
};

/// Refusals that are kept.
pub const MAX_REFUSALS: usize = 1000;

/// Decisions of a worker in a second of which every one is noted. 4,096 notes take a two-thousandth of a second.
const EXACT_HITS: u32 = 4096;

/// Refusals of a worker in a second of which every one is kept.
const EXACT_REFUSALS: u32 = 1000;

/// The notes of all workers.
pub struct Recent {
    workers: Box<[Worker]>,
    /// The numbers of the rules' tables by their full keys, over reloads.
    rules: Mutex<HashMap<Box<str>, Arc<RuleTop>>>,
    budget: Budget,
    /// The pane in which old tables were freed last.
    freed_in: AtomicU64,
    /// The number of the last refusal.
    last_id: AtomicU64,
    hasher: DefaultHashBuilder,
    log: Option<DecisionLog>,
    values: KeyValues,
}

/// The notes of one worker, alone in their cache lines.
#[repr(align(128))]
struct Worker {
    hits: Sampler,
    refusals: Sampler,
    tables: Tables,
    ring: Mutex<Ring>,
    pending: Pending,
    missed: AtomicU64,
}

/// A rule as refusals and top keys show it.
#[derive(Debug)]
pub struct RuleInfo {
    /// Its domain.
    pub domain: Box<str>,
    /// Its full key: the domain and each level's text, joined by dots.
    pub full_key: Box<str>,
    /// The file and the line of its descriptor; none for rules of a control plane.
    pub place: Option<(Arc<str>, u32)>,
    /// Its tables.
    pub top: Arc<RuleTop>,
}

impl RuleInfo {
    /// Its full key without the domain.
    #[must_use]
    pub fn path(&self) -> &str {
        let path = self.full_key.strip_prefix(&*self.domain).and_then(|path| path.strip_prefix('.'));
        path.unwrap_or(&self.full_key)
    }
}

/// How the notes are kept and shown.
#[derive(Clone, Copy, Debug)]
pub struct RecentOptions {
    /// How many workers write.
    pub shards: ShardCount,
    /// `KEY_VALUES`.
    pub values: KeyValues,
    /// `DECISION_LOG`.
    pub logged: Option<Logged>,
}

/// What is to be noted of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// The hits of its descriptors, each with this weight.
    pub hits: Option<u32>,
    /// Its refusal, with this weight.
    pub refusal: Option<u32>,
    /// A line of the log of decisions.
    pub line: bool,
}

impl Wanted {
    /// True if nothing is.
    #[must_use]
    pub fn is_nothing(self) -> bool {
        self.hits.is_none() && self.refusal.is_none() && !self.line
    }
}

impl Recent {
    /// Tables for this many workers.
    #[must_use]
    pub fn new(options: RecentOptions) -> Self {
        let worker = |_| Worker {
            hits: Sampler::new(EXACT_HITS),
            refusals: Sampler::new(EXACT_REFUSALS),
            tables: Tables::default(),
            ring: Mutex::new(Ring::new(MAX_REFUSALS)),
            pending: Pending::default(),
            missed: AtomicU64::new(0),
        };
        Self {
            workers: (0..options.shards.get()).map(worker).collect(),
            rules: Mutex::default(),
            budget: Budget::default(),
            freed_in: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            hasher: DefaultHashBuilder::default(),
            log: options.logged.map(DecisionLog::new),
            values: options.values,
        }
    }

    /// The rules of a set by their ids, with their tables. For those who publish rules, not for requests.
    #[must_use]
    pub fn rules(&self, rules: &RuleSet) -> Vec<Arc<RuleInfo>> {
        let files: HashMap<&str, Arc<str>> = rules.files().map(|file| (file, file.into())).collect();
        let mut by_id = Vec::new();
        let mut tables = lock(&self.rules);
        for domain in rules.domains() {
            domain.root.for_each_node(&mut |node| {
                let Some(rule) = &node.rule else { return };
                let place =
                    rules.origin(node).and_then(|(file, line)| Some((files.get(file)?.clone(), line)));
                let top = tables.entry(rule.full_key.clone()).or_insert_with(|| Arc::new(RuleTop::new()));
                let info = RuleInfo {
                    domain: domain.name.clone(),
                    full_key: rule.full_key.clone(),
                    place,
                    top: top.clone(),
                };
                by_id.push((rule.id.0, Arc::new(info)));
            });
        }
        // Of rules that are gone nobody can ask. Their tables are freed when they are old.
        tables.retain(|_, top| Arc::strong_count(top) > 1);
        by_id.sort_unstable_by_key(|(id, _)| *id);
        by_id.into_iter().map(|(_, info)| info).collect()
    }

    /// What to note of a request. `is_refused` if it was rejected.
    #[must_use]
    pub fn wanted(&self, is_refused: bool, now: Time) -> Wanted {
        let Some(worker) = self.worker() else { return Wanted::default() };
        Wanted {
            hits: worker.hits.admit(now),
            refusal: if is_refused { worker.refusals.admit(now) } else { None },
            line: self.log.as_ref().is_some_and(|log| log.wants(is_refused)),
        }
    }

    /// Notes hits on a rule by a descriptor with these entries.
    pub fn note_hits<'a>(
        &self,
        rule: &RuleInfo,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: Hits,
        now: Time,
    ) {
        let hash = self.hasher.hash_one(SharedEntry::all(entries.clone()));
        let Some(worker) = self.worker() else { return };
        if !worker.tables.note(&rule.top, hash, entries, hits, (now, &self.budget)) {
            worker.missed.fetch_add(1, Relaxed);
        }
    }

    /// Notes a decision: `fill` writes it over an old one.
    pub fn note_decision(&self, wanted: Wanted, fill: impl Fn(&mut Decision)) {
        let Some(worker) = self.worker() else { return };
        if let Some(weight) = wanted.refusal {
            match worker.ring.try_lock() {
                Ok(mut ring) => ring.push(|decision| {
                    decision.id = self.last_id.fetch_add(1, Relaxed).wrapping_add(1);
                    decision.weight = weight;
                    fill(decision);
                }),
                Err(_) => _ = worker.missed.fetch_add(1, Relaxed),
            }
        }
        if let (true, Some(log)) = (wanted.line, &self.log) {
            log.note(&worker.pending, fill);
        }
    }

    /// The last refusals that match, the newest first.
    #[must_use]
    pub fn refusals(&self, most: usize, matches: impl Fn(&Decision) -> bool) -> Vec<Decision> {
        let mut found = Vec::new();
        for worker in &self.workers {
            let ring = lock(&worker.ring);
            found.extend(ring.newest_first().filter(|decision| matches(decision)).take(most).cloned());
        }
        found.sort_by_key(|decision| std::cmp::Reverse((decision.time, decision.id)));
        found.truncate(most);
        found
    }

    /// The seconds that the top keys are of: two to four minutes, less in the first ones.
    #[must_use]
    pub fn window_seconds(started: Time, now: Time) -> u64 {
        top::window_seconds(started, now)
    }

    /// The top keys of these rules.
    #[must_use]
    pub fn top<'a>(&self, rules: impl Iterator<Item = &'a Arc<RuleInfo>>, now: Time) -> Vec<TopKey> {
        let tables = || self.workers.iter().map(|worker| &worker.tables);
        rules.flat_map(|rule| Merge::of(rule, tables(), now).keys()).collect()
    }

    /// Notes that were passed over because a reader held the lock.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.workers.iter().map(|worker| worker.missed.load(Relaxed)).fold(0, u64::saturating_add)
    }

    /// How callers' values are shown.
    #[must_use]
    pub fn values(&self) -> KeyValues {
        self.values
    }

    /// The log of decisions, if it is on.
    #[must_use]
    pub fn log(&self) -> Option<&DecisionLog> {
        self.log.as_ref()
    }

    /// Gives back the tables of rules that counted nothing for some minutes; called about once a second.
    pub fn maintain(&self, now: Time) {
        let pane = now.seconds() / PANE_SECONDS;
        if self.freed_in.swap(pane, Relaxed) != pane {
            self.workers.iter().for_each(|worker| worker.tables.forget_old(now, &self.budget));
        }
    }

    /// Writes what waits to be logged.
    ///
    /// # Errors
    /// When it cannot be written; it is counted as dropped.
    pub fn flush_log(&self, write: &mut dyn std::io::Write) -> std::io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let pending = self.workers.iter().map(|worker| &worker.pending);
        log.flush(pending, self.values, write)
    }

    fn worker(&self) -> Option<&Worker> {
        self.workers.get(shard::of_thread() & self.workers.len().saturating_sub(1))
    }
}

/// The hits of a descriptor, allowed or refused, in their number times the weight of the note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hits {
    /// How many.
    pub count: u64,
    /// One in so many decisions is noted.
    pub weight: u32,
    /// They were refused.
    pub refused: bool,
}
