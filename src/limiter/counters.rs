//! The counters of a descriptor: read without counting, and reset.
//!
//! The admin API uses it. The functions that plan a request find the counters, so that they are those that a request
//! is checked against, with every algorithm and store.

use super::{
    Limiter, Served,
    outcome::outcome,
    plan::{self, CounterSource, Plan, Planned},
    replacement::{self, By, Replacements},
    request::{Request, RequestError},
};
use crate::{
    clock::Time,
    limiter::algorithm::Hits,
    overrides::{Action, Found},
    rules::Limit,
    store::{Batch, Counting, Outcome, Resets},
    telemetry::metrics::{Stats, StatsOptions},
};

/// The counters of a descriptor.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counters {
    /// The full key of the rule that the descriptor matches.
    pub rule: Option<Box<str>>,
    /// The override that applies. The counters of a rule that it blocks or lifts are shown all the same.
    pub steered: Option<Found>,
    /// Its limits; none if nothing limits it.
    pub limits: Vec<CounterState>,
}

/// The state of a limit's counter.
#[derive(Clone, PartialEq, Debug)]
pub struct CounterState {
    /// The limit.
    pub limit: Limit,
    /// Hits that count now.
    pub used: u64,
    /// Hits left.
    pub remaining: u32,
    /// Seconds until the full limit is available.
    pub resets_in: u64,
}

impl Limiter {
    /// Reads the counters of a request's descriptors, without counting.
    ///
    /// # Errors
    /// When the request is invalid, no rules are loaded, or the store fails.
    pub async fn counters(&self, request: &Request<'_>) -> Result<Vec<Counters>, RequestError> {
        let request = &without_hits(request);
        let (now, stats) = (self.now(), Stats::new(StatsOptions::default()));
        let served = self.source.current().ok_or(RequestError::NoRules)?;
        let (replacements, steered) = self.replacements(request, &served, now)?;
        let mut batch = Batch::default();
        let plan = self.plan_counters(request, &served, &replacements, &stats, &mut batch, now);
        batch.counting = Counting::ReadOnly;
        if !batch.checks().is_empty() {
            self.store.apply(&mut batch, now).done().await.map_err(RequestError::Store)?;
        }
        let states = |planned: &Planned<'_>| match planned {
            Planned::Limited(limited) => {
                let outcomes = limited.limits.iter().map(|check| {
                    let ratio = self.policy.near_limit_ratio;
                    (check.source, outcome(check, Hits::Take(0), &batch, ratio, now))
                });
                let state = |(source, one): (CounterSource, super::outcome::LimitOutcome<'_>)| CounterState {
                    limit: one.limit.clone(),
                    used: used(source, &batch, one.limit, one.verdict.remaining),
                    remaining: one.verdict.remaining,
                    resets_in: one.seconds_until_reset(),
                };
                outcomes.map(state).collect()
            }
            _ => Vec::new(),
        };
        let counters = plan.iter().zip(steered).map(|(planned, steered)| Counters {
            rule: planned.rule().map(|rule| rule.full_key.clone()),
            steered,
            limits: states(planned),
        });
        Ok(counters.collect())
    }

    /// Resets the counters of a request's descriptors, as if they had never been used, here and in the store. Returns
    /// their full keys, by which other replicas know them.
    ///
    /// # Errors
    /// As [`counters`](Self::counters).
    pub async fn reset_counters(&self, request: &Request<'_>) -> Result<Vec<String>, RequestError> {
        let request = &without_hits(request);
        let (now, stats) = (self.now(), Stats::new(StatsOptions::default()));
        let served = self.source.current().ok_or(RequestError::NoRules)?;
        let (replacements, _) = self.replacements(request, &served, now)?;
        let mut batch = Batch::default();
        let _plan = self.plan_counters(request, &served, &replacements, &stats, &mut batch, now);
        self.store.reset(&mut batch, now).done().await.map_err(RequestError::Store)?;
        if let Some(local) = self.local.get() {
            // The memory store is synchronous and never fails.
            drop(crate::store::Store::reset(local, &mut batch, now));
        }
        let keys: Vec<String> = batch.checks().iter().map(|check| batch.full_key(check).to_owned()).collect();
        let resets = Resets::Of(keys);
        self.forget(&resets);
        let Resets::Of(keys) = resets else { return Ok(Vec::new()) };
        Ok(keys)
    }

    /// Forgets what this process knows of counters that were reset, here or by another replica.
    pub fn forget(&self, resets: &Resets) {
        self.store.forget(resets);
        if let Some(cache) = &self.over_limit {
            cache.forget(resets, self.now());
        }
    }

    /// What replaces the rules' limits, and the override of each descriptor. Overrides without counters are left out of
    /// the replacements, so that the rule's counters are found.
    fn replacements(
        &self,
        request: &Request<'_>,
        served: &Served,
        now: Time,
    ) -> Result<(Replacements, Vec<Option<Found>>), RequestError> {
        self.policy.bounds.check(request)?;
        let domain = served.rules.domain(request.domain);
        let found = domain
            .map(|domain| replacement::of(request, domain, (&self.overrides, self.policy.counting), now))
            .transpose()?;
        let mut found = found.unwrap_or_default();
        found.resize_with(request.descriptors.len(), || None);
        let operators = |one: &Option<replacement::Replacement>| match one.as_ref()?.by {
            By::Operator(found) => Some(found),
            By::Request => None,
        };
        let steered: Vec<Option<Found>> = found.iter().map(operators).collect();
        for (one, steered) in found.iter_mut().zip(&steered) {
            if matches!(steered.map(|found| found.action), Some(Action::Block | Action::Allow)) {
                *one = None;
            }
        }
        Ok((found, steered))
    }

    fn plan_counters<'r>(
        &self,
        request: &'r Request<'_>,
        served: &'r Served,
        replacements: &'r Replacements,
        stats: &Stats,
        batch: &mut Batch<'r>,
        now: Time,
    ) -> Plan<'r> {
        let context = plan::Context { policy: &self.policy, stats, now, attempt: None };
        match served.rules.domain(request.domain) {
            Some(domain) => plan::plan(request, domain, replacements, served, batch, &context),
            None => request.descriptors.iter().map(|_| Planned::NoLimit).collect(),
        }
    }
}

/// The same request with 0 hits, which only read.
fn without_hits<'m>(request: &Request<'m>) -> Request<'m> {
    let mut request = request.clone();
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(0);
        descriptor.is_negative_hits = false;
    }
    request
}

/// The hits that count now. A fixed window counts those beyond its limit too.
fn used(source: CounterSource, batch: &Batch<'_>, limit: &Limit, remaining: u32) -> u64 {
    let check = match source {
        CounterSource::Store(index) => batch.checks().get(index),
        _ => None,
    };
    match check.map(|check| check.outcome) {
        Some(Outcome::Counted(count) | Outcome::NotCounted(count)) => count,
        _ => limit.algorithm.capacity().saturating_sub(remaining).into(),
    }
}
