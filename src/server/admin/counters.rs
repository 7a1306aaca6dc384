//! `/api/v1/counters`: the counters of one descriptor, read without counting, and reset.

use http::StatusCode;
use serde_json::{Value as Json, json};
use tracing::warn;

use super::{
    Api,
    overrides::reason,
    reply::{Call, Problem, Reply},
};
use crate::{
    limiter::{CounterState, Descriptor, Entry, Request, RequestError},
    overrides::{
        Found, Target, Value,
        model::{entries_of_json, entries_of_text},
    },
};

/// `GET /api/v1/counters`: the limits of a descriptor with what is used and left of them.
pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["domain", "descriptor"])?;
    let needed = |name: &str, example: &str| {
        let text = query.text(name).filter(|text| !text.is_empty());
        text.ok_or_else(|| {
            Problem::bad_request(format!("parameter {name:?} is missing; expected {name}={example}"))
        })
    };
    let domain = needed("domain", "DOMAIN")?;
    let entries = entries_of_text(needed("descriptor", "KEY=VALUE,…")?);
    let entries = entries.map_err(|error| Problem::bad_request(format!("descriptor: {error}")))?;
    let target = exact(Target::new(domain, entries))?;
    let counters = api.options.shown.limiter.counters(&request(&target)).await.map_err(problem)?;
    let counters = counters.into_iter().next().unwrap_or_default();
    let rule = counters.rule.as_deref();
    let limits: Vec<Json> = counters.limits.iter().map(|state| limit(rule, state)).collect();
    let steered = counters.overridden.map(steered);
    Reply::json(&json!({"rule": rule, "override": steered, "limits": limits}))
}

/// The override of a descriptor.
fn steered(found: Found) -> Json {
    let mut fields = serde_json::Map::new();
    found.action.add_to_json(found.expires, &mut fields);
    Json::Object(fields)
}

fn limit(rule: Option<&str>, state: &CounterState) -> Json {
    let CounterState { limit, used, remaining, resets_in } = state;
    json!({
        "rule": rule,
        "name": limit.name.as_deref(),
        "requests_per_unit": limit.requests_per_unit,
        "unit": limit.unit.name(),
        "unit_multiplier": limit.multiplier,
        "algorithm": limit.algorithm.kind().name(),
        "used": used,
        "remaining": remaining,
        "resets_in_seconds": resets_in,
    })
}

/// `POST /api/v1/counters/reset`: the counters of a descriptor are as if they had never been used, in all replicas that
/// share the store.
pub(super) async fn reset(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let body: Json = call.json()?;
    let Json::Object(fields) = &body else {
        return Err(Problem::bad_request("expected an object with domain, descriptor and reason"));
    };
    if let Some(name) =
        fields.keys().find(|name| !["domain", "descriptor", "reason"].contains(&name.as_str()))
    {
        let message = format!("unknown field {name:?}; expected domain, descriptor, reason");
        return Err(Problem::bad_request(message));
    }
    let text = |name: &str| match fields.get(name) {
        None | Some(Json::Null) => Ok(""),
        Some(Json::String(text)) => Ok(text.as_str()),
        Some(other) => Err(Problem::bad_request(format!("{name}: expected text, got {other}"))),
    };
    let entries = entries_of_json(fields.get("descriptor")).map_err(Problem::bad_request)?;
    let target = exact(Target::new(text("domain")?, entries))?;
    let given = reason(text("reason")?);
    let keys = api.options.shown.limiter.reset_counters(&request(&target)).await.map_err(problem)?;
    if keys.is_empty() {
        let message =
            format!("nothing limits {target}; GET /api/v1/counters shows the limits of a descriptor");
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    }
    let announced = api.options.shown.keeper.announce_reset(&keys).await;
    // The counters are reset. Other replicas may refuse by what they remember until the limit's window ends.
    let warning = announced.err().map(|error| format!("other replicas were not notified: {error}"));
    if let Some(warning) = &warning {
        warn!("reset of {target}: {warning}");
    }
    let reply = json!({"reset": keys.len(), "warning": warning});
    Ok(Reply::json(&reply)?.changed(target.to_string(), given))
}

/// A target whose entries all have values: a counter belongs to one.
fn exact(target: Result<Target, String>) -> Result<Target, Problem> {
    let target = target.map_err(Problem::bad_request)?;
    match target.entries().iter().find(|(_, value)| *value == Value::Any) {
        None => Ok(target),
        Some((key, _)) => Err(Problem::bad_request(format!(
            "descriptor: {key} has no value; a counter belongs to one value, {key}= is the empty one"
        ))),
    }
}

/// A request with the target's descriptor.
fn request(target: &Target) -> Request<'_> {
    let entries = target.entries().iter();
    let entries = entries.map(|(key, value)| Entry { key, value: value.text().unwrap_or_default() });
    let descriptor = Descriptor { entries: entries.collect(), ..Descriptor::default() };
    Request { domain: target.domain(), descriptors: [descriptor].into_iter().collect(), ..Request::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
fn problem(error: RequestError) -> Problem {
    let status =
        if error.is_unavailable() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::BAD_REQUEST };
    let message = match &error {
        RequestError::Store(store) => store.to_string(),
        other => other.to_string(),
    };
    Problem::new(status, message)
}
