//! Recent decisions: the busiest and the most rejected keys of each rule, and the last refusals. The limiter records
//! decisions with [`Recent::note_hits`] and [`Recent::note_decision`]; the admin API, the page and the metrics read
//! them. Each worker has its own tables, so that workers do not wait for each other. A reader holds a worker's lock for
//! microseconds; a worker that finds it locked counts the record as missed and does not wait. Up to a number per second
//! every decision is recorded, and beyond it one in 64 with a weight of 64 (`sampler`). So recording is cheap at any
//! rate, and allocates nothing once the tables are filled.

pub mod decision;
mod decision_log;
mod keys;
pub mod refused_keys;
mod sampler;
mod settings;
mod sketch;
#[cfg(test)]
mod tests;
mod top;

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hashbrown::DefaultHashBuilder;

pub use self::settings::{KeyValues, Logged, Quoting};
pub use self::{
    decision::{DecidedBy, Decision, LimitShown, OverrideShown},
    decision_log::DecisionLog,
    keys::{Key, shown},
    refused_keys::{OtherRefusals, RefusedKey},
    top::{RuleTop, TopKey, TopKeys},
};
use self::{
    decision_log::Pending,
    keys::HashedEntries,
    refused_keys::RefusedKeys,
    sampler::Sampler,
    sketch::Budget,
    top::{PANE_SECONDS, Tables},
};
use clock::Time;
use faults::mutex::lock;
use metrics::{ShardCount, shard};
use rules::RuleSet;

/// Maximum number of refusals kept per worker, and in a reply.
pub const MAX_REFUSALS: usize = 1000;

/// Up to this many decisions of a worker in a second are all recorded. 4,096 records take 0.5 ms.
const EXACT_HITS: u32 = 4096;

/// Up to this many refusals of a worker in a second are all recorded.
const EXACT_REFUSALS: u32 = 1000;

pub struct Recent {
    workers: Box<[Worker]>,
    /// The rules of the last set by their full keys.
    rules: Mutex<HashMap<Arc<str>, Arc<RuleInfo>>>,
    budget: Budget,
    /// The pane in which old tables were freed last.
    freed_in: AtomicU64,
    last_id: AtomicU64,
    /// Stand for the rules of descriptors without one.
    unmatched: [Arc<RuleInfo>; Unmatched::ALL.len()],
    /// Stands for the rule of descriptors that an override meets, or a limit of the request, and no rule.
    without_rule: Arc<RuleInfo>,
    hasher: DefaultHashBuilder,
    log: Option<DecisionLog>,
    values: KeyValues,
}

/// The records of one worker, in separate cache lines.
#[repr(align(128))]
struct Worker {
    hits: Sampler,
    refusals: Sampler,
    shadowed: Sampler,
    tables: Tables,
    /// Refusals, and those that shadow mode prevented: the two do not replace each other.
    refused: [Mutex<Refused>; 2],
    pending: Pending,
    missed: AtomicU64,
}

impl Worker {
    fn refused(&self, is_shadowed: bool) -> &Mutex<Refused> {
        let [refused, shadowed] = &self.refused;
        if is_shadowed { shadowed } else { refused }
    }
}

#[derive(Default)]
struct Refused {
    last: VecDeque<Decision>,
    by_key: RefusedKeys,
}

text::named! {
    /// What became of hits.
    pub enum HitOutcome {
        Allowed = "allowed",
        Refused = "refused",
        /// Over the limit, and allowed by shadow mode.
        Shadowed = "shadowed",
    }
}

text::named! {
    /// Why a descriptor has no limit although nothing exempts it.
    pub enum Unmatched {
        UnknownDomain = "unknown_domain",
        /// The domain has rules, and the descriptor meets none of them.
        NoRule = "no_rule",
    }
}

