//! The decision: from a [`Request`] to its [`Answer`].
//!
//! `plan` matches the rules and fills a batch of checks, the store counts, `conclude` derives the statuses from the
//! outcomes, and `response` makes the answer. All but the store are plain functions; the one await of a decision is
//! at the store. Nothing here depends on gRPC, HTTP or the source of the rules.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod answer;
mod conclude;
mod counter_key;
mod counters;
mod decision_trace;
mod failure;
mod observe;
mod outcome;
mod over_limit_cache;
mod plan;
mod preview;
mod replacement;
mod request;
mod response;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    sync::{Arc, OnceLock},
    time::Instant,
};

use futures_util::FutureExt as _;
use smallvec::SmallVec;
use tracing::warn;

pub use answer::{Answer, Code, CurrentLimit, Header, HeaderNames, MetadataDetail, ResponseOptions, Status};
pub use counters::{CounterState, Counters};
pub use decision_trace::{DecisionTrace, Wait};
pub use over_limit_cache::{CacheUsage, OverLimitCache};
pub use preview::{OverrideLimit, Preview, preview};
pub use request::{Bounds, Descriptor, Entry, LimitOverride, Request, RequestError};

use self::{
    failure::FailureDecision,
    over_limit_cache::Lookups,
    plan::{Attempt, CounterSource, Plan, Planned},
};
use algorithms::Verdict;
use clock::{Clock, Time};
use containment::log_throttle::LogThrottle;
use overrides::Index;
use recent::{Recent, RuleInfo};
use rules::{CountingMode, OnStoreFailure, RuleId, RuleSet, model::Domain};
use rules_source::{Published, Source};
use store::{Batch, Check, Counting, Store, memory::MemoryStore};
use telemetry::metrics::{DomainStats, ResponseCode, RuleStats, Stats};

/// The rules in force, with their statistics.
pub type Served = Published<Handles>;

/// The statistics of a set of rules, published with it.
#[derive(Debug, Default)]
pub struct Handles {
    /// By [`RuleId`](rules::RuleId).
    rules: Vec<Arc<RuleStats>>,
    domains: Vec<Arc<DomainStats>>,
    /// The recent hits of each rule by its id; empty if they are not recorded.
    recent: Vec<Arc<RuleInfo>>,
}

impl Handles {
    #[must_use]
    pub fn recent(&self, rule: RuleId) -> Option<&Arc<RuleInfo>> {
        self.recent.get(rule.0 as usize)
    }

    pub fn all_recent(&self) -> impl Iterator<Item = &Arc<RuleInfo>> {
        self.recent.iter()
    }

    #[must_use]
    pub fn stats(&self, rule: RuleId) -> Option<&Arc<RuleStats>> {
        self.rules.get(rule.0 as usize)
    }
}

/// The statistics of every rule and domain of a set. `recent` has those of recent hits by the rule's id.
#[must_use]
pub fn handles(rules: &RuleSet, stats: &Stats, recent: Vec<Arc<RuleInfo>>) -> Handles {
    let mut domains: Vec<_> = rules.domains().collect();
    domains.sort_unstable_by_key(|domain| domain.index);
    let (mut by_id, mut in_service) = (Vec::new(), Vec::new());
    for domain in &domains {
        for (rule, has_fixed_name) in domain.rules() {
            let handle = stats.rule(&domain.name, &rule.full_key);
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
    }
}

/// The characters of a caller's domain in a log line.
const MAX_LOGGED_CHARACTERS: usize = 200;

#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub bounds: Bounds,
    /// `NEAR_LIMIT_RATIO`.
    pub near_limit_ratio: f32,
    /// `CACHE_KEY_PREFIX`.
    pub key_prefix: String,
    /// `COUNTER_KEY_FORMAT=unambiguous`: shared stores use full keys, which the Go service does not know.
    pub full_keys: bool,
    /// `COUNTING`, for limits that come with a request.
    pub counting: CountingMode,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub stop_when_over: bool,
    /// `SHADOW_MODE`: every request passes.
    pub shadow_mode: bool,
    /// `QUOTA_MODE`: every limit is a quota.
    pub quota_mode: bool,
    pub response: ResponseOptions,
    /// `STORE_FAILURE_POLICY`, for domains without their own.
    pub on_store_failure: OnStoreFailure,
    /// The maximum number of keys in the local fallback while the store fails.
    pub max_local_keys: usize,
}

