//! The decision: a [`Request`] comes in, the rules say which counters it asks, the store counts, and an
//! [`Answer`] goes out.
//!
//! `plan` and `conclude` are plain functions; the one await of a decision stands between them, at
//! the store. Nothing here knows gRPC, HTTP or where rules come from.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod algorithm;
pub(crate) mod response;
pub mod template;

mod answer;
mod body;
mod conclude;
mod counter_key;
mod decision;
mod decision_trace;
mod failure;
mod governing;
mod headers;
mod metadata;
mod over_limit_cache;
mod plan;
mod preview;
mod request;
mod request_error;
#[cfg(test)]
mod tests;

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Instant,
};

pub use crate::limiter::response::{MetadataDetail, ResponseOptions};
pub use answer::{Answer, Code, CurrentLimit, Header, Status};
pub use decision::{Decision, Thresholds, decide};
pub use headers::HeaderNames;
pub use over_limit_cache::{CacheUsage, OverLimitCache};
pub use preview::{Preview, preview};
pub use request::{Descriptor, Entry, LimitOverride, Request};
pub use request_error::{Bounds, RequestError};

pub use decision_trace::{DecisionTrace, Wait};
use smallvec::SmallVec;
use tracing::warn;

use crate::{
    clock::{Clock, Time},
    limiter::algorithm::Verdict,
    log_throttle::LogThrottle,
    rules::{OnStoreFailure, RuleSet},
    rules_source::{Published, Source},
    store::{Batch, Check, Counting, Store, memory::MemoryStore},
    telemetry::metrics::{DomainStats, ResponseCode, RuleStats, Stats},
};
use plan::{CounterSource, Plan, Planned};

/// The rules in service, and the statistics of each.
pub type Served = Published<Handles>;

/// The statistics of a set of rules, published with it.
#[derive(Debug, Default)]
pub struct Handles {
    /// Those of each rule, by its [`RuleId`](crate::rules::RuleId).
    rules: Vec<Arc<RuleStats>>,
    /// Those of each domain, by its index.
    domains: Vec<Arc<DomainStats>>,
}

/// The statistics of every rule and domain of a set.
#[must_use]
pub fn handles(rules: &RuleSet, stats: &Stats) -> Handles {
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
    }
}

/// How much of a caller's domain a log line shows.
const MAX_LOGGED_CHARACTERS: usize = 200;

/// How requests are decided; set at start.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    /// What may be asked in one request.
    pub bounds: Bounds,
    /// `NEAR_LIMIT_RATIO`.
    pub near_limit_ratio: f32,
    /// `CACHE_KEY_PREFIX`.
    pub key_prefix: String,
    /// `COUNTER_KEY_FORMAT=unambiguous`: keys in stores that others share are full keys, which the Go service does
    /// not know.
    pub full_keys: bool,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub stop_when_over: bool,
    /// `SHADOW_MODE`: every request passes.
    pub shadow_mode: bool,
    /// `QUOTA_MODE`: every limit is a quota.
    pub quota_mode: bool,
    /// What answers say beyond the decision.
    pub telling: ResponseOptions,
    /// `STORE_FAILURE_POLICY`: what becomes of a request whose counters are lost, where its domain says
    /// nothing else.
    pub on_store_failure: OnStoreFailure,
    /// How many keys this process holds at once where it counts in place of a lost store.
    pub max_local_keys: usize,
}

/// Decides requests.
pub struct Limiter {
    policy: Policy,
    source: Arc<Source<Handles>>,
    store: Arc<dyn Store>,
    over_limit: Option<Arc<OverLimitCache>>,
    stats: Arc<Stats>,
    clock: Arc<dyn Clock>,
    /// Counts while the store is lost, where policy says so; made when that happens first.
    local: OnceLock<MemoryStore>,
    store_failures_log: LogThrottle,
    bad_requests_log: LogThrottle,
}

