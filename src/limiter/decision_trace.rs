//! What a decision went through, for who traces it. Filled in only where it is asked for.

use std::{sync::Arc, time::Instant};

use super::{failure::FailureDecision, plan::Planned, request::Request};
use crate::{
    rules::model::Domain,
    store::{Applied, StoreError},
};

/// What a decision went through.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DecisionTrace {
    /// The full key of the rule that each descriptor met, in the request's order. Nothing for one that met
    /// none, whose limit was replaced, or that brought its own.
    pub rules: Vec<Option<Box<str>>>,
    /// The store's answer, where it had to be waited for.
    pub wait: Option<Wait>,
    /// The policy that decided in place of the counters, and why they could not be asked.
    pub lost: Option<(&'static str, &'static str)>,
}

/// How a store was waited for.
#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    /// From when to when.
    pub times: [Instant; 2],
    /// How many counters it was asked for.
    pub checks: usize,
    /// What it failed with, if it did.
    pub error: Option<Arc<str>>,
}

impl DecisionTrace {
    /// Notes which rules were met. They are looked up once more, so that a plan need not carry them for the
    /// few requests that are traced.
    pub(super) fn note_rules(&mut self, request: &Request<'_>, domain: &Domain, plan: &[Planned<'_>]) {
        let mut scratch = String::new();
        let met = request.descriptors.iter().zip(plan).map(|(descriptor, planned)| {
            let by_rule = descriptor.limit.is_none() && !matches!(planned, Planned::NoLimit);
            let found = by_rule.then(|| domain.find(&descriptor.entries, &mut scratch)).flatten();
            found.map(|found| found.rule.full_key.clone())
        });
        self.rules = met.collect();
    }

    pub(super) fn note_loss(&mut self, lost: FailureDecision) {
        self.lost = Some(lost.names());
    }
}

/// Waits for a store that was asked for so many checks, and notes how long that took if it did.
pub(super) async fn waited(
    trail: Option<&mut DecisionTrace>,
    applied: Applied<'_>,
    checks: usize,
) -> Result<(), StoreError> {
    match (trail, applied) {
        (Some(trail), Applied::Later(answer)) => {
            let begun = Instant::now();
            let answer = answer.await;
            let error = answer.as_ref().err().map(|error| error.message.clone());
            trail.wait = Some(Wait { times: [begun, Instant::now()], checks, error });
            answer
        }
        (_, applied) => applied.done().await,
    }
}
