//! The two steps of a decision. [`Limiter::try_decide`] plans a request and decides it at once if no check has to wait for
//! the store; otherwise [`Waiting`] waits, with the same plan and batch.

use std::{cell::LazyCell, ops::Deref, sync::Arc, time::Instant};

use smallvec::SmallVec;
use tracing::warn;

use super::{
    Limiter, Served,
    answer::Answer,
    conclude,
    decision_trace::{self, DecisionTrace},
    failure::FailureDecision,
    holds::{self, Closings, HoldToken},
    matches::Matches,
    observe,
    observer::{Holding, Observed},
    over_limit_cache::{Lookups, OverLimitCache},
    plan::{self, Plan, Planned, PlannedRequest, Scope},
    request::{Ask, OwnedRequest, Request, RequestError},
    response,
    waiting::{Concluded, Waiting},
};
use clock::Time;
use counters::{Applied, Batch, Check, Counting, Decider, Lowered, StoreError};
use faults::OnStoreFailure;
use limit::{Fit, Hits, Verdict};
use metrics::{DomainStats, ResponseCode};
use rules::model::Domain;

/// How often a report takes what is left of a limit: others may take a part of it in between.
const MOST_DRAINS: usize = 3;

/// The characters of a caller's domain in a log line.
const MAX_LOGGED_CHARACTERS: usize = 200;

pub enum Decided {
    Answer(Answer),
    /// The store has to be waited for.
    Wait(Waiting),
}

/// A request that waits for the store: first to settle and end holds, then for its decision, then to end what it reports.
/// What is large lies behind a pointer, because it is handed through several futures.
struct Pending {
    closings: Option<Box<Closings>>,
    /// What a report ends, once it is counted: until then both are in the way of others.
    ends: Option<Box<Closings>>,
    /// `None` if it does nothing else.
    waiting: Option<Box<WaitingRequest>>,
    descriptors: usize,
}

/// A planned request that waits. It owns all that the rest of its decision needs.
struct WaitingRequest {
    request: OwnedRequest,
    served: Arc<Served>,
    /// The index of its domain.
    domain: usize,
    planned: PlannedRequest,
    /// The time of the whole decision.
    now: Time,
    /// The identity of what it may hold.
    token: Option<Box<HoldToken>>,
}

impl Limiter {
    /// Plans a request, and decides it if no check has to wait for the store, which it does until its caller gives up.
    /// Requests that are read together share one reading of the clock.
    ///
    /// # Errors
    /// When the request is invalid, or no rules are loaded. Each error is counted.
    pub fn try_decide(
        self: &Arc<Self>,
        request: &Request<'_>,
        now: Time,
        until: Option<Instant>,
        trace: Option<&mut DecisionTrace>,
    ) -> Result<Decided, RequestError> {
        self.plan_and_try(request, now, until, trace).inspect_err(|error| self.failed(request, error))
    }

    fn wait(self: &Arc<Self>, pending: Pending, until: Option<Instant>, is_traced: bool) -> Decided {
        let limiter = self.clone();
        let decision = async move {
            let mut trace = is_traced.then(Box::<DecisionTrace>::default);
            let decided = limiter.finish(pending, until, trace.as_deref_mut()).await;
            Concluded { decided, trace }
        };
        Decided::Wait(Waiting::new(self.clone(), decision))
    }

    /// Waits for the store, and concludes the decision.
    async fn finish(
        &self,
        pending: Pending,
        until: Option<Instant>,
        mut trace: Option<&mut DecisionTrace>,
    ) -> Result<Answer, RequestError> {
        let Pending { closings, ends, waiting, descriptors } = pending;
        if let Some(closings) = closings {
            self.close(closings).await;
        }
        let Some(mut waiting) = waiting else { return Ok(Answer::closing(descriptors)) };
        let WaitingRequest { request, planned: PlannedRequest { batch, .. }, now, .. } = &mut *waiting;
        batch.until = until;
        let checks = batch.checks().len();
        let mut applied = Ok(());
        if !batch.is_decided() {
            let counted = self.store.apply(batch, *now);
            applied = decision_trace::wait(trace.as_deref_mut(), counted, checks).await;
        }
        if request.ask == Ask::Report && applied.is_ok() {
            applied = self.take_what_is_left(batch, *now).await;
        }
        let mut answer = self.conclude(&mut waiting, applied, trace)?;
        if let Some(ends) = ends {
            answer.released = self.release(ends).await;
        }
        Ok(answer)
    }

