//! What the decisions of one set of rules add up to: by rule, and the use of each limit by key.
//!
//! A key is a rule with the values of a descriptor, without those that share a counter. The use is what a key asks for
//! within one window of the limit's length, whether it is allowed or not, so that it can be compared with any limit.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use clock::Time;
use limit::{Hits, Limits};
use limiter::{Entry, Observed, ObservedLimit};
use recent::LimitShown;
use rules::{
    RuleSet,
    model::{Level, Node},
};
use text::entries;

pub(crate) struct Tally {
    /// By the id of the rule.
    pub(crate) rules: Vec<RuleTally>,
    hasher: RandomState,
    /// Whether the use of limits is counted.
    pub(crate) counts_uses: bool,
    requests: u64,
    /// The descriptors over their limits, if the last request was refused.
    refusing: SmallVec<[Refusing; 4]>,
}

pub(crate) struct RuleTally {
    pub(crate) full_key: Arc<str>,
    pub(crate) place: Option<(Box<str>, u32)>,
    /// A bit for each level whose values share a counter.
    shared_levels: u64,
    pub(crate) requests: u64,
    /// Refused requests that were over one of its limits.
    pub(crate) refused: u64,
    pub(crate) limits: Vec<LimitTally>,
    /// The number of the last request that met the rule.
    last: u64,
}

pub(crate) struct LimitTally {
    pub(crate) limit: LimitShown,
    uses: HashTable<Use>,
}

struct Use {
    hash: u64,
    /// The start of its last window, in seconds.
    start: u32,
    /// The hits in that window.
    count: u64,
    /// The most hits in a window.
    most: u64,
    /// They were once above the limit in force.
    is_over: bool,
}

/// A descriptor that refuses a request.
#[derive(Clone, Copy)]
pub(crate) struct Refusing {
    /// The index of its rule.
    pub(crate) rule: u32,
    pub(crate) descriptor: usize,
    pub(crate) hash: u64,
    /// No descriptor before it has the same rule.
    pub(crate) is_first: bool,
}

impl Tally {
    pub(crate) fn new(rules: &RuleSet) -> Self {
        let mut found: Vec<(u32, RuleTally)> = Vec::new();
        for domain in rules.domains() {
            collect(&domain.root, 0, 0, rules, &mut found);
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        let rules = found.into_iter().map(|(_, rule)| rule).collect();
        Self {
            rules,
            hasher: RandomState::default(),
            counts_uses: true,
            requests: 0,
            refusing: SmallVec::new(),
        }
    }

    pub(crate) fn begin(&mut self) {
        self.requests += 1;
        self.refusing.clear();
    }

    #[expect(clippy::indexing_slicing, reason = "the ids of the rules are dense")]
    pub(crate) fn count(&mut self, decision: &Observed<'_, '_>) {
        let request = decision.request();
        let now = decision.now();
        let is_refused = decision.is_refused();
        for descriptor in decision.descriptors() {
            let rule = &mut self.rules[descriptor.rule.id.0 as usize];
            let is_first = rule.last != self.requests;
            rule.last = self.requests;
            rule.requests += u64::from(is_first);
            let hash = hash_of(&self.hasher, rule.shared_levels, request.descriptors.get(descriptor.index));
            if is_refused && descriptor.is_over {
                let id = descriptor.rule.id.0;
                let descriptor = descriptor.index;
                let is_first = self.refusing.iter().all(|one| one.rule != id);
                rule.refused += u64::from(is_first);
                if self.refusing.iter().all(|one| (one.rule, one.hash) != (id, hash)) {
                    self.refusing.push(Refusing { rule: id, descriptor, hash, is_first });
                }
            }
            if self.counts_uses && !descriptor.is_overridden {
                for limit in descriptor.limits() {
                    if let Some(tally) = self.rules[descriptor.rule.id.0 as usize].limits.get_mut(limit.index)
                    {
                        tally.note(hash, &limit, now);
                    }
                }
            }
        }
    }

    pub(crate) fn refusing(&self) -> &[Refusing] {
        &self.refusing
    }

    /// The key of a descriptor in the notation of the command line, with `*` for values that share a counter.
    #[expect(clippy::indexing_slicing, reason = "an id of these rules")]
    pub(crate) fn key(&self, rule: u32, descriptor: &[Entry<'_>]) -> String {
        let shared = self.rules[rule as usize].shared_levels;
        entries::write(descriptor.iter().enumerate().map(|(level, entry)| {
            (entry.key, Some(if is_shared(shared, level) { "*" } else { entry.value }))
        }))
    }
}

impl LimitTally {
    fn note(&mut self, hash: u64, limit: &ObservedLimit<'_>, now: Time) {
        let start = u32::try_from(limit.limit.period().start(now).seconds()).unwrap_or(u32::MAX);
        let entry = self.uses.entry(hash, |one| one.hash == hash, |one| one.hash);
        let mut entry = entry.or_insert_with(|| Use { hash, start, count: 0, most: 0, is_over: false });
        let one = entry.get_mut();
        if one.start != start {
            (one.start, one.count) = (start, 0);
        }
        one.count = match limit.hits {
            Hits::Take(hits) => one.count.saturating_add(hits),
            Hits::Refund(hits) => one.count.saturating_sub(hits),
        };
        one.most = one.most.max(one.count);
        one.is_over |= one.count > limit.limit.requests_per_unit;
    }

    /// Keys that asked for more than the limit.
    pub(crate) fn keys_over(&self) -> usize {
        self.uses.iter().filter(|one| one.is_over).count()
    }

    /// The most hits of each key in a window, in ascending order.
    pub(crate) fn most_by_key(&self) -> Vec<u64> {
        let mut most: Vec<u64> = self.uses.iter().map(|one| one.most).collect();
        most.sort_unstable();
        most
    }
}

fn hash_of(hasher: &RandomState, shared: u64, descriptor: Option<&limiter::Descriptor<'_>>) -> u64 {
    let mut state = hasher.build_hasher();
    for (level, entry) in descriptor.into_iter().flat_map(|descriptor| &descriptor.entries).enumerate() {
        if !is_shared(shared, level) {
            entry.value.hash(&mut state);
        }
    }
    state.finish()
}

fn is_shared(levels: u64, level: usize) -> bool {
    level < 64 && levels >> level & 1 == 1
}

/// Adds the rules of a level and of those below it.
fn collect(level: &Level, depth: u32, shared: u64, rules: &RuleSet, into: &mut Vec<(u32, RuleTally)>) {
    for (pattern, node) in level.in_order() {
        let is_shared = pattern.is_some() && node.share_threshold && depth < 64;
        let shared = shared | u64::from(is_shared) << depth.min(63);
        into.extend(rule_tally(node, shared, rules));
        collect(&node.children, depth + 1, shared, rules, into);
    }
}

fn rule_tally(node: &Node, shared_levels: u64, rules: &RuleSet) -> Option<(u32, RuleTally)> {
    let rule = node.rule.as_ref()?;
    let limits = rule
        .limits()
        .into_iter()
        .flat_map(Limits::iter)
        .map(|limit| LimitTally { limit: LimitShown::from(limit), uses: HashTable::new() });
    let place = rules.origin(node).map(|(file, line)| (file.into(), line));
    let tally = RuleTally {
        full_key: rule.full_key.clone(),
        place,
        shared_levels,
        requests: 0,
        refused: 0,
        limits: limits.collect(),
        last: 0,
    };
    Some((rule.id.0, tally))
}
