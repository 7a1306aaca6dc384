//! The counters that a request would be checked against, and the response when they are over their limits.
//!
//! `tollgate explain` uses it. The functions that plan and conclude requests do the work, so that it cannot
//! differ from what the service does.

use super::{
    Policy, Served,
    answer::Answer,
    conclude, plan,
    plan::{CounterSource, Limited, Planned},
    replacement,
    request::{Request, RequestError},
    response,
};
use crate::{
    clock::Time,
    overrides::{Action, Found, Index},
    rules::{Limit, Limits, Rule},
    store::{Batch, Outcome},
    telemetry::metrics::{Stats, StatsOptions},
};

/// What a request would be checked against.
#[derive(Clone, PartialEq, Debug)]
pub struct Preview {
    /// For each descriptor, and each limit of its rule in the order of the file, the key of the counter;
    /// none for a limit that another descriptor's rule replaces.
    pub counters: Vec<Vec<Option<String>>>,
    /// For each descriptor the override that applies, with the limit in place of the rule's and the key of its counter.
    pub overrides: Vec<Option<(Found, OverrideLimit)>>,
    /// The response when every limit is exceeded.
    pub over_limit: Answer,
}

/// The limit of an override, if it has one, and the key of its counter.
pub type OverrideLimit = Option<(Limit, String)>;

/// Previews a request. Nothing is counted.
///
/// # Errors
/// When the request is invalid.
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
    let replacements =
        domain.map(|domain| replacement::of(request, domain, (overrides, policy.counting), now));
    let replacements = replacements.transpose()?.unwrap_or_default();
    let mut batch = Batch::default();
    let context = plan::Context { policy, stats: &stats, now, attempt: None };
    let plan = match domain {
        Some(domain) => plan::plan(request, domain, &replacements, served, &mut batch, &context),
        None => request.descriptors.iter().map(|_| Planned::NoLimit).collect(),
    };
    let counters = plan.iter().map(|planned| counters(planned, &batch)).collect();
    let overrides = plan.iter().map(|planned| steered(planned, &batch)).collect();
    batch.set_all(|_, check| Outcome::Decided(check.limit.algorithm.assumed(true, check.hits, now)));
    let conclusion = conclude::conclude(request, &plan, &batch, policy, &stats, now);
    let over_limit = response::answer(conclusion);
    Ok(Preview { counters, overrides, over_limit })
}

fn counters(planned: &Planned<'_>, batch: &Batch<'_>) -> Vec<Option<String>> {
    let limits = |rule: &Rule| rule.limits().map_or(0, |limits| limits.iter().count());
    match planned {
        Planned::NoLimit | Planned::Unlimited(_) | Planned::Allowed(..) => Vec::new(),
        Planned::Replaced(rule) => vec![None; limits(rule)],
        Planned::Limited(limited) => {
            let all = limited.rule.and_then(Rule::limits).into_iter().flat_map(Limits::iter);
            all.map(|limit| counter(limit, limited, batch)).collect()
        }
    }
}

/// The override of a descriptor, and its limit with the counter's key.
fn steered(planned: &Planned<'_>, batch: &Batch<'_>) -> Option<(Found, OverrideLimit)> {
    match planned {
        Planned::Allowed(_, found) => Some((*found, None)),
        Planned::Limited(limited) => {
            let found = limited.steered?;
            let check = limited.limits.first().filter(|_| matches!(found.action, Action::Limit { .. }));
            let limit = check.and_then(|check| {
                let CounterSource::Store(index) = check.source else { return None };
                Some((check.limit.clone(), batch.key(batch.checks().get(index)?).to_owned()))
            });
            Some((found, limit))
        }
        _ => None,
    }
}

fn counter(limit: &Limit, limited: &Limited<'_>, batch: &Batch<'_>) -> Option<String> {
    let planned = limited.limits.iter().find(|planned| std::ptr::eq(planned.limit, limit))?;
    let CounterSource::Store(index) = planned.source else { return None };
    Some(batch.key(batch.checks().get(index)?).to_owned())
}