    /// All algorithms but the fixed window refuse hits that do not fit, so of a report they count what is left.
    async fn take_what_is_left(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        for _ in 0..MOST_DRAINS {
            let left = batch.not_exhausted();
            if left.is_empty() {
                break;
            }
            for (index, check) in &left {
                batch.plan_again(*index, Hits::Take(check.verdict.remaining));
            }
            self.store.apply(batch, now).await?;
            for (index, refused) in left {
                let found = batch.check(index).verdict;
                let remaining = if found.consumed { 0 } else { found.remaining };
                // The statistics are those of the whole.
                batch.plan_again(index, refused.hits);
                let verdict = Verdict { remaining, reset: found.reset, ..refused.verdict };
                batch.decide(index, Decider::Transient, verdict);
            }
        }
        Ok(())
    }

    fn plan_and_try(
        self: &Arc<Self>,
        request: &Request<'_>,
        now: Time,
        until: Option<Instant>,
        trace: Option<&mut DecisionTrace>,
    ) -> Result<Decided, RequestError> {
        self.policy.bounds.check(request)?;
        let is_traced = trace.is_some();
        let ask = request.ask;
        let ends = Closings::of_report(request, &self.holds.queue, &self.stats).map(Box::new);
        let closings = Closings::of(request, &self.holds.queue, &self.stats);
        let closes = closings.is_some();
        let closings = closings.and_then(|closings| self.try_close(closings)).map(Box::new);
        if closes && request.descriptors.iter().all(holds::closes) {
            if let Some(trace) = trace {
                trace.rules = vec![None; request.descriptors.len()];
            }
            return Ok(self.only_close(request, closings, ends, now, until, is_traced));
        }
        let served = self.source.load();
        let served = served.as_ref().ok_or(RequestError::NoRules)?;
        if let Some(cache) = &self.over_limit {
            cache.follow(served.attached.number);
        }
        let domain = served.rules.domain(request.domain);
        let scope = Scope { ask, ..self.scope(served, now) };
        let descriptors = request.descriptors.len();
        // Filled in place: it is large to move.
        let mut planned =
            PlannedRequest { plan: Plan::with_capacity(descriptors), batch: self.batch(descriptors, ask) };
        let scratch = planned.batch.keys();
        let matches = Matches::of(request, domain, &self.overrides, &self.policy, scratch, now);
        let matches = matches.inspect_err(|_| self.count_error(served, domain))?;
        let hold_account = Some(&self.holds.account);
        let context = plan::Context { stats: &self.stats, closes, names: self.names, hold_account };
        plan::plan(request, &matches, scope, &mut planned, &context);
        plan::count_hits(&planned.plan, scope);
        if let Some(trace) = trace {
            let rules = planned.plan.iter().map(|planned| scope.rule_of(planned));
            trace.rules = rules.map(|rule| rule.map(|rule| rule.full_key.clone())).collect();
        }
        let Some(domain) = domain else {
            // Without limits to wait for, what is left to close goes to the queue.
            drop(closings);
            return Ok(Decided::Answer(self.answer_unknown_domain(request, scope, &planned)));
        };
        let PlannedRequest { plan, batch } = &mut planned;
        if ask != Ask::Report {
            self.decide_known(batch, now);
        }
        if let Ask::Reserve { .. } = ask {
            decide_oversized(batch, now);
        }
        if self.is_refused(plan, ask) {
            decide_blocked(batch, now);
        }
        batch.lowered = self.lowered_by(batch);
        let token = self.hold_token(batch).map_err(RequestError::Store)?;
        let id = token.as_ref().map(|token| token.id());
        self.show(request, if batch.may_hold() { Holding::As(id) } else { Holding::Nothing }, now);
        let is_applied = batch.is_decided() || self.store.try_apply(batch, now) == Applied::Done;
        let is_applied =
            is_applied && ends.is_none() && (ask != Ask::Report || batch.not_exhausted().is_empty());
        let domain = domain.index;
        if !is_applied {
            let waiting = WaitingRequest {
                request: OwnedRequest::new(request),
                served: Arc::clone(served),
                domain,
                planned,
                now,
                token,
            };
            let pending = Pending { closings, ends, waiting: Some(Box::new(waiting)), descriptors };
            return Ok(self.wait(pending, until, is_traced));
        }
        self.remember_over(batch, now);
        let mut answer = self.answer(&request, scope, Some(domain), &planned, None);
        if planned.batch.may_hold() {
            self.give_hold(&mut answer, token, &planned.batch);
        }
        Ok(Decided::Answer(answer))
    }

    /// Answers a request whose descriptors do nothing but settle and end holds.
    fn only_close(
        self: &Arc<Self>,
        request: &Request<'_>,
        closings: Option<Box<Closings>>,
        ends: Option<Box<Closings>>,
        now: Time,
        until: Option<Instant>,
        is_traced: bool,
    ) -> Decided {
        self.show(request, Holding::Nothing, now);
        self.count_closing(request.domain);
        let descriptors = request.descriptors.len();
        if closings.is_none() {
            return Decided::Answer(Answer::closing(descriptors));
        }
        self.wait(Pending { closings, ends, waiting: None, descriptors }, until, is_traced)
    }

