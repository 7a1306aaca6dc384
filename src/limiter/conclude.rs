//! From the counters' outcomes to the answer and the statistics.

use super::{
    Policy,
    answer::{Answer, Code, CurrentLimit, Status},
    body,
    governing::{LimitOutcome, governing},
    headers, metadata,
    plan::{CounterSource, Limited, Planned},
    request::Request,
};
use crate::{
    clock::Time,
    store::Batch,
    telemetry::metrics::{RuleCounter, Stats},
};

/// Concludes a request whose checks have their outcomes.
pub(super) fn conclude<'r>(
    request: &Request<'_>,
    plan: &[Planned<'r>],
    batch: &Batch<'r>,
    policy: &Policy,
    stats: &Stats,
    now: Time,
) -> Answer {
    let mut tally = Tally::default();
    let mut statuses = Vec::with_capacity(plan.len());
    for (at, planned) in plan.iter().enumerate() {
        let quota_mode = policy.quota_mode || planned.is_quota();
        let status = match planned {
            Planned::Unlimited(_) => {
                statuses.push(Status::UNLIMITED);
                continue;
            }
            Planned::NoLimit | Planned::Replaced(_) => Status::NO_LIMIT,
            Planned::Limited(limited) => match governing(limited, batch, policy.near_limit_ratio, now) {
                Some(ruling) => {
                    count(limited, &ruling);
                    let status = status_of(limited, &ruling);
                    tally.add_refusal(at, &status, &ruling, quota_mode);
                    status
                }
                None => Status::NO_LIMIT,
            },
        };
        tally.add(at, &status, quota_mode);
        statuses.push(status);
    }
    let mut code = tally.code();
    if code == Code::OverLimit && policy.shadow_mode {
        code = Code::Ok;
        stats.service().global_shadow_mode.increment();
    }
    let governs = tally.governs().filter(|_| code == Code::OverLimit);
    let concluded = Concluded { request, plan, batch, policy, now, statuses, governs };
    let mut response_headers = headers::of(&concluded, tally.closest);
    let body = body::of(&concluded).map_or_else(String::new, |(body, content_type)| {
        response_headers.push(content_type);
        body
    });
    let dynamic_metadata = metadata::of(&concluded);
    Answer { code, statuses: concluded.statuses, response_headers, body, dynamic_metadata }
}

/// What a request came to: all that headers, bodies and metadata are made of.
pub(super) struct Concluded<'a, 'r, 'm> {
    pub(super) request: &'a Request<'m>,
    pub(super) plan: &'a [Planned<'r>],
    batch: &'a Batch<'r>,
    pub(super) policy: &'a Policy,
    now: Time,
    pub(super) statuses: Vec<Status>,
    /// Of a request that is refused the descriptor for which it has to wait longest.
    pub(super) governs: Option<usize>,
}

impl<'a, 'r> Concluded<'a, 'r, '_> {
    /// The limits of a descriptor, if it has any.
    pub(super) fn limited(&self, at: usize) -> Option<&'a Limited<'r>> {
        match self.plan.get(at) {
            Some(Planned::Limited(limited)) => Some(limited),
            _ => None,
        }
    }

    /// The ruling of the limit that governs a descriptor. It is made anew, so that answers which nobody
    /// wants explained need not keep any.
    pub(super) fn ruling(&self, at: usize) -> Option<LimitOutcome<'r>> {
        governing(self.limited(at)?, self.batch, self.policy.near_limit_ratio, self.now)
    }

    /// Whole seconds until a request that is refused would pass; none where it never would, or does.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.ruling(self.governs?)?.retry_after()
    }
}

/// What the descriptors say together.
#[derive(Default)]
struct Tally {
    over: usize,
    quotas: usize,
    quotas_over: usize,
    /// The descriptor closest to its limit, and what is left of it; one that is over goes before all.
    closest: Option<usize>,
    least_remaining: Option<u32>,
    /// The descriptor over its limit that frees last, and when.
    last_free: Option<(usize, u64)>,
    /// The spent quota that is given anew first, and when.
    first_quota: Option<(usize, u64)>,
}

impl Tally {
    fn add(&mut self, at: usize, status: &Status, quota_mode: bool) {
        let left = status.limit_remaining;
        if status.current_limit.is_some() && left < self.least_remaining.unwrap_or(u32::MAX) {
            (self.closest, self.least_remaining) = (Some(at), Some(left));
        }
        self.quotas = self.quotas.saturating_add(quota_mode.into());
        match status.code {
            Code::OverLimit if quota_mode => self.quotas_over = self.quotas_over.saturating_add(1),
            Code::OverLimit => {
                self.over = self.over.saturating_add(1);
                (self.closest, self.least_remaining) = (Some(at), Some(0));
            }
            Code::Ok => {}
        }
    }

    fn add_refusal(&mut self, at: usize, status: &Status, ruling: &LimitOutcome<'_>, quota_mode: bool) {
        if status.code == Code::Ok {
            return;
        }
        let wait = ruling.wait();
        if quota_mode && self.first_quota.is_none_or(|(_, first)| wait < first) {
            self.first_quota = Some((at, wait));
        }
        if !quota_mode && self.last_free.is_none_or(|(_, last)| wait > last) {
            self.last_free = Some((at, wait));
        }
    }

    fn code(&self) -> Code {
        if self.over > 0 || self.is_every_quota_spent() { Code::OverLimit } else { Code::Ok }
    }

    fn is_every_quota_spent(&self) -> bool {
        self.quotas > 0 && self.quotas == self.quotas_over
    }

    /// The descriptor for which a refused request has to wait longest: for all that are over, and for the
    /// first of its quotas where all are spent.
    fn governs(&self) -> Option<usize> {
        let quota = self.first_quota.filter(|_| self.is_every_quota_spent());
        let governing = match (self.last_free, quota) {
            (Some(ordinary), Some(quota)) if quota.1 > ordinary.1 => Some(quota),
            (Some(ordinary), _) => Some(ordinary),
            (None, quota) => quota,
        };
        governing.map(|(at, _)| at)
    }
}

fn status_of(limited: &Limited<'_>, ruling: &LimitOutcome<'_>) -> Status {
    Status {
        code: if ruling.decision.over && !limited.is_shadow() { Code::OverLimit } else { Code::Ok },
        current_limit: Some(CurrentLimit::new(ruling.limit, ruling.seconds_until_reset())),
        limit_remaining: ruling.verdict.remaining,
    }
}

fn count(limited: &Limited<'_>, ruling: &LimitOutcome<'_>) {
    let (stats, decision) = (&limited.stats, ruling.decision);
    for (counter, hits) in [
        (RuleCounter::OverLimit, decision.over_hits),
        (RuleCounter::NearLimit, decision.near_hits),
        (RuleCounter::WithinLimit, decision.within_hits),
    ] {
        if hits > 0 {
            stats.add(counter, hits);
        }
    }
    if matches!(ruling.asked, CounterSource::KnownOver(_)) {
        stats.add(RuleCounter::OverLimitWithLocalCache, decision.over_hits);
    }
    if decision.over && limited.is_shadow() {
        stats.add(RuleCounter::ShadowMode, decision.over_hits);
    }
}
