//! From the outcomes of a request's checks to the status of each descriptor and the overall code.
//!
//! Called once the store has set the outcomes; `response` makes the answer from the [`Conclusion`]. The rules'
//! statistics are counted here.

use std::ops::Deref;

use super::{
    answer::{Code, CurrentLimit, Status},
    outcome::{LimitOutcome, governing, outcome},
    plan::{Limited, Planned, PlannedRequest, Scope},
    request::Request,
};
use counters::Decider;
use limit::{Over, Refusal};
use metrics::{RuleCounter, Stats};
use recent::HitOutcome;

/// The statuses and the overall code of a request, and all that its answer is made from. It is moved by a few
/// instructions while it has at most 128 bytes.
pub(super) struct Conclusion<'a, 'm> {
    /// A request that has waited is made from its texts on first use.
    pub(super) request: &'a dyn Deref<Target = Request<'m>>,
    pub(super) scope: Scope<'a>,
    pub(super) planned: &'a PlannedRequest,
    pub(super) code: Code,
    /// Shadow mode allowed hits over a limit.
    pub(super) has_shadowed: bool,
    pub(super) statuses: Vec<Status>,
    /// The descriptor closest to its limit; one that is over its limit takes precedence.
    pub(super) closest: Option<usize>,
    /// If the request is rejected: the descriptor with the longest wait.
    pub(super) governs: Option<usize>,
}

pub(super) fn conclude<'a, 'm>(
    request: &'a dyn Deref<Target = Request<'m>>,
    scope: Scope<'a>,
    planned: &'a PlannedRequest,
    stats: &Stats,
) -> Conclusion<'a, 'm> {
    let PlannedRequest { plan, batch } = planned;
    let policy = scope.policy;
    let mut refusal = Refusal::default();
    let mut closest = Closest::default();
    let mut has_shadowed = false;
    let mut statuses = Vec::with_capacity(plan.len());
    for (index, planned) in plan.iter().enumerate() {
        let mut wait = 0;
        let status = match planned {
            Planned::Unlimited(_) | Planned::Allowed(..) => {
                statuses.push(Status::UNLIMITED);
                continue;
            }
            Planned::NoLimit | Planned::Exempt | Planned::Closes | Planned::Replaced(_) => Status::NO_LIMIT,
            Planned::Limited(limited) => match governing(scope, limited, batch) {
                Some(outcome) => {
                    has_shadowed |= count(scope, limited, &outcome);
                    wait = outcome.wait();
                    status_of(scope, limited, &outcome)
                }
                None => Status::NO_LIMIT,
            },
        };
        let is_over = status.code == Code::OverLimit;
        refusal.add_over(
            scope.fit(request, index, planned),
            is_over.then_some(Over { descriptor: index, wait }),
        );
        closest.add(index, &status);
        if is_over && !scope.is_quota(planned) {
            closest.0 = Some((index, 0));
        }
        statuses.push(status);
    }
    let mut governs = refusal.governs().map(|over| over.descriptor);
    if governs.is_some() && policy.shadow_mode {
        governs = None;
        has_shadowed = true;
        stats.service().global_shadow_mode.increment();
    }
    let code = if governs.is_some() { Code::OverLimit } else { Code::Ok };
    let closest = closest.0.map(|(index, _)| index);
    Conclusion { request, scope, planned, code, has_shadowed, statuses, closest, governs }
}