    pub(super) fn scope<'a>(&'a self, served: &'a Served, now: Time) -> Scope<'a> {
        Scope { served, policy: &self.policy, now, ask: Ask::Decide }
    }

    fn batch(&self, descriptors: usize, ask: Ask) -> Batch {
        let mut batch = Batch::with_room(descriptors);
        batch.counting = match ask {
            Ask::Decide if self.policy.stop_when_over => Counting::StopWhenOver,
            Ask::Decide | Ask::Report => Counting::Always,
            Ask::Look | Ask::Reserve { .. } => Counting::ReadOnly,
        };
        batch
    }

    fn answer_unknown_domain(
        &self,
        request: &Request<'_>,
        scope: Scope<'_>,
        planned: &PlannedRequest,
    ) -> Answer {
        self.show(request, Holding::Nothing, scope.now);
        planned.plan.iter().for_each(|_| self.stats.domain_not_found(request.domain, scope.now));
        self.answer(&request, scope, None, planned, None)
    }

    fn show(&self, request: &Request<'_>, holding: Holding<'_>, now: Time) {
        // Replays decide what they read, so they are not shown what only looks or reports.
        if request.ask == Ask::Decide {
            self.observers.iter().for_each(|observer| observer.requested(request, holding, now));
        }
    }

    /// Concludes a decision whose outcomes are set, or follows the failure policy.
    fn conclude(
        &self,
        waiting: &mut WaitingRequest,
        applied: Result<(), StoreError>,
        trace: Option<&mut DecisionTrace>,
    ) -> Result<Answer, RequestError> {
        let WaitingRequest { request, served, domain, planned, now, token } = waiting;
        let PlannedRequest { plan, batch } = planned;
        let ask = request.ask;
        let request = LazyCell::new(|| request.borrowed());
        self.remember_over(batch, *now);
        let failure = match applied {
            Ok(()) => {
                assert!(batch.is_decided(), "a store without an error has decided every check");
                None
            }
            Err(error) => {
                if batch.may_hold() {
                    *token = self.hold_token_here(batch, token.take());
                }
                let known = served.rules.domain(request.domain);
                let mut policy = self.failure_policy(request.domain, known, *now);
                if self.is_refused(plan, ask) {
                    policy = OnStoreFailure::Allow;
                } else {
                    policy = self.unless_unknown(policy, *now);
                    self.domain_stats(served, Some(*domain)).count_without_store(policy);
                }
                let decision = self.without_store(error, policy, batch, *now);
                Some(decision.inspect_err(|error| {
                    self.count_error(served, known);
                    self.failed(&request, error);
                })?)
            }
        };
        if let (Some(failure), Some(trace)) = (failure, trace) {
            trace.failure = Some(failure.names());
        }
        let scope = Scope { ask, ..self.scope(served, *now) };
        let mut answer = self.answer(&request, scope, Some(*domain), planned, failure);
        if planned.batch.may_hold() {
            self.give_hold(&mut answer, token.take(), &planned.batch);
        }
        Ok(answer)
    }

    /// The statistics of a domain, by its index, or of all that the rules do not have.
    fn domain_stats<'s>(&'s self, served: &'s Served, domain: Option<usize>) -> &'s DomainStats {
        let known = domain.and_then(|domain| served.attached.domains.get(domain));
        known.map_or(self.stats.unknown_domain(), |stats| stats)
    }

    fn count_closing(&self, domain: &str) {
        match &*self.source.load() {
            Some(served) => {
                let domain = served.rules.domain(domain).map(|domain| domain.index);
                self.domain_stats(served, domain).count(ResponseCode::Ok, 0, 0);
            }
            None => self.stats.unknown_domain().count(ResponseCode::Ok, 0, 0),
        }
    }

    fn count_error(&self, served: &Served, domain: Option<&Domain>) {
        let domain = domain.map(|domain| domain.index);
        self.domain_stats(served, domain).count(ResponseCode::Error, 0, 0);
    }

