//! The trace of a decision, for span attributes. Only traced requests have one.

use std::{sync::Arc, time::Instant};

use super::{plan::Planned, request::Request};
use rules::model::Domain;
use store::{Applied, StoreError};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct DecisionTrace {
    /// The full key of each descriptor's rule, in the request's order; `None` without a rule or with an override.
    pub rules: Vec<Option<Box<str>>>,
    /// The wait for the store, if it did not answer at once.
    pub wait: Option<Wait>,
    /// The policy that decided because the store failed, and the reason of the failure.
    pub failure: Option<(&'static str, &'static str)>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    pub times: [Instant; 2],
    pub checks: usize,
    pub error: Option<Arc<str>>,
}

impl DecisionTrace {
    /// Sets the matched rules. They are looked up again, so that plans of untraced requests need not contain them.
    pub(super) fn set_rules(&mut self, request: &Request<'_>, domain: &Domain, plan: &[Planned<'_>]) {
        let mut scratch = String::new();
        let keys = request.descriptors.iter().zip(plan).map(|(descriptor, planned)| {
            let by_rule = descriptor.limit.is_none() && !matches!(planned, Planned::NoLimit);
            let found = by_rule.then(|| domain.find(&descriptor.entries, &mut scratch)).flatten();
            found.map(|found| found.rule.full_key.clone())
        });
        self.rules = keys.collect();
    }
}

/// Waits for a store, and adds the wait to the trace.
pub(super) async fn wait(
    trace: Option<&mut DecisionTrace>,
    applied: Applied<'_>,
    checks: usize,
) -> Result<(), StoreError> {
    match (trace, applied) {
        (Some(trace), Applied::Later(answer)) => {
            let start = Instant::now();
            let answer = answer.await;
            let error = answer.as_ref().err().map(|error| error.message.clone());
            trace.wait = Some(Wait { times: [start, Instant::now()], checks, error });
            answer
        }
        (_, applied) => applied.done().await,
    }
}