impl<'a> Conclusion<'a, '_> {
    #[expect(clippy::indexing_slicing, reason = "each descriptor has a plan")]
    pub(super) fn planned(&self, index: usize) -> &'a Planned {
        &self.planned.plan[index]
    }

    pub(super) fn limited(&self, index: usize) -> Option<&'a Limited> {
        self.planned(index).limited()
    }

    /// What became of the hits of a descriptor.
    pub(super) fn hit_outcome(&self, index: usize, status: &Status) -> HitOutcome {
        let is_shadowed = || {
            let is_shadow = self.limited(index).is_some_and(|limited| limited.is_shadow);
            is_shadow && self.outcome(index).is_some_and(|outcome| outcome.decision.over)
        };
        match status.code {
            Code::OverLimit if self.scope.policy.shadow_mode => HitOutcome::Shadowed,
            Code::OverLimit => HitOutcome::Refused,
            Code::Ok if self.has_shadowed && is_shadowed() => HitOutcome::Shadowed,
            Code::Ok => HitOutcome::Allowed,
        }
    }

    /// The outcome of the limit that governs a descriptor. It is computed again, because answers without headers, body and
    /// metadata do not need it.
    pub(super) fn outcome(&self, index: usize) -> Option<LimitOutcome<'a>> {
        governing(self.scope, self.limited(index)?, &self.planned.batch)
    }

    /// Seconds until the same request would pass, if it counts as this one did and no other comes before it; `None` if it
    /// never would, or if it passes. What a rejected request adds to other limits may use them up.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.governs?;
        let mut refusal = Refusal::default();
        for (index, planned) in self.planned.plan.iter().enumerate() {
            if matches!(planned, Planned::Unlimited(_) | Planned::Allowed(..)) {
                continue;
            }
            let wait = self.wait_again(index);
            let over = (wait > 0).then_some(Over { descriptor: index, wait });
            refusal.add_over(self.scope.fit(self.request, index, planned), over);
        }
        let wait = refusal.governs().map(|over| over.wait);
        wait.filter(|wait| *wait < u64::MAX).map(|wait| wait.div_ceil(1_000_000))
    }

    /// Microseconds until a descriptor would not reject the same request; the maximum if it always would.
    fn wait_again(&self, index: usize) -> u64 {
        let Some(limited) = self.limited(index).filter(|limited| !limited.is_shadow) else {
            return 0;
        };
        let waits = limited
            .limits
            .iter()
            .map(|check| outcome(self.scope, limited, check, &self.planned.batch).wait_again(limited.hits));
        waits.max().unwrap_or_default()
    }
}

/// The descriptor closest to its limit, with its remaining hits.
#[derive(Default)]
struct Closest(Option<(usize, u64)>);

impl Closest {
    fn add(&mut self, index: usize, status: &Status) {
        let remaining = status.limit_remaining;
        // The Go service begins with this number as the least, so an unused limit of as many hits has no headers.
        let is_unused =
            |limit: &CurrentLimit| limit.requests_per_unit == remaining && remaining == u64::from(u32::MAX);
        let limit = status.current_limit.as_ref().filter(|limit| !is_unused(limit));
        if limit.is_some() && self.0.is_none_or(|(_, least)| remaining < least) {
            self.0 = Some((index, remaining));
        }
    }
}

fn status_of(scope: Scope<'_>, limited: &Limited, outcome: &LimitOutcome<'_>) -> Status {
    Status {
        code: if outcome.decision.over && scope.refuses(limited) { Code::OverLimit } else { Code::Ok },
        current_limit: Some(CurrentLimit {
            requests_per_unit: outcome.limit.requests_per_unit,
            unit: outcome.limit.unit,
            multiplier: outcome.limit.multiplier,
            calendar: outcome.limit.calendar,
            schedule: outcome.written.scheduled(scope.now),
            name: outcome.limit.name.clone(),
            seconds_until_reset: outcome.seconds_until_reset(),
        }),
        limit_remaining: outcome.verdict.remaining,
    }
}

/// Counts in the statistics of the rule. True if shadow mode allows hits over the limit.
fn count(scope: Scope<'_>, limited: &Limited, outcome: &LimitOutcome<'_>) -> bool {
    let stats = scope.stats(limited);
    let decision = outcome.decision;
    if !scope.ask.counts() && decision.over_hits > 0 {
        // The others are reported later.
        stats.add(RuleCounter::TotalHits, decision.over_hits);
    }
    for (counter, hits) in [
        (RuleCounter::OverLimit, decision.over_hits),
        (RuleCounter::NearLimit, decision.near_hits),
        (RuleCounter::WithinLimit, decision.within_hits),
    ] {
        if hits > 0 {
            stats.add(counter, hits);
        }
    }
    if outcome.decider() == Some(Decider::OverLimitCache) {
        stats.add(RuleCounter::OverLimitWithLocalCache, decision.over_hits);
    }
    let is_shadowed = decision.over && limited.is_shadow;
    if is_shadowed {
        stats.add(RuleCounter::ShadowMode, decision.over_hits);
    }
    is_shadowed
}
