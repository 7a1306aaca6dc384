//! `/api/v1/counters`: reads and resets the counters of one descriptor, without counting.

use http::StatusCode;
use serde_json::Value as Json;
use tracing::warn;

use super::{
    Api,
    overrides::{as_api, effect_shown, shown_target},
    reply::{Call, Problem, Query, Reply},
};
use api::{Calendar, CounterLimit, Counters, CountersReset, ResetCounters};
use limit::calendar::CalendarFields;
use limiter::{CounterState, Descriptor, Entry, Request, RequestError};
use overrides::{
    Target, Value,
    target::{Entries, entries_of_json, entries_of_text},
};

/// `GET /api/v1/counters`: the limits of a descriptor with their usage.
pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let target = asked(&call.query)?;
    let counters = api.managed.limiter.counters(&request(&target)).await.map_err(problem)?;
    let counters = counters.into_iter().next().unwrap_or_default();
    let rule = counters.rule.as_deref();
    let current = counters.overridden.map(|found| {
        if found.is_apart() {
            as_api(found.to_json())
        } else {
            effect_shown(found.action, found.limit_name.as_deref(), found.expires)
        }
    });
    Reply::json(
        api,
        &Counters {
            rule: rule.map(str::to_owned),
            by_override: current,
            limits: counters.limits.iter().map(|state| limit(rule, state)).collect(),
        },
    )
}

/// The descriptor that the parameters name.
pub(super) fn asked(query: &Query<'_>) -> Result<Target, Problem> {
    let entries = entries_of_text(query.needed("descriptor"));
    let entries = entries.map_err(|error| Problem::bad_request(format!("descriptor: {error}")))?;
    exact(query.needed("domain"), entries)
}

fn limit(rule: Option<&str>, state: &CounterState) -> CounterLimit {
    let CounterState { limit, schedule, used, held, remaining, resets_in } = state;
    CounterLimit {
        rule: rule.map(str::to_owned),
        name: limit.name.as_deref().map(str::to_owned),
        requests_per_unit: limit.requests_per_unit,
        unit: limit.unit.name().to_owned(),
        unit_multiplier: limit.multiplier.get().into(),
        calendar: limit.period().calendar().map(calendar),
        schedule: schedule.as_ref().map(|in_force| in_force.words.to_string()),
        algorithm: limit.algorithm.kind().name().to_owned(),
        used: *used,
        spent: held.map(|_| *used),
        held: *held,
        remaining: *remaining,
        resets_in_seconds: *resets_in,
    }
}

pub(super) fn calendar(calendar: limit::calendar::Calendar) -> Calendar {
    let CalendarFields { time_zone, week_start, anchor_day } = calendar.fields();
    Calendar { time_zone: time_zone.to_owned(), week_start: week_start.map(str::to_owned), anchor_day }
}

/// `POST /api/v1/counters/reset`: resets the counters of a descriptor, in all replicas that share the store.
pub(super) async fn reset(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let ResetCounters::<Json> { domain, descriptor, reason } = call.json()?;
    let given = (!descriptor.is_null()).then_some(&descriptor);
    let entries = entries_of_json(given).map_err(Problem::bad_request)?;
    let target = exact(&domain, entries)?;
    let shown = target.shown(api.managed.recent.values());
    let keys = api.managed.limiter.reset_counters(&request(&target)).await.map_err(problem)?;
    if keys.is_empty() {
        let message =
            format!("no limit applies to {shown}; GET /api/v1/counters shows the limits of a descriptor");
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    }
    let warning = announce(api, &keys).await;
    if let Some(warning) = &warning {
        warn!("reset of {shown}: {warning}");
    }
    let reply = CountersReset { reset: keys.len(), warning };
    Ok(Reply::json(api, &reply)?.changed(shown_target(api, &target), &reason.unwrap_or_default()))
}

/// Notifies the other replicas. Those that do not hear of it may reject by their caches until the limit's window ends.
async fn announce(api: &Api, keys: &[String]) -> Option<String> {
    match api.managed.keeper.announce_reset(keys).await {
        Err(error) => Some(format!("other replicas were not notified: {error}")),
        Ok(reached) => {
            let known = api.members().await.ok()?.len() as u64;
            let reached = reached.filter(|reached| *reached < known)?;
            Some(format!(
                "{reached} of {known} replicas were notified; the others may reject until the window ends"
            ))
        }
    }
}

/// A target whose entries all have values, as those of a counter.
fn exact(domain: &str, mut entries: Entries) -> Result<Target, Problem> {
    for (key, value) in &mut entries {
        let text = value.text().ok_or_else(|| {
            Problem::bad_request(format!(
                "descriptor: {key} has no value; expected {key}=VALUE, or {key}= for the empty value"
            ))
        })?;
        // A `*` is a part of the value.
        *value = Value::Exact(text.into());
    }
    Target::new(domain, entries).map_err(Problem::bad_request)
}

pub(super) fn request(target: &Target) -> Request<'_> {
    let entries = target.entries().iter();
    let entries = entries.map(|(key, value)| Entry { key, value: value.text().unwrap_or_default() });
    let descriptor = Descriptor { entries: entries.collect(), ..Descriptor::default() };
    Request { domain: target.domain(), descriptors: [descriptor].into_iter().collect(), ..Request::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
pub(super) fn problem(error: RequestError) -> Problem {
    let status =
        if error.is_unavailable() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::BAD_REQUEST };
    let message = match &error {
        RequestError::Store(store) => store.to_string(),
        other => other.to_string(),
    };
    Problem::new(status, message)
}
