//! From the outcomes of a request's checks to the status of each descriptor and the overall code.
//!
//! Called once the store has set the outcomes; `response` makes the answer from the [`Conclusion`]. The rules'
//! statistics are counted here.

use super::{
    Policy,
    answer::{Code, CurrentLimit, Status},
    outcome::{LimitOutcome, governing},
    plan::{CounterSource, Limited, Planned},
    request::Request,
};
use crate::{
    clock::Time,
    store::Batch,
    telemetry::metrics::{RuleCounter, Stats},
};

/// The statuses and the overall code of a request, and everything that its answer is made from.
pub(super) struct Conclusion<'a, 'r, 'm> {
    pub(super) request: &'a Request<'m>,
    pub(super) plan: &'a [Planned<'r>],
    pub(super) batch: &'a Batch<'r>,
    /// The store failed, so that a policy decided.
    pub(super) is_without_store: bool,
    pub(super) policy: &'a Policy,
    now: Time,
    pub(super) code: Code,
    pub(super) statuses: Vec<Status>,
    /// The descriptor closest to its limit; one that is over its limit takes precedence.
    pub(super) closest: Option<usize>,
    /// If the request is rejected: the descriptor with the longest wait.
    pub(super) governs: Option<usize>,
}

/// Concludes a request whose checks have their outcomes.
pub(super) fn conclude<'a, 'r, 'm>(
    request: &'a Request<'m>,
    plan: &'a [Planned<'r>],
    batch: &'a Batch<'r>,
    policy: &'a Policy,
    stats: &Stats,
    now: Time,
) -> Conclusion<'a, 'r, 'm> {
    let mut tally = Tally::default();
    let mut statuses = Vec::with_capacity(plan.len());
    for (index, planned) in plan.iter().enumerate() {
        let quota_mode = (policy.quota_mode && !planned.is_blocked()) || planned.is_quota();
        let status = match planned {
            Planned::Unlimited(_) | Planned::Allowed(..) => {
                statuses.push(Status::UNLIMITED);
                continue;
            }
            Planned::NoLimit | Planned::Replaced(_) => Status::NO_LIMIT,
            Planned::Limited(limited) => match governing(limited, batch, policy.near_limit_ratio, now) {
                Some(outcome) => {
                    count(limited, &outcome);
                    let status = status_of(limited, &outcome);
                    tally.add_wait(index, &status, &outcome, quota_mode);
                    status
                }
                None => Status::NO_LIMIT,
            },
        };
        tally.add(index, &status, quota_mode);
        statuses.push(status);
    }
    let mut code = tally.code();
    if code == Code::OverLimit && policy.shadow_mode {
        code = Code::Ok;
        stats.service().global_shadow_mode.increment();
    }
    let governs = tally.governs().filter(|_| code == Code::OverLimit);
    let closest = tally.closest;
    let is_without_store = false;
    Conclusion { request, plan, batch, is_without_store, policy, now, code, statuses, closest, governs }
}

impl<'a, 'r> Conclusion<'a, 'r, '_> {
    /// The limits of a descriptor, if it has any.
    pub(super) fn limited(&self, index: usize) -> Option<&'a Limited<'r>> {
        match self.plan.get(index) {
            Some(Planned::Limited(limited)) => Some(limited),
            _ => None,
        }
    }

    /// The outcome of the limit that governs a descriptor. It is computed again, so that answers without headers,
    /// body and metadata need not keep it.
    pub(super) fn outcome(&self, index: usize) -> Option<LimitOutcome<'r>> {
        governing(self.limited(index)?, self.batch, self.policy.near_limit_ratio, self.now)
    }

    /// Seconds until a rejected request would pass; `None` if it never would, or if it passes.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.outcome(self.governs?)?.retry_after()
    }
}

/// The descriptors' statuses combined.
#[derive(Default)]
struct Tally {
    /// Ordinary descriptors over their limit.
    over: usize,
    quotas: usize,
    quotas_over: usize,
    /// The descriptor closest to its limit, and its remaining hits; one that is over takes precedence.
    closest: Option<usize>,
    least_remaining: Option<u32>,
    /// The ordinary descriptor with the longest wait, and that wait.
    last_free: Option<(usize, u64)>,
    /// The exhausted quota with the shortest wait, and that wait.
    first_quota: Option<(usize, u64)>,
}

impl Tally {
    fn add(&mut self, index: usize, status: &Status, quota_mode: bool) {
        let remaining = status.limit_remaining;
        if status.current_limit.is_some() && remaining < self.least_remaining.unwrap_or(u32::MAX) {
            (self.closest, self.least_remaining) = (Some(index), Some(remaining));
        }
        self.quotas = self.quotas.saturating_add(usize::from(quota_mode));
        match status.code {
            Code::OverLimit if quota_mode => self.quotas_over = self.quotas_over.saturating_add(1),
            Code::OverLimit => {
                self.over = self.over.saturating_add(1);
                (self.closest, self.least_remaining) = (Some(index), Some(0));
            }
            Code::Ok => {}
        }
    }

    fn add_wait(&mut self, index: usize, status: &Status, outcome: &LimitOutcome<'_>, quota_mode: bool) {
        if status.code == Code::Ok {
            return;
        }
        let wait = outcome.wait();
        if quota_mode && self.first_quota.is_none_or(|(_, first)| wait < first) {
            self.first_quota = Some((index, wait));
        }
        if !quota_mode && self.last_free.is_none_or(|(_, last)| wait > last) {
            self.last_free = Some((index, wait));
        }
    }

    fn code(&self) -> Code {
        if self.over > 0 || self.is_every_quota_exhausted() { Code::OverLimit } else { Code::Ok }
    }

    fn is_every_quota_exhausted(&self) -> bool {
        self.quotas > 0 && self.quotas == self.quotas_over
    }

    /// The descriptor that a rejected request has to wait for: for every ordinary one that is over, and for the
    /// first of its quotas if all are exhausted.
    fn governs(&self) -> Option<usize> {
        let quota = self.first_quota.filter(|_| self.is_every_quota_exhausted());
        let governing = match (self.last_free, quota) {
            (Some(ordinary), Some(quota)) if quota.1 > ordinary.1 => Some(quota),
            (Some(ordinary), _) => Some(ordinary),
            (None, quota) => quota,
        };
        governing.map(|(index, _)| index)
    }
}

fn status_of(limited: &Limited<'_>, outcome: &LimitOutcome<'_>) -> Status {
    Status {
        code: if outcome.decision.over && !limited.is_shadow() { Code::OverLimit } else { Code::Ok },
        current_limit: Some(CurrentLimit::new(outcome.limit, outcome.seconds_until_reset())),
        limit_remaining: outcome.verdict.remaining,
    }
}

fn count(limited: &Limited<'_>, outcome: &LimitOutcome<'_>) {
    let (stats, decision) = (&limited.stats, outcome.decision);
    for (counter, hits) in [
        (RuleCounter::OverLimit, decision.over_hits),
        (RuleCounter::NearLimit, decision.near_hits),
        (RuleCounter::WithinLimit, decision.within_hits),
    ] {
        if hits > 0 {
            stats.add(counter, hits);
        }
    }
    if matches!(outcome.source, CounterSource::KnownOver(_)) {
        stats.add(RuleCounter::OverLimitWithLocalCache, decision.over_hits);
    }
    if decision.over && limited.is_shadow() {
        stats.add(RuleCounter::ShadowMode, decision.over_hits);
    }
}