    /// Counts an error, and logs at most one a second. Store failures are logged elsewhere.
    pub(super) fn failed(&self, request: &Request<'_>, error: &RequestError) {
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

    /// The answer to a request whose outcomes are known, or were replaced by a failure policy. `domain` is the index of its
    /// domain, if there is one.
    fn answer(
        &self,
        request: &dyn Deref<Target = Request<'_>>,
        scope: Scope<'_>,
        domain: Option<usize>,
        planned: &PlannedRequest,
        failure: Option<FailureDecision>,
    ) -> Answer {
        let conclusion = conclude::conclude(request, scope, planned, &self.stats);
        match (&self.recent, domain) {
            (Some(recent), Some(_)) => observe::observe(recent, &self.overrides, &conclusion),
            (Some(recent), None) if scope.ask.counts() => {
                observe::observe_unknown_domain(recent, request, scope.now);
            }
            _ => {}
        }
        if domain.is_some() && scope.ask == Ask::Decide {
            self.observers.iter().for_each(|observer| observer.decided(&Observed(&conclusion)));
        }
        let unmatched = planned.plan.iter().filter(|planned| matches!(planned, Planned::NoLimit)).count();
        let descriptors = planned.plan.len();
        let mut answer = response::answer(conclusion);
        if let (Some(failure), Some(metadata)) = (failure, &mut answer.dynamic_metadata) {
            failure.add_to(metadata);
        }
        self.domain_stats(scope.served, domain).count(answer.code.into(), descriptors, unmatched);
        answer
    }

    /// True if an override refuses the request, whatever its counters.
    fn is_refused(&self, plan: &Plan, ask: Ask) -> bool {
        let is_blocked = || plan.iter().filter_map(Planned::limited).any(plan::Limited::is_blocked);
        !self.policy.shadow_mode && ask != Ask::Report && is_blocked()
    }

    /// Stores the keys that the store has found over their limits.
    pub(super) fn remember_over(&self, batch: &Batch, now: Time) {
        let Some(cache) = &self.over_limit else { return };
        for group in batch.groups() {
            let over = || batch.checks_at(group.clone()).iter().filter(|check| check.is_over());
            // All limits of a rule that reject are known, or none.
            let is_known = |check: &Check| {
                check.decider() == Some(Decider::Store) && OverLimitCache::can_know(check, now)
            };
            if over().all(is_known) {
                over().for_each(|check| cache.insert(check, now));
            }
        }
    }

    /// Invalidates caches once this batch has given hits back; `None` if it cannot, or nobody caches.
    pub(super) fn lowered_by(&self, batch: &Batch) -> Option<Lowered> {
        if !self.effects.are_cached() {
            return None;
        }
        let refunds = || batch.checks().iter().filter(|check| check.gives_back());
        // Stores that cannot check the limits of a list in one step give hits back too.
        let may_give_back = refunds().next().is_some() || batch.has_groups() && self.names;
        may_give_back.then(|| {
            let lowered = Lowered::new(self.effects.clone());
            refunds().for_each(|check| lowered.add(check.id, batch.full_key(check)));
            lowered
        })
    }

    /// Decides the checks whose counters are known to be over the limit. The limits of one rule are checked together or not
    /// at all.
    fn decide_known(&self, batch: &mut Batch, now: Time) {
        let Some(cache) = &self.over_limit else { return };
        let mut lookups = Lookups::default();
        let mut next = 0;
        while let Some(group) = batch.group_at(next) {
            next = group.end;
            let checks = batch.checks_at(group.clone());
            lookups.all += checks.iter().filter(|check| check.takes()).count();
            // What one limit of a rule never admits, the rule rejects for longer than another limit says.
            if checks.len() > 1 && checks.iter().any(Check::never_fits) {
                continue;
            }
            // A read and a shadow's hold need the counter.
            let is_decided = |check: &Check| match &check.hold {
                Some(hold) => hold.estimate.is_some() && check.fit != Fit::Always,
                None => true,
            };
            let lookup = |check: &Check| cache.get(check, now).filter(|_| is_decided(check));
            let known = group.clone().zip(checks).filter_map(|(index, check)| Some((index, lookup(check)?)));
            let known: SmallVec<[(usize, Verdict); 1]> = known.collect();
            if known.is_empty() {
                continue;
            }
            lookups.found += known.len();
            for index in group {
                batch.decide(index, Decider::Neighbor, unused(batch.check(index), now));
            }
            for (index, verdict) in known {
                batch.decide(index, Decider::OverLimitCache, verdict);
            }
        }
        cache.count(lookups);
    }
}

/// Decides the checks of a request that an override refuses, so that it needs no store, and a blocked caller does not use up
/// the counters that it shares with others. What is given back is counted.
fn decide_blocked(batch: &mut Batch, now: Time) {
    for index in 0..batch.checks().len() {
        let check = batch.check(index);
        if check.takes() && !check.is_decided() {
            batch.decide(index, Decider::Block, unused(check, now));
        }
    }
}

/// Decides the checks that hold and never have room for what is to be reserved, because an estimate is cut to its limit.
fn decide_oversized(batch: &mut Batch, now: Time) {
    for index in batch.holding().collect::<SmallVec<[usize; 4]>>() {
        let check = batch.check(index);
        if check.hits.taken() > check.limit.requests_per_unit {
            let verdict =
                Verdict { admitted: false, consumed: false, retry_after: None, ..unused(check, now) };
            batch.decide(index, Decider::Transient, verdict);
        }
    }
}

/// The verdict of a check that is not counted.
fn unused(check: &Check, now: Time) -> Verdict {
    check.limit.algorithm.assumed(false, check.hits, now)
}
