//! The counters of a descriptor: read without counting, and reset. For the admin API.
//!
//! The functions that plan a request find the counters, so they are those that a request is checked against, with every
//! algorithm and store.

use std::sync::Arc;

use super::{
    Limiter, Served,
    matches::{Matches, limits_under},
    outcome::outcome,
    plan::{self, LimitCheck, Plan, Planned, PlannedRequest},
    request::{Request, RequestError},
};
use clock::Time;
use counters::{Batch, Close, Counting, HoldId, OpenHold, Resets};
use limit::{InForce, Limit, Limits};
use metrics::{Stats, StatsOptions};
use overrides::{Action, Found};
use rules::Rule;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counters {
    /// The full key of the rule that the descriptor matches.
    pub rule: Option<Arc<str>>,
    /// The override that applies. The counters are those of the rule even if it blocks or exempts the descriptor.
    pub overridden: Option<Found>,
    /// Its limits; empty if it has none.
    pub limits: Vec<CounterState>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct CounterState {
    pub limit: Limit,
    pub schedule: Option<Arc<InForce>>,
    /// Hits that were counted and still matter.
    pub used: u64,
    /// What is held, of a limit that holds; `used` is what is spent.
    pub held: Option<u64>,
    pub remaining: u64,
    /// Seconds until the full limit is available.
    pub resets_in: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ListedHold {
    pub limit: Limit,
    pub open: OpenHold,
}

/// A request whose hits are 0, planned as those that count are.
struct Reading {
    served: Arc<Served>,
    overridden: Vec<Option<Found>>,
    planned: PlannedRequest,
    now: Time,
}

impl Limiter {
    fn reading(&self, request: &Request<'_>) -> Result<Reading, RequestError> {
        let request = &without_hits(request);
        let now = self.now();
        let stats = Stats::new(StatsOptions::default());
        let served = self.source.current().ok_or(RequestError::NoRules)?;
        self.policy.bounds.check(request)?;
        let mut planned = PlannedRequest { plan: Plan::new(), batch: Batch::default() };
        let domain = served.rules.domain(request.domain);
        let scratch = &mut String::new();
        let mut matches = Matches::of(request, domain, &self.overrides, &self.policy, scratch, now)?;
        let mut overridden = without_exemptions(&mut matches);
        overridden.resize(request.descriptors.len(), None);
        let hold_account = Some(&self.holds.account);
        let context = plan::Context { stats: &stats, closes: false, names: true, hold_account };
        plan::plan(request, &matches, self.scope(&served, now), &mut planned, &context);
        drop(matches);
        Ok(Reading { served, overridden, planned, now })
    }

    /// Reads the counters of a request's descriptors, without counting.
    #[expect(clippy::expect_used, reason = "overrides without counters are not planned here")]
    pub async fn counters(&self, request: &Request<'_>) -> Result<Vec<Counters>, RequestError> {
        let Reading { served, overridden, planned, now } = self.reading(request)?;
        let PlannedRequest { plan, mut batch } = planned;
        let scope = self.scope(&served, now);
        batch.counting = Counting::ReadOnly;
        if !batch.checks().is_empty() {
            self.store.apply(&mut batch, now).await.map_err(RequestError::Store)?;
        }
        let states = |planned: &Planned| match planned {
            Planned::Limited(limited) => {
                let state = |check: &LimitCheck| {
                    let one = outcome(scope, limited, check, &batch);
                    CounterState {
                        limit: one.limit.clone(),
                        schedule: one.written.scheduled(now),
                        used: one.used().expect("a limit that no override replaces has a counter"),
                        held: one.held().map(|held| held.held),
                        remaining: one.verdict.remaining,
                        resets_in: one.seconds_until_reset(),
                    }
                };
                limited.limits.iter().map(state).collect()
            }
            _ => Vec::new(),
        };
        let counters = plan.iter().zip(overridden).map(|(planned, overridden)| {
            let rule = scope.rule_of(planned).map(|rule| rule.full_key.clone());
            Counters { rule, overridden, limits: states(planned) }
        });
        Ok(counters.collect())
    }

    /// The open holds of the limits of a request's descriptors, at most `most` of each.
    pub async fn holds(&self, request: &Request<'_>, most: usize) -> Result<Vec<ListedHold>, RequestError> {
        let Reading { served, planned: PlannedRequest { plan, batch }, now, .. } = self.reading(request)?;
        let scope = self.scope(&served, now);
        let open = self.store.list_holds(&batch, most, now).await.map_err(RequestError::Store)?;
        let limit_of = |index: usize| {
            let limited = plan.iter().filter_map(Planned::limited);
            let mut checks =
                limited.flat_map(|limited| limited.limits.iter().map(move |check| (limited, check)));
            let found = checks.find(|(_, check)| check.check == Some(index));
            found.map(|(limited, check)| scope.limit(limited, check).at(now).clone())
        };
        Ok(open
            .into_iter()
            .filter_map(|open| Some(ListedHold { limit: limit_of(open.check)?, open }))
            .collect())
    }

    /// Settles or ends the holds of a request, and returns how many.
    pub async fn close_hold(
        &self,
        id: HoldId,
        close: Close,
        currency: Option<Box<str>>,
    ) -> Result<usize, RequestError> {
        let mut closing = self.holds.queue.closing(id, close, currency);
        self.store.close_holds(&mut closing, self.now()).await.map_err(RequestError::Store)?;
        Ok(closing.account.closed())
    }

    /// Resets the counters of a request's descriptors to unused ones, here and in the store. Returns their full keys, by
    /// which other replicas identify them.
    pub async fn reset_counters(&self, request: &Request<'_>) -> Result<Vec<String>, RequestError> {
        let Reading { planned: PlannedRequest { mut batch, .. }, now, .. } = self.reading(request)?;
        self.store.reset(&mut batch, now).await.map_err(RequestError::Store)?;
        if let Some(local) = self.local.get() {
            local.remove(&mut batch, now);
        }
        let keys: Vec<String> = batch.checks().iter().map(|check| batch.full_key(check).to_owned()).collect();
        self.forget(&Resets::Of(keys.clone()));
        Ok(keys)
    }

    /// The limits that an override gives the descriptors of a rule; `None` for those of the rule.
    pub fn limits_under(&self, found: &Found, rule: Option<&Rule>, now: Time) -> Option<Limits> {
        limits_under(found, rule, self.policy.calendar_months, now)
    }

    /// Forgets the state in this process of counters that were reset, here or by another replica.
    pub fn forget(&self, resets: &Resets) {
        self.store.forget(resets);
        self.forget_rejections(resets);
    }

    /// Forgets that counters were over their limits, after refunds by other replicas. Leased hits stay taken.
    pub fn forget_rejections(&self, refunds: &Resets) {
        self.store.read_again(refunds);
        if let Some(cache) = &self.over_limit {
            cache.forget(refunds, self.now());
        }
    }
}

/// Removes overrides without counters and the switch, so that the rules' counters are found. Returns what overrides each
/// descriptor.
fn without_exemptions(matches: &mut Matches<'_>) -> Vec<Option<Found>> {
    let switch = matches.switch.take();
    let overridden = matches.all.iter_mut().map(|matched| {
        let found = matched.overridden().cloned();
        let action = found.as_ref().map(|found| found.action);
        if matches!(action, Some(Action::Block | Action::Allow)) {
            matched.replacement = None;
        }
        switch.clone().filter(|_| action != Some(Action::Block)).or(found)
    });
    overridden.collect()
}

/// The same request with 0 hits, which reads.
fn without_hits<'m>(request: &Request<'m>) -> Request<'m> {
    let mut request = request.clone();
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(0);
        descriptor.is_negative_hits = false;
    }
    request
}
