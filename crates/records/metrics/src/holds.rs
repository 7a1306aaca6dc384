//! Metrics of holds: what was settled and ended by rule, and costs that came late or exceeded what was held.

use std::{
    collections::BTreeMap,
    hash::Hasher as _,
    sync::{Arc, Mutex},
};

use siphasher::sip::SipHasher13;

use super::shard::Counter;
use faults::mutex::lock;

/// Stands for a rule that this replica does not have, or that has gone.
const UNKNOWN: &str = "__unknown__";

text::named! {
    /// How a hold ended that was not settled.
    pub enum HoldEnd {
        Ended = "ended",
        Expired = "expired",
        /// Nobody got its identity.
        Unanswered = "unanswered",
    }
}

text::named! {
    /// Why a request could not hold, although its limits had room.
    pub enum HoldBound {
        /// `HOLDS_MAX` or `HOLDS_MAX_PER_COUNTER`, or in memory `HOLDS_MAX_BYTES`.
        Holds = "holds",
        /// The request holds in more slots of a cluster than an identity names.
        Slots = "slots",
        /// `HOLDS_MAX_QUEUED`: a settle or an end was dropped.
        Queue = "queue",
    }
}

#[derive(Default)]
pub struct RuleHolds {
    pub full_key: Box<str>,
    pub settled: Counter,
    ends: [Counter; HoldEnd::ALL.len()],
}

impl RuleHolds {
    fn new(full_key: &str) -> Arc<Self> {
        Arc::new(Self { full_key: full_key.into(), ..Self::default() })
    }

    pub fn ended(&self, how: HoldEnd) -> &Counter {
        &self.ends[how as usize]
    }
}

#[derive(Default)]
pub struct Holds {
    rules: Mutex<BTreeMap<u64, Arc<RuleHolds>>>,
    unknown: Arc<RuleHolds>,
    pub late: Counter,
    pub overspent_hits: Counter,
    pub unknown_ids: Counter,
    refused: [Counter; HoldBound::ALL.len()],
}

impl Holds {
    pub(super) fn new() -> Self {
        Self { unknown: RuleHolds::new(UNKNOWN), ..Self::default() }
    }

    /// The number of a rule below 2⁵³, the same in all replicas.
    pub fn id_of(full_key: &str) -> u64 {
        let mut hasher = SipHasher13::new();
        hasher.write(full_key.as_bytes());
        hasher.finish() >> 11
    }

    /// Adds a rule that holds. Called when rules are published.
    pub fn add_rule(&self, full_key: &str) {
        lock(&self.rules).entry(Self::id_of(full_key)).or_insert_with(|| RuleHolds::new(full_key));
    }

    /// The counters of a rule by its number.
    pub fn rule(&self, id: u64) -> Arc<RuleHolds> {
        lock(&self.rules).get(&id).unwrap_or(&self.unknown).clone()
    }

    pub fn refused(&self, bound: HoldBound) -> &Counter {
        &self.refused[bound as usize]
    }

    /// Those of the rules, and of unknown ones once they have counted.
    pub(super) fn by_rule(&self) -> Vec<Arc<RuleHolds>> {
        let mut all: Vec<_> = lock(&self.rules).values().cloned().collect();
        all.sort_unstable_by(|one, other| one.full_key.cmp(&other.full_key));
        let counts =
            |rule: &RuleHolds| rule.settled.get() + rule.ends.iter().map(Counter::get).sum::<u64>() > 0;
        all.extend(Some(&self.unknown).filter(|rule| counts(rule)).cloned());
        all
    }
}
