//! `GET /api/v1/refusals`: the last refused requests, with their reasons.

use serde::Serialize;

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use crate::recent::{Decision, MAX_REFUSALS, decision::DecisionJson};

#[derive(Serialize)]
struct Refusals<'a> {
    refusals: Vec<DecisionJson<'a>>,
    /// How values are shown.
    key_values: &'static str,
}

/// The newest refusals come first: `n` of a domain, of descriptors with these entries, and after the one of an id.
pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "descriptor", "after"])?;
    let most = query.number("n", 100, 1..=MAX_REFUSALS)?;
    let after = query.number("after", 0, 0..=usize::MAX)? as u64;
    let (domain, entries) = (query.text("domain"), query.descriptor("descriptor")?);
    let matches = |decision: &Decision| {
        decision.id > after
            && domain.is_none_or(|domain| decision.domain() == domain)
            && entries.iter().flatten().all(|(key, value)| {
                decision.descriptor.entries().any(|entry| entry == (key.as_str(), value.as_str()))
            })
    };
    let recent = &api.options.shown.recent;
    let found = recent.refusals(most, matches);
    let refusals = found.iter().map(|decision| decision.json(recent.values())).collect();
    Reply::json(&Refusals { refusals, key_values: recent.values().name() })
}
