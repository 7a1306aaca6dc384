//! From the counters' outcomes to the answer and the statistics.

use std::sync::Arc;

use super::{
    Policy,
    answer::{Answer, Code, CurrentLimit, Header, Status},
    governing::{Ruling, governing},
    metadata,
    plan::{Asked, Limited, Planned},
    request::Request,
};
use crate::{
    clock::Time,
    stats::{RuleCounter, Stats},
    store::Batch,
};

/// Concludes a request whose checks have their outcomes.
pub(super) fn conclude(
    request: &Request,
    plan: &[Planned<'_>],
    batch: &Batch<'_>,
    policy: &Policy,
    stats: &Stats,
    now: Time,
) -> Answer {
    let mut tally = Tally::default();
    let mut statuses = Vec::with_capacity(plan.len());
    for (at, planned) in plan.iter().enumerate() {
        let (status, quota_mode) = match planned {
            Planned::Unlimited => {
                statuses.push(Status::UNLIMITED);
                continue;
            }
            Planned::NoLimit => (Status::NO_LIMIT, false),
            Planned::Limited(limited) => (status_of(limited, batch, policy, now), limited.quota_mode),
        };
        tally.add(at, &status, quota_mode || policy.quota_mode);
        statuses.push(status);
    }
    let mut code = tally.code();
    if code == Code::OverLimit && policy.shadow_mode {
        code = Code::Ok;
        stats.service().global_shadow_mode.increment();
    }
    let response_headers = match (&policy.headers, tally.closest) {
        (Some(names), Some(at)) => headers(names, &statuses[at]),
        _ => Vec::new(),
    };
    let dynamic_metadata = policy.dynamic_metadata.then(|| metadata::of(request, plan, &statuses));
    Answer { code, statuses, response_headers, dynamic_metadata }
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
}

impl Tally {
    fn add(&mut self, at: usize, status: &Status, quota_mode: bool) {
        let left = status.limit_remaining;
        if status.current_limit.is_some() && left < self.least_remaining.unwrap_or(u32::MAX) {
            (self.closest, self.least_remaining) = (Some(at), Some(left));
        }
        self.quotas += usize::from(quota_mode);
        match status.code {
            Code::OverLimit if quota_mode => self.quotas_over += 1,
            Code::OverLimit => {
                self.over += 1;
                (self.closest, self.least_remaining) = (Some(at), Some(0));
            }
            Code::Ok => {}
        }
    }

    fn code(&self) -> Code {
        let every_quota_spent = self.quotas > 0 && self.quotas == self.quotas_over;
        if self.over > 0 || every_quota_spent { Code::OverLimit } else { Code::Ok }
    }
}

fn status_of(limited: &Limited<'_>, batch: &Batch<'_>, policy: &Policy, now: Time) -> Status {
    let Some(ruling) = governing(limited, batch, policy.near_limit_ratio, now) else {
        return Status::NO_LIMIT;
    };
    count(limited, &ruling);
    Status {
        code: if ruling.decision.over && !limited.shadow_mode { Code::OverLimit } else { Code::Ok },
        current_limit: Some(CurrentLimit::new(ruling.limit, ruling.seconds_until_reset())),
        limit_remaining: ruling.verdict.remaining,
    }
}

fn count(limited: &Limited<'_>, ruling: &Ruling<'_>) {
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
    if matches!(ruling.asked, Asked::KnownOver(_)) {
        stats.add(RuleCounter::OverLimitWithLocalCache, decision.over_hits);
    }
    if decision.over && limited.shadow_mode {
        stats.add(RuleCounter::ShadowMode, decision.over_hits);
    }
}

/// The names of the three headers, and which of them to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderNames {
    /// For the limit.
    pub limit: Arc<str>,
    /// For what is left of it.
    pub remaining: Arc<str>,
    /// For the seconds until its window ends.
    pub reset: Arc<str>,
}

fn headers(names: &HeaderNames, status: &Status) -> Vec<Header> {
    let Some(limit) = &status.current_limit else { return Vec::new() };
    let header = |name: &Arc<str>, value: u64| Header { name: name.clone(), value: value.to_string() };
    vec![
        header(&names.limit, u64::from(limit.requests_per_unit)),
        header(&names.remaining, u64::from(status.limit_remaining)),
        header(&names.reset, limit.seconds_until_reset),
    ]
}
