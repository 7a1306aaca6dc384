//! What a request would ask of the counters, and what it would be told if they refused it: for
//! `tollgate explain`, by the very functions that plan and conclude requests.

use super::{Answer, Policy, Request, RequestError, Served, conclude, plan, plan::Planned};
use crate::{
    clock::Time,
    store::{Batch, Outcome},
    telemetry::metrics::{Stats, StatsOptions},
};

/// What would be asked, and what would be answered.
#[derive(Clone, PartialEq, Debug)]
pub struct Preview {
    /// The counters' keys, in the order of the descriptors' limits.
    pub keys: Vec<String>,
    /// What is told when every limit refuses.
    pub refused: Answer,
}

/// Previews a request. Nothing is counted.
///
/// # Errors
/// When the request makes no sense.
pub fn preview(
    request: &Request<'_>,
    served: &Served,
    policy: &Policy,
    now: Time,
) -> Result<Preview, RequestError> {
    policy.bounds.check(request)?;
    let stats = Stats::new(StatsOptions::default());
    let brought = plan::brought(request)?;
    let mut batch = Batch::default();
    let context = plan::Context { policy, stats: &stats, now };
    let plan = match served.rules.domain(request.domain) {
        Some(domain) => plan::plan(request, domain, &brought, served, &mut batch, &context),
        None => request.descriptors.iter().map(|_| Planned::NoLimit).collect(),
    };
    let keys = batch.checks().iter().map(|check| batch.key(check).to_owned()).collect();
    batch.answer(|_, check| Outcome::Judged(check.limit.algorithm.supposed(true, check.hits, now)));
    let refused = conclude::conclude(request, &plan, &batch, policy, &stats, now);
    Ok(Preview { keys, refused })
}