#[derive(Debug)]
pub struct RuleInfo {
    pub domain: Arc<str>,
    /// Its full key: the domain and each level's text, joined by dots.
    pub full_key: Arc<str>,
    /// The file and the line of its descriptor; `None` for rules of a control plane.
    pub place: Option<(Arc<str>, u32)>,
    pub top: Arc<RuleTop>,
}

impl RuleInfo {
    fn standing_for(name: &str) -> Self {
        Self { domain: "".into(), full_key: name.into(), place: None, top: Arc::new(RuleTop::new()) }
    }

    /// False for what stands for the rule of descriptors without one. Their keys begin with an entry for the domain.
    fn has_domain(&self) -> bool {
        !self.domain.is_empty()
    }

    /// The full key without the domain.
    pub fn path(&self) -> &str {
        let path = self.full_key.strip_prefix(&*self.domain).and_then(|path| path.strip_prefix('.'));
        path.unwrap_or(&self.full_key)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// The weight of the hits, if they are recorded.
    pub hits: Option<u32>,
    /// The weight of the refusal, if it is recorded.
    pub refusal: Option<u32>,
    /// The weight of the refusal that shadow mode prevented, if it is recorded.
    pub shadowed: Option<u32>,
    pub line: bool,
}

/// What a decision is about, which keeps refusals of one key apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct About {
    /// Shadow mode prevented the refusal.
    pub is_shadowed: bool,
    /// An override blocks the key: refusals by its limit are others.
    pub is_blocked: bool,
}

impl Recent {
    /// Tables for this many workers, with `KEY_VALUES` and `DECISION_LOG`.
    pub fn new(shards: ShardCount, values: KeyValues, logged: Option<Logged>) -> Self {
        let worker = |_| Worker {
            hits: Sampler::new(EXACT_HITS),
            refusals: Sampler::new(EXACT_REFUSALS),
            shadowed: Sampler::new(EXACT_REFUSALS),
            tables: Tables::default(),
            refused: [Mutex::default(), Mutex::default()],
            pending: Pending::default(),
            missed: AtomicU64::new(0),
        };
        Self {
            workers: (0..shards.get()).map(worker).collect(),
            rules: Mutex::default(),
            budget: Budget::default(),
            freed_in: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            unmatched: Unmatched::ALL.map(|reason| Arc::new(RuleInfo::standing_for(reason.name()))),
            without_rule: Arc::new(RuleInfo::standing_for("")),
            hasher: DefaultHashBuilder::default(),
            log: logged.map(DecisionLog::new),
            values,
        }
    }

    /// The rules of a set by their ids. Called when rules are published.
    pub fn rules(&self, rules: &RuleSet) -> Vec<Arc<RuleInfo>> {
        let files: HashMap<&str, Arc<str>> = rules.files().map(|file| (file, file.into())).collect();
        let mut by_id = Vec::new();
        let mut known_rules = lock(&self.rules);
        for domain in rules.domains() {
            let name: Arc<str> = (&*domain.name).into();
            domain.root.for_each_node(&mut |node| {
                let Some(rule) = &node.rule else { return };
                let place =
                    rules.origin(node).and_then(|(file, line)| Some((files.get(file)?.clone(), line)));
                // With its key, so that nothing of the previous set is left.
                let info = match known_rules.remove(&rule.full_key) {
                    // A rule that stays shares its statistics with the previous set.
                    Some(info) if info.place == place && info.domain == name => info,
                    known => Arc::new(RuleInfo {
                        domain: name.clone(),
                        full_key: rule.full_key.clone(),
                        place,
                        top: known.map_or_else(|| Arc::new(RuleTop::new()), |known| known.top.clone()),
                    }),
                };
                known_rules.insert(info.full_key.clone(), info.clone());
                by_id.push((rule.id.0, info));
            });
        }
        // Removed rules cannot be queried. Their tables are freed when they are old.
        known_rules.retain(|_, info| Arc::strong_count(info) > 1);
        by_id.sort_unstable_by_key(|(id, _)| *id);
        by_id.into_iter().map(|(_, info)| info).collect()
    }

