//! The decision: from a [`Request`] to its [`Answer`].
//!
//! `decide` has the two steps of a decision. `plan` matches the rules and fills a batch of checks, the store counts,
//! `conclude` derives the statuses from the outcomes, and `response` makes the answer. All but the store are plain
//! functions. Nothing here depends on gRPC, HTTP or the source of the rules.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod answer;
mod conclude;
mod counter_key;
mod decide;
mod decision_trace;
mod effects;
mod failure;
mod holds;
mod look;
mod matches;
mod observe;
mod observer;
mod outcome;
mod over_limit_cache;
mod plan;
mod preview;
mod quota;
mod quota_groups;
mod recent_requests;
mod request;
mod request_log;
mod response;
#[cfg(test)]
mod tests;
mod untold;
mod waiting;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

pub use answer::{
    Answer, Code, CurrentLimit, Header, HeaderNames, MetadataDetail, PolicyHeaders, ResponseOptions, Status,
};
use clock::{Clock, Time};
use counters::{MostHolds, Store};
pub use decide::Decided;
pub use decision_trace::{DecisionTrace, Wait};
use effects::Effects;
use faults::{OnStoreFailure, log_throttle::LogThrottle};
use holds::Holds;
pub use holds::{CLOSING_KEYS, Chance, HoldToken, system_chance};
use limit::CountingMode;
pub use look::{CounterState, Counters, ListedHold};
pub use matches::limits_under;
use memory::MemoryStore;
use metrics::{DomainStats, RuleStats, Stats};
pub use observer::{Holding, Observed, ObservedDescriptor, ObservedLimit, Observer};
pub use over_limit_cache::{CacheUsage, OverLimitCache};
use overrides::Index;
pub use preview::{OverrideLimits, Preview, preview};
pub use quota::{QuotaBucket, QuotaLimit, QuotaRule, StoreLost};
use recent::{Recent, RuleInfo};
pub use recent_requests::{RecentRequests, Recording};
pub use request::{Ask, Bounds, Descriptor, Entry, LimitOverride, Request, RequestError};
pub use request_log::{Recorded, RequestLog};
use rules::{RuleId, RuleSet};
use rules_source::{Published, Source};
pub use untold::Untold;
use waiting::Owed;
pub use waiting::{Concluded, Waiting};

/// The rules in force, with their statistics.
pub type Served = Published<Handles>;

/// The statistics of a set of rules, published with it.
#[derive(Debug, Default)]
pub struct Handles {
    /// By [`RuleId`].
    rules: Vec<Arc<RuleStats>>,
    domains: Vec<Arc<DomainStats>>,
    /// The recent hits of each rule by its id; empty if they are not recorded.
    recent: Vec<Arc<RuleInfo>>,
    /// Later rules have a larger one.
    number: u32,
}

impl Handles {
    pub fn recent(&self, rule: RuleId) -> Option<&Arc<RuleInfo>> {
        self.recent.get(rule.0 as usize)
    }

    pub fn all_recent(&self) -> impl Iterator<Item = &Arc<RuleInfo>> {
        self.recent.iter()
    }

    pub fn stats(&self, rule: RuleId) -> Option<&Arc<RuleStats>> {
        self.rules.get(rule.0 as usize)
    }
}

static SETS: AtomicU32 = AtomicU32::new(1);