pub struct Limiter {
    policy: Policy,
    source: Arc<Source<Handles>>,
    store: Arc<dyn Store>,
    over_limit: Option<Arc<OverLimitCache>>,
    overrides: Arc<Index>,
    stats: Arc<Stats>,
    clock: Arc<dyn Clock>,
    /// Counts while the store fails and the policy is `local`; created on first use.
    local: OnceLock<MemoryStore>,
    /// Recent keys and decisions, if they are recorded.
    recent: Option<Arc<Recent>>,
    store_failures_log: LogThrottle,
    bad_requests_log: LogThrottle,
}

impl Limiter {
    /// A limiter without overrides that records no recent decisions.
    #[must_use]
    pub fn new(
        policy: Policy,
        source: Arc<Source<Handles>>,
        store: Arc<dyn Store>,
        over_limit: Option<Arc<OverLimitCache>>,
        stats: Arc<Stats>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            policy,
            source,
            store,
            over_limit,
            overrides: Arc::default(),
            stats,
            clock,
            local: OnceLock::new(),
            recent: None,
            store_failures_log: LogThrottle::new(10),
            bad_requests_log: LogThrottle::new(1),
        }
    }

    /// The same limiter, which records recent keys and decisions.
    #[must_use]
    pub fn with_recent(self, recent: Arc<Recent>) -> Self {
        Self { recent: Some(recent), ..self }
    }

    /// The same limiter with these overrides of the rules.
    #[must_use]
    pub fn with_overrides(self, overrides: Arc<Index>) -> Self {
        Self { overrides, ..self }
    }

    /// Called once on each worker thread, within its runtime, before its first request.
    pub fn start_worker(&self) {
        self.store.start_worker();
    }

    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.policy.bounds
    }

    /// True if [`decide_sync`](Self::decide_sync) may decide.
    pub fn may_decide_sync(&self) -> bool {
        self.store.is_synchronous() || self.store.may_answer_now() || self.over_limit.is_some()
    }

    /// Checks that a request is complete and within the size limits.
    ///
    /// # Errors
    /// When it is not; the error is counted.
    pub fn check(&self, request: &Request<'_>) -> Result<(), RequestError> {
        self.policy.bounds.check(request).inspect_err(|error| self.failed(request, error))
    }

    /// The current time, for [`decide_sync`](Self::decide_sync).
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Decides a request, or returns `None` if it has to wait for the store. Requests that are read together share one
    /// reading of the clock.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    #[must_use]
    pub fn decide_sync(&self, request: &Request<'_>, now: Time) -> Option<Result<Answer, RequestError>> {
        if !self.may_decide_sync() {
            return None;
        }
        let served = self.source.load();
        if !self.store.is_synchronous() {
            return self.attempt(request, served.as_deref()?, now).map(Ok);
        }
        let decided = self.try_decide(request, served.as_deref(), now, None, None).now_or_never()?;
        Some(decided.inspect_err(|error| self.failed(request, error)))
    }

    /// Decides a request if the over-limit cache and the store can answer at once. Otherwise nothing is counted.
    fn attempt(&self, request: &Request<'_>, served: &Served, now: Time) -> Option<Answer> {
        self.policy.bounds.check(request).ok()?;
        let domain = served.rules.domain(request.domain)?;
        if request.descriptors.iter().any(|descriptor| descriptor.limit.is_some()) {
            return None;
        }
        let replacements =
            replacement::of(request, Some(domain), (&self.overrides, self.policy.counting), now).ok()?;
        let mut batch = self.batch();
        let attempt = Attempt { needs_leases: self.over_limit.is_none(), is_given_up: Cell::new(false) };
        let context = self.plan_context(now, Some(&attempt));
        let mut plan = plan::plan(request, Some(domain), &replacements, served, &mut batch, &context);
        if attempt.is_given_up.get() {
            return None;
        }
        let lookups = self.skip_known(&mut plan, &mut batch, now);
        if !batch.checks().is_empty() && !self.store.apply_now(&mut batch, now) {
            return None;
        }
        self.count_lookups(lookups);
        self.remember_over(&batch, now);
        plan::count_hits(&plan);
        Some(self.answer(request, served, Some(domain), (&plan, &batch), None, now))
    }

    /// Decides a request, and fills in the trace. After `until` the caller no longer waits for the answer.
    ///
    /// The future contains the plan and is large: box it before moving it.
    ///
    /// # Errors
    /// When the request is invalid, no rules are loaded, or the store fails. Each error is counted.
    pub async fn decide(
        &self,
        request: &Request<'_>,
        until: Option<Instant>,
        trace: Option<&mut DecisionTrace>,
    ) -> Result<Answer, RequestError> {
        let served = self.source.current();
        let decided = self.try_decide(request, served.as_deref(), self.now(), until, trace).await;
        decided.inspect_err(|error| self.failed(request, error))
    }

    /// Counts an error, and logs at most one a second. Store failures are logged elsewhere.
    fn failed(&self, request: &Request<'_>, error: &RequestError) {
        error.count(&self.stats);
        if matches!(error, RequestError::Store(_)) {
            return;
        }
        if let Some(suppressed) = self.bad_requests_log.admit(self.clock.now()) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            // A caller may send a domain of megabytes.
            let domain: String = request.domain.chars().take(MAX_LOGGED_CHARACTERS).collect();
            warn!(domain, suppressed, "request rejected: {error}");
        }
    }

    async fn try_decide(
        &self,
        request: &Request<'_>,
        served: Option<&Served>,
        now: Time,
        until: Option<Instant>,
        mut trace: Option<&mut DecisionTrace>,
    ) -> Result<Answer, RequestError> {
        self.policy.bounds.check(request)?;
        let served = served.ok_or(RequestError::NoRules)?;
        let domain = served.rules.domain(request.domain);
        let stats = domain.and_then(|domain| served.attached.domains.get(domain.index));
        let failed = |_: &_| stats.into_iter().for_each(|stats| stats.count(ResponseCode::Error));
        let counting = self.policy.counting;
        let replacements =
            replacement::of(request, domain, (&self.overrides, counting), now).inspect_err(failed)?;
        let mut batch = self.batch();
        batch.until = until;
        let mut plan =
            plan::plan(request, domain, &replacements, served, &mut batch, &self.plan_context(now, None));
        let Some(domain) = domain else {
            plan.iter().for_each(|_| self.stats.domain_not_found(request.domain, now));
            return Ok(self.answer(request, served, None, (&plan, &batch), None, now));
        };
        if let Some(trace) = &mut trace {
            trace.set_rules(request, domain, &plan);
        }
        let lookups = self.skip_known(&mut plan, &mut batch, now);
        self.count_lookups(lookups);
        let checks = batch.checks().len();
        let applied = if checks == 0 {
            Ok(())
        } else {
            decision_trace::wait(trace.as_deref_mut(), self.store.apply(&mut batch, now), checks).await
        };
        let failure = match applied {
            Ok(()) => {
                self.remember_over(&batch, now);
                None
            }
            Err(error) => {
                Some(self.without_store(error, domain, &mut plan, &mut batch, now).inspect_err(failed)?)
            }
        };
        if let (Some(failure), Some(trace)) = (failure, trace) {
            trace.failure = Some(failure.names());
        }
        Ok(self.answer(request, served, Some(domain), (&plan, &batch), failure, now))
    }

    /// The answer to a request whose outcomes are known, or were replaced by a failure policy.
    fn answer<'r>(
        &self,
        request: &Request<'_>,
        served: &Served,
        domain: Option<&Domain>,
        (plan, batch): (&Plan<'r>, &Batch),
        failure: Option<FailureDecision>,
        now: Time,
    ) -> Answer {
        let mut conclusion = conclude::conclude(request, plan, batch, &self.policy, &self.stats, now);
        conclusion.is_without_store = failure.is_some();
        if let (Some(recent), Some(_)) = (&self.recent, domain) {
            observe::observe(recent, served, &conclusion, now);
        }
        let mut answer = response::answer(conclusion);
        if let (Some(failure), Some(metadata)) = (failure, &mut answer.dynamic_metadata) {
            failure.add_to(metadata);
        }
        match domain.map(|domain| served.attached.domains.get(domain.index)) {
            Some(stats) => stats.into_iter().for_each(|stats| stats.count(answer.code.into())),
            None => self.stats.unknown_domain().count(answer.code.into()),
        }
        answer
    }

    fn batch<'r>(&self) -> Batch {
        let mut batch = Batch::default();
        if self.policy.stop_when_over {
            batch.counting = Counting::StopWhenOver;
        }
        batch
    }

    fn plan_context<'a>(&'a self, now: Time, attempt: Option<&'a Attempt>) -> plan::Context<'a> {
        plan::Context { policy: &self.policy, stats: &self.stats, now, attempt }
    }

    /// Stores the keys of a counted batch that are over their limits.
    fn remember_over(&self, batch: &Batch, now: Time) {
        let Some(cache) = &self.over_limit else { return };
        for check in batch.checks().iter().filter(|check| check.is_over()) {
            cache.insert(batch.full_key(check), check, now);
        }
    }

    fn count_lookups(&self, lookups: Lookups) {
        if let Some(cache) = self.over_limit.as_ref().filter(|_| lookups.all > 0) {
            cache.count(lookups);
        }
    }

    /// Removes checks from the batch whose counters are known to be over the limit. The limits of one rule are checked
    /// together or not at all.
    fn skip_known(&self, plan: &mut Plan<'_>, batch: &mut Batch, now: Time) -> Lookups {
        let Some(cache) = &self.over_limit else { return Lookups::default() };
        let lookup = |check: &Check| cache.get(batch.full_key(check), &check.limit, check.hits, now);
        let known: SmallVec<[Option<Verdict>; 4]> = batch.checks().iter().map(lookup).collect();
        let lookups = Lookups {
            all: batch.checks().iter().filter(|check| check.takes()).count(),
            found: known.iter().flatten().count(),
        };
        if lookups.found == 0 {
            return lookups;
        }
        let mut skipped: SmallVec<[bool; 4]> = known.iter().map(Option::is_some).collect();
        if batch.has_groups() {
            for group in batch.groups() {
                let group = skipped.get_mut(group).unwrap_or_default();
                let any = group.contains(&true);
                group.fill(any);
            }
        }
        batch.retain(|index| skipped.get(index) != Some(&true));
        let mut indexes = 0..;
        let limits = plan.iter_mut().flat_map(|planned| match planned {
            Planned::Limited(limited) => limited.limits.as_mut_slice(),
            _ => &mut [],
        });
        let limits = limits.filter(|check| matches!(check.source, CounterSource::Store(_)));
        // Each of these limits has one check, in this order.
        for (check, (verdict, skipped)) in limits.zip(known.into_iter().zip(skipped)) {
            check.source = match verdict {
                Some(verdict) => CounterSource::KnownOver(verdict),
                None if skipped => CounterSource::Assumed { over: false },
                None => CounterSource::Store(indexes.next().unwrap_or_default()),
            };
        }
        if self.policy.stop_when_over {
            batch.counting = Counting::ReadOnly;
        }
        lookups
    }
}