    /// What is recorded of a request. Shadow mode may have prevented the refusal by one descriptor of a refused request.
    pub fn wanted(&self, is_refused: bool, is_shadowed: bool, now: Time) -> Wanted {
        let worker = self.worker();
        Wanted {
            hits: worker.hits.admit(now),
            refusal: if is_refused { worker.refusals.admit(now) } else { None },
            shadowed: if is_shadowed { worker.shadowed.admit(now) } else { None },
            line: self.log.as_ref().is_some_and(|log| log.wants(is_refused)),
        }
    }

    /// Records the hits of a descriptor with these entries.
    pub fn note_hits<'a>(
        &self,
        rule: Option<&RuleInfo>,
        domain: &'a str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: Hits,
        now: Time,
    ) {
        if let Some(rule) = rule {
            return self.note(rule, entries.clone(), entries, hits, now);
        }
        let key = [(domain, "")].into_iter().chain(entries);
        self.note(&self.without_rule, key.clone(), key, hits, now);
    }

    /// Records descriptors without a rule: each is one of the shape that its domain and its keys have, with the first
    /// one's values as an example.
    pub fn note_unmatched<'a>(
        &self,
        reason: Unmatched,
        domain: &'a str,
        entries: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        weight: u32,
        now: Time,
    ) {
        let keys = entries.clone().map(|(key, _)| (key, ""));
        let shape = [(domain, "")].into_iter().chain(keys.filter(|_| reason == Unmatched::NoRule));
        let hits = Hits { count: 1, weight, outcome: HitOutcome::Allowed };
        let example = [(domain, "")].into_iter().chain(entries);
        self.note(&self.unmatched[reason as usize], shape, example, hits, now);
    }

    /// Records hits of a key, which `identity` distinguishes from the rule's other keys.
    fn note<'a, 'i>(
        &self,
        rule: &RuleInfo,
        identity: impl Iterator<Item = (&'i str, &'i str)> + Clone,
        key: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        hits: Hits,
        now: Time,
    ) {
        let hash = self.hasher.hash_one(HashedEntries(identity));
        let worker = self.worker();
        if !worker.tables.note(&rule.top, hash, key, hits, now, &self.budget) {
            worker.missed.fetch_add(1, Relaxed);
        }
    }

    /// Records a decision about this key: its rule, and its domain followed by its entries. `fill` overwrites an old one.
    pub fn note_decision<'a>(
        &self,
        wanted: Wanted,
        about: About,
        rule: Option<&RuleInfo>,
        key: impl Iterator<Item = (&'a str, &'a str)> + Clone,
        now: Time,
        fill: impl Fn(&mut Decision),
    ) {
        let worker = self.worker();
        let weight = if about.is_shadowed { wanted.shadowed } else { wanted.refusal };
        if let Some(weight) = weight {
            if let Ok(mut refused) = worker.refused(about.is_shadowed).try_lock() {
                let Refused { last, by_key } = &mut *refused;
                if last.len() < MAX_REFUSALS {
                    last.push_back(Decision::default());
                } else {
                    // It is full, so this moves the first position and no element.
                    last.rotate_left(1);
                }
                let id = self.last_id.fetch_add(1, Relaxed) + 1;
                let fill = |decision: &mut Decision| {
                    (decision.id, decision.weight) = (id, weight);
                    fill(decision);
                };
                last.back_mut().into_iter().for_each(fill);
                let rule = rule.map_or(u64::MAX, |rule| rule.top.number());
                let hash = self.hasher.hash_one((rule, about.is_blocked, HashedEntries(key)));
                by_key.note(hash, rule, weight, now, fill);
            } else {
                worker.missed.fetch_add(1, Relaxed);
            }
        }
        if let (true, Some(log)) = (wanted.line, &self.log) {
            log.note(&worker.pending, fill);
        }
    }

    /// The last refusals, or those that shadow mode prevented.
    pub fn refusals(
        &self,
        most: usize,
        is_shadowed: bool,
        matches: impl Fn(&Decision) -> bool,
    ) -> Vec<Decision> {
        let mut found = Vec::new();
        for worker in &self.workers {
            let refused = lock(worker.refused(is_shadowed));
            found.extend(refused.last.iter().rev().filter(|decision| matches(decision)).take(most).cloned());
        }
        found.sort_by_key(|decision| std::cmp::Reverse((decision.time, decision.id)));
        found.truncate(most);
        found
    }

    /// The refused keys, or those that shadow mode allowed: the last one first, and what was counted without its key.
    pub fn refused_keys(&self, is_shadowed: bool, now: Time) -> (Vec<RefusedKey>, OtherRefusals) {
        let mut by_hash = HashMap::<u64, RefusedKey>::new();
        let mut others = OtherRefusals::default();
        for worker in &self.workers {
            let refused = lock(worker.refused(is_shadowed));
            for key in refused.by_key.all() {
                by_hash.entry(key.hash).and_modify(|known| known.add(key)).or_insert_with(|| key.clone());
            }
            others.add(refused.by_key.others(), now);
        }
        let mut keys: Vec<RefusedKey> = by_hash.into_values().collect();
        keys.sort_unstable_by_key(|key| std::cmp::Reverse((key.last, key.example.id)));
        (keys, others)
    }

    /// Stands for the rule of keys that an override meets, or a limit of the request, and no rule.
    pub fn without_rule(&self) -> &Arc<RuleInfo> {
        &self.without_rule
    }

    /// Descriptors without a rule, by their domains and keys.
    pub fn unmatched(&self, now: Time) -> impl Iterator<Item = (Unmatched, TopKeys)> {
        Unmatched::ALL.into_iter().zip(self.top(self.unmatched.iter(), now))
    }

    /// The seconds that the top keys cover: two to four minutes, less after the start.
    pub fn window_seconds(started: Time, now: Time) -> u64 {
        let pane = now.seconds() / PANE_SECONDS;
        let first = pane.saturating_sub(1) * PANE_SECONDS;
        // The clock may be set back.
        now.seconds().saturating_sub(first.max(started.seconds()))
    }

    pub fn top<'a>(&self, rules: impl Iterator<Item = &'a Arc<RuleInfo>>, now: Time) -> Vec<TopKeys> {
        let tables = || self.workers.iter().map(|worker| &worker.tables);
        rules.map(|rule| top::merge(rule, tables(), now)).collect()
    }

    /// The number of records that were missed because a reader held the lock.
    pub fn missed(&self) -> u64 {
        self.workers.iter().map(|worker| worker.missed.load(Relaxed)).sum()
    }

    pub fn values(&self) -> KeyValues {
        self.values
    }

    pub fn log(&self) -> Option<&DecisionLog> {
        self.log.as_ref()
    }

    /// Frees the tables of rules without hits in the last minutes; called about once a second.
    pub fn maintain(&self, now: Time) {
        let pane = now.seconds() / PANE_SECONDS;
        if self.freed_in.swap(pane, Relaxed) != pane {
            self.workers.iter().for_each(|worker| worker.tables.forget_old(now, &self.budget));
        }
    }

    /// The lines of the decision log that are not written.
    pub fn unwritten(&self) -> u64 {
        let pending = self.workers.iter().map(|worker| &worker.pending);
        self.log.as_ref().map_or(0, |log| log.unwritten(pending))
    }

    /// Writes the pending lines of the decision log.
    pub fn flush_log(&self, write: &mut dyn std::io::Write) -> std::io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let pending = self.workers.iter().map(|worker| &worker.pending);
        log.flush(pending, self.values, write)
    }

    /// Their number is a power of two.
    fn worker(&self) -> &Worker {
        &self.workers[shard::of_thread() & (self.workers.len() - 1)]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hits {
    pub count: u64,
    /// The number of decisions that the record stands for.
    pub weight: u32,
    pub outcome: HitOutcome,
}