/// The statistics of every rule and domain of a set. `recent` has those of recent hits by the rule's id.
pub fn handles(rules: &RuleSet, stats: &Stats, recent: Vec<Arc<RuleInfo>>) -> Handles {
    let mut domains: Vec<_> = rules.domains().collect();
    domains.sort_unstable_by_key(|domain| domain.index);
    let mut by_id = Vec::new();
    let mut in_service = Vec::new();
    for domain in &domains {
        for (rule, has_fixed_name) in domain.rules() {
            let handle = stats.rule(&domain.name, &rule.full_key);
            if rule.limits().is_some_and(|limits| limits.first().holds) {
                stats.holds().add_rule(&rule.full_key);
            }
            if has_fixed_name && rule.limits().is_some() {
                in_service.push(handle.clone());
            }
            by_id.push((rule.id.0, handle));
        }
    }
    stats.set_in_service(in_service);
    by_id.sort_unstable_by_key(|(id, _)| *id);
    Handles {
        rules: by_id.into_iter().map(|(_, handle)| handle).collect(),
        domains: domains.iter().map(|domain| stats.domain(&domain.name)).collect(),
        recent,
        number: SETS.fetch_add(1, Relaxed),
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub bounds: Bounds,
    pub near_limit_ratio: f32,
    pub key_prefix: String,
    /// `COUNTER_KEY_FORMAT=unambiguous`: shared stores use full keys, which the Go service does not know.
    pub full_keys: bool,
    /// `COUNTING`, for limits that come with a request.
    pub counting: CountingMode,
    /// `USE_CALENDAR_MONTH_RATE_LIMIT`, for limits of requests and overrides.
    pub calendar_months: bool,
    pub stop_when_over: bool,
    /// `SHADOW_MODE`: every request passes.
    pub shadow_mode: bool,
    /// `QUOTA_MODE`: every limit is a quota.
    pub quota_mode: bool,
    pub quota_groups: bool,
    pub response: ResponseOptions,
    /// `STORE_FAILURE_POLICY`, for domains without their own.
    pub on_store_failure: OnStoreFailure,
    /// The maximum number of keys in the local fallback while the store fails.
    pub max_local_keys: usize,
    pub max_holds: MostHolds,
}

/// Exact counting without modes; a store failure is an error.
impl Default for Policy {
    fn default() -> Self {
        Self {
            bounds: Bounds { descriptors: 100, entries: 100 },
            near_limit_ratio: 0.8,
            key_prefix: String::new(),
            full_keys: false,
            counting: CountingMode::Exact,
            calendar_months: false,
            stop_when_over: false,
            shadow_mode: false,
            quota_mode: false,
            quota_groups: false,
            response: ResponseOptions::default(),
            on_store_failure: OnStoreFailure::Error,
            max_local_keys: 10_000,
            max_holds: MostHolds::default(),
        }
    }
}

const MAX_QUEUED_HOLDS: usize = 100_000;

pub struct Limiter {
    policy: Policy,
    source: Arc<Source<Handles>>,
    store: Arc<dyn Store>,
    /// The store needs the names of counters.
    names: bool,
    over_limit: Option<Arc<OverLimitCache>>,
    effects: Arc<Effects>,
    overrides: Arc<Index>,
    stats: Arc<Stats>,
    clock: Arc<dyn Clock>,
    /// Counts while the store fails and the policy is `local` or `share`; created on first use.
    local: OnceLock<MemoryStore>,
    /// This replica's [`Share`](limit::Share) of each limit while the store fails; 0 if it is not known.
    share: AtomicU64,
    holds: Holds,
    owed: Owed,
    /// Recent keys and decisions, if they are recorded.
    recent: Option<Arc<Recent>>,
    observers: Vec<Arc<dyn Observer>>,
    store_failures_log: LogThrottle,
    no_share_log: LogThrottle,
    bad_requests_log: LogThrottle,
    quota_log: LogThrottle,
}

impl Limiter {
    /// A limiter without overrides that records no recent decisions.
    pub fn new(
        policy: Policy,
        source: Arc<Source<Handles>>,
        store: Arc<dyn Store>,
        over_limit: Option<Arc<OverLimitCache>>,
        stats: Arc<Stats>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let effects = Arc::new(Effects::new(stats.clone(), over_limit.clone(), clock.clone()));
        let holds = Holds::new(system_chance(), MAX_QUEUED_HOLDS, &effects);
        Self {
            policy,
            source,
            names: store.needs_names(),
            store,
            over_limit,
            effects,
            holds,
            owed: Owed::default(),
            overrides: Arc::default(),
            stats,
            clock,
            local: OnceLock::new(),
            share: AtomicU64::new(0),
            recent: None,
            observers: Vec::new(),
            store_failures_log: LogThrottle::new(10),
            no_share_log: LogThrottle::new(60),
            bad_requests_log: LogThrottle::new(1),
            quota_log: LogThrottle::new(60),
        }
    }

    /// The same limiter, which records recent keys and decisions.
    pub fn with_recent(self, recent: Arc<Recent>) -> Self {
        Self { recent: Some(recent), ..self }
    }

    /// The same limiter, for replicas that share a store.
    pub fn telling(self, untold: Arc<Untold>) -> Self {
        self.effects.tell(untold);
        self
    }

    /// The same limiter, which shows its requests and decisions to this observer as well.
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// The same limiter, which chooses the identities of holds so and queues at most as many settles and ends.
    pub fn with_holds(self, chance: Chance, max_queued: usize) -> Self {
        Self { holds: Holds::new(chance, max_queued, &self.effects), ..self }
    }

    pub fn with_overrides(self, overrides: Arc<Index>) -> Self {
        Self { overrides, ..self }
    }

    /// Called once on each worker thread, within its runtime, before its first request.
    pub fn start_worker(&self) {
        self.store.start_worker();
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Checks that a request is complete and within the size limits.
    pub fn check(&self, request: &Request<'_>) -> Result<(), RequestError> {
        self.policy.bounds.check(request).inspect_err(|error| self.failed(request, error))
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }
}