impl Limiter {
    /// A limiter of these parts.
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
            stats,
            clock,
            local: OnceLock::new(),
            store_failures_log: LogThrottle::new(10),
            bad_requests_log: LogThrottle::new(1),
        }
    }

    /// Called once on each thread that asks, within its runtime, before the first request.
    pub fn attend(&self) {
        self.store.attend();
    }

    /// What one request may hold.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.policy.bounds
    }

    /// True where the store answers without waiting, so that [`decide_at_once`](Self::decide_at_once) decides.
    #[must_use]
    pub fn answers_at_once(&self) -> bool {
        self.store.answers_at_once()
    }

    /// Whether the request has what every request has and stays within the bounds.
    ///
    /// # Errors
    /// When it does not; that is counted.
    pub fn check(&self, request: &Request<'_>) -> Result<(), RequestError> {
        self.policy.bounds.check(request).inspect_err(|error| self.failed(request, error))
    }

    /// The present moment, for [`decide_at_once`](Self::decide_at_once).
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// May this request pass? Requests that came together share one look at the clock. `None` where the store does
    /// not answer at once: [`decide`](Self::decide) waits for it.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    #[must_use]
    pub fn decide_at_once(&self, request: &Request<'_>, now: Time) -> Option<Result<Answer, RequestError>> {
        if !self.answers_at_once() {
            return None;
        }
        let served = self.source.load();
        let decided = at_once(self.try_decide(request, served.as_deref(), now, None, None));
        decided.map(|decided| self.counted(request, decided))
    }

    /// May this request pass? After `until` nobody waits for the answer any more.
    ///
    /// The plan makes the future large: put it on the heap before it is moved about.
    ///
    /// # Errors
    /// When the request makes no sense, no rules are loaded, or the counters cannot be reached. Each is
    /// counted.
    pub async fn decide(
        &self,
        request: &Request<'_>,
        until: Option<Instant>,
    ) -> Result<Answer, RequestError> {
        let served = self.source.current();
        self.counted(request, self.try_decide(request, served.as_deref(), self.now(), until, None).await)
    }

    /// As [`decide`](Self::decide), and notes the way.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    pub async fn decide_traced(
        &self,
        request: &Request<'_>,
        until: Option<Instant>,
        trail: &mut DecisionTrace,
    ) -> Result<Answer, RequestError> {
        let served = self.source.current();
        self.counted(
            request,
            self.try_decide(request, served.as_deref(), self.now(), until, Some(trail)).await,
        )
    }

    fn counted(
        &self,
        request: &Request<'_>,
        decided: Result<Answer, RequestError>,
    ) -> Result<Answer, RequestError> {
        decided.inspect_err(|error| self.failed(request, error))
    }

    /// Counts an error. Logs it too, at most one a second, unless the store is at fault, which has a log of its own.
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
        mut trail: Option<&mut DecisionTrace>,
    ) -> Result<Answer, RequestError> {
        self.policy.bounds.check(request)?;
        let served = served.ok_or(RequestError::NoRules)?;
        let Some(domain) = served.rules.domain(request.domain) else {
            return Ok(self.unknown_domain(request, now));
        };
        let stats = served.attached.domains.get(domain.index).map(|stats| &**stats);
        let failed = |_: &_| stats.into_iter().for_each(|stats| stats.count(ResponseCode::Error));
        let brought = plan::brought(request).inspect_err(failed)?;
        let mut batch = Batch::with_space(String::with_capacity(128));
        batch.until = until;
        batch.counting = if self.policy.stop_when_over { Counting::StopWhenOver } else { Counting::Always };
        let context = plan::Context { policy: &self.policy, stats: &self.stats, now };
        let mut plan = plan::plan(request, domain, &brought, served, &mut batch, &context);
        if let Some(trail) = &mut trail {
            trail.note_rules(request, domain, &plan);
        }
        if let Some(cache) = &self.over_limit {
            self.leave_out_known(cache, &mut plan, &mut batch, now);
        }
        let checks = batch.checks().len();
        let asked = if checks == 0 {
            Ok(())
        } else {
            decision_trace::waited(trail.as_deref_mut(), self.store.apply(&mut batch, now), checks).await
        };
        let lost = match asked {
            Ok(()) => {
                if let Some(cache) = &self.over_limit {
                    remember(cache, &batch, now);
                }
                None
            }
            Err(error) => {
                Some(self.without_store(error, domain, &mut plan, &mut batch, now).inspect_err(failed)?)
            }
        };
        if let (Some(lost), Some(trail)) = (lost, trail) {
            trail.note_loss(lost);
        }
        let mut answer = conclude::conclude(request, &plan, &batch, &self.policy, &self.stats, now);
        if let (Some(lost), Some(metadata)) = (lost, &mut answer.dynamic_metadata) {
            lost.tell(metadata);
        }
        if let Some(stats) = stats {
            stats.count(answer.code.into());
        }
        Ok(answer)
    }

    fn unknown_domain(&self, request: &Request<'_>, now: Time) -> Answer {
        let plan: Plan<'_> = request.descriptors.iter().map(|_| Planned::NoLimit).collect();
        for _ in &plan {
            self.stats.domain_not_found(request.domain, now);
        }
        let answer = conclude::conclude(request, &plan, &Batch::default(), &self.policy, &self.stats, now);
        self.stats.unknown_domain().count(answer.code.into());
        answer
    }

    /// Takes the checks out of the batch whose counters are known to be over. The limits of one rule are asked
    /// together or not at all.
    fn leave_out_known(&self, cache: &OverLimitCache, plan: &mut Plan<'_>, batch: &mut Batch<'_>, now: Time) {
        let recall = |check: &Check<'_>| cache.recall(batch.full_key(check), check.limit, check.hits, now);
        let known: SmallVec<[Option<Verdict>; 4]> = batch.checks().iter().map(recall).collect();
        if known.iter().all(Option::is_none) {
            return;
        }
        let mut left_out: SmallVec<[bool; 4]> = known.iter().map(Option::is_some).collect();
        if batch.has_groups() {
            for group in batch.groups() {
                let group = left_out.get_mut(group).unwrap_or_default();
                group.fill(group.contains(&true));
            }
        }
        batch.retain(|place| left_out.get(place) == Some(&false));
        let mut places = 0..;
        let limits = plan.iter_mut().flat_map(|planned| match planned {
            Planned::Limited(limited) => limited.limits.as_mut_slice(),
            _ => &mut [],
        });
        // Each limit has asked one check, in this order.
        for (held, (verdict, left_out)) in limits.zip(known.into_iter().zip(left_out)) {
            held.asked = match verdict {
                Some(verdict) => CounterSource::KnownOver(verdict),
                None if left_out => CounterSource::Nobody { over: false },
                None => CounterSource::Store(places.next().unwrap_or(usize::MAX)),
            };
        }
        if self.policy.stop_when_over {
            batch.counting = Counting::Look;
        }
    }
}

/// What a future gives that waits for nothing.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn remember(cache: &OverLimitCache, batch: &Batch<'_>, now: Time) {
    for check in batch.checks().iter().filter(|check| check.is_over()) {
        cache.remember(batch.full_key(check), check, now);
    }
}
