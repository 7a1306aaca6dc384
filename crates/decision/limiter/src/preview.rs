//! The counters that a request would be checked against, and the response when they are over their limits. For
//! `tollgate explain`.
//!
//! The functions that plan and conclude requests do the work, so the preview cannot differ from the service.

use super::{
    Policy, Served,
    answer::Answer,
    conclude,
    matches::Matches,
    plan::{self, LimitCheck, Plan, Planned, PlannedRequest, Scope},
    request::{Request, RequestError},
    response,
};
use clock::Time;
use counters::{Batch, Decider};
use limit::{Limit, Limits};
use metrics::{Stats, StatsOptions};
use overrides::{Found, Index};
use rules::Rule;

#[derive(PartialEq, Debug)]
pub struct Preview {
    /// For each descriptor, and each limit of its rule in the order of the file, the key of the counter; `None` for a limit
    /// that the rule of another descriptor replaces.
    pub counters: Vec<Vec<Option<String>>>,
    /// For each descriptor the override that applies, with the limits in place of the rule's.
    pub overrides: Vec<Option<(Found, OverrideLimits)>>,
    pub switch: Option<Found>,
    /// The response when every limit is exceeded.
    pub over_limit: Answer,
}

/// The limits under an override that changes some, each with the key of its counter; empty under another.
pub type OverrideLimits = Vec<(Limit, String)>;

/// Previews a request. Nothing is counted.
pub fn preview(
    request: &Request<'_>,
    served: &Served,
    overrides: &Index,
    policy: &Policy,
    now: Time,
) -> Result<Preview, RequestError> {
    policy.bounds.check(request)?;
    let stats = Stats::new(StatsOptions::default());
    let domain = served.rules.domain(request.domain);
    let context = plan::Context { stats: &stats, closes: true, names: true, hold_account: None };
    let scope = Scope { served, policy, now, ask: request.ask };
    let mut planned = PlannedRequest { plan: Plan::new(), batch: Batch::default() };
    let matches = Matches::of(request, domain, overrides, policy, &mut String::new(), now)?;
    plan::plan(request, &matches, scope, &mut planned, &context);
    let PlannedRequest { plan, batch } = &planned;
    let counters = plan.iter().map(|planned| counters(scope, planned, batch)).collect();
    let overrides = plan.iter().map(|planned| overridden(scope, planned, batch)).collect();
    planned.batch.decide_open(Decider::Store, |check| check.limit.algorithm.assumed(true, check.hits, now));
    let conclusion = conclude::conclude(&request, scope, &planned, &stats);
    let over_limit = response::answer(conclusion);
    Ok(Preview { counters, overrides, switch: matches.switch, over_limit })
}

fn counters(scope: Scope<'_>, planned: &Planned, batch: &Batch) -> Vec<Option<String>> {
    let limited = match planned {
        Planned::NoLimit
        | Planned::Exempt
        | Planned::Closes
        | Planned::Unlimited(_)
        | Planned::Allowed(..) => return Vec::new(),
        Planned::Replaced(_) => None,
        Planned::Limited(limited) => Some(limited),
    };
    let limits = scope.rule_of(planned).and_then(Rule::limits).into_iter().flat_map(Limits::iter);
    let of_limit = |limit: &Limit| {
        let limited = limited?;
        let is_its = |check: &&LimitCheck| std::ptr::eq(scope.limit(limited, check), limit);
        key(limited.limits.iter().find(is_its)?, batch)
    };
    limits.map(of_limit).collect()
}

/// The override of a descriptor, and its limits with the counters' keys.
fn overridden(scope: Scope<'_>, planned: &Planned, batch: &Batch) -> Option<(Found, OverrideLimits)> {
    match planned {
        Planned::Allowed(_, found) => Some((found.clone(), Vec::new())),
        Planned::Limited(limited) => {
            let found = limited.overridden.clone()?;
            let checks = limited.limits.iter().filter(|_| found.action.changes_limits());
            let limits =
                checks.filter_map(|check| Some((scope.limit(limited, check).clone(), key(check, batch)?)));
            let limits = limits.collect();
            Some((found, limits))
        }
        _ => None,
    }
}

/// The key of a limit's counter in shared stores.
fn key(check: &LimitCheck, batch: &Batch) -> Option<String> {
    Some(batch.key(batch.check(check.check?)).to_owned())
}
