//! The counters that a request would be checked against, and the response when they are over their limits. For
//! `tollgate explain`.
//!
//! The functions that plan and conclude requests do the work, so the preview cannot differ from the service.

use super::{
    Policy, Served,
    answer::Answer,
    conclude, plan,
    plan::{CounterSource, LimitCheck, Planned},
    replacement,
    request::{Request, RequestError},
    response,
};
use clock::Time;
use overrides::{Action, Found, Index};
use rules::{Limit, Limits, Rule};
use store::{Batch, Outcome};
use telemetry::metrics::{Stats, StatsOptions};

#[derive(Clone, PartialEq, Debug)]
pub struct Preview {
    /// For each descriptor, and each limit of its rule in the order of the file, the key of the counter; `None` for a limit
    /// that the rule of another descriptor replaces.
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
    let replacements = replacement::of(request, domain, (overrides, policy.counting), now)?;
    let mut batch = Batch::default();
    let context = plan::Context { policy, stats: &stats, now, attempt: None };
    let plan = plan::plan(request, domain, &replacements, served, &mut batch, &context);
    let counters = plan.iter().map(|planned| counters(planned, &batch)).collect();
    let overrides = plan.iter().map(|planned| overridden(planned, &batch)).collect();
    batch.set_all(|_, check| Outcome::Decided(check.limit.algorithm.assumed(true, check.hits, now)));
    let conclusion = conclude::conclude(request, &plan, &batch, policy, &stats, now);
    let over_limit = response::answer(conclusion);
    Ok(Preview { counters, overrides, over_limit })
}

fn counters(planned: &Planned<'_>, batch: &Batch) -> Vec<Option<String>> {
    let (rule, checks) = match planned {
        Planned::NoLimit | Planned::Unlimited(_) | Planned::Allowed(..) => return Vec::new(),
        Planned::Replaced(rule) => (Some(*rule), [].as_slice()),
        Planned::Limited(limited) => (limited.rule, limited.limits.as_slice()),
    };
    let limits = rule.and_then(Rule::limits).into_iter().flat_map(Limits::iter);
    limits.map(|limit| key(checks.iter().find(|check| std::ptr::eq(check.limit, limit))?, batch)).collect()
}

/// The override of a descriptor, and its limit with the counter's key.
fn overridden(planned: &Planned<'_>, batch: &Batch) -> Option<(Found, OverrideLimit)> {
    match planned {
        Planned::Allowed(_, found) => Some((*found, None)),
        Planned::Limited(limited) => {
            let found = limited.overridden?;
            let check = limited.limits.first().filter(|_| matches!(found.action, Action::Limit { .. }));
            Some((found, check.and_then(|check| Some((check.limit.clone(), key(check, batch)?)))))
        }
        _ => None,
    }
}

/// The key of a limit's counter in shared stores.
fn key(check: &LimitCheck<'_>, batch: &Batch) -> Option<String> {
    let CounterSource::Store(index) = check.source else { return None };
    Some(batch.key(batch.checks().get(index)?).to_owned())
}
