//! `POST /api/v1/overrides/try`: what an override would have made of the last recorded requests. Nothing changes.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{
    Api,
    overrides::{Effect, effect},
    reply::{Call, Problem, Reply},
    trial::{check_room, compare, memory_limit},
    view::Parts,
};
use ::overrides::{Override, model::is_forced, target::Target};
use api::Forecast;
use clock::{Clock as _, Rfc3339, SystemClock};
use recent::KeyValues;
use text::spelling::nearest;

pub(super) async fn post(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let body: Json = call.json()?;
    let index = api.managed.keeper.index().clone();
    let one = Override::from_json(&body, index.time(SystemClock.now())).map_err(Problem::bad_request)?;
    let is_forced = is_forced(&body).map_err(Problem::bad_request)?;
    let Effect { rule, warning } = effect(api, &one, &api.keys_without_rule().await?, is_forced)?;
    let warning = match warning {
        None => misspelt(api, &one.target).await?,
        known => known,
    };
    let limit = memory_limit(api);
    let compared = compare(api, move |in_force, decider| {
        check_room(0, in_force, limit)?;
        let with = index.with(one).map_err(Problem::bad_request)?;
        Ok([decider(in_force.clone(), Arc::new(with)), decider(in_force.clone(), index)])
    });
    let (report, recorded) = compared.await?;
    let time = |time| Rfc3339(time).to_string();
    let forecast = Forecast {
        requests: report.requests,
        newly_refused: report.newly_refused,
        newly_allowed: report.newly_allowed,
        from: report.from.map(time),
        to: report.to.map(time),
        recorded,
        rule,
        warning,
    };
    Reply::json(api, &forecast)
}

/// A value that no key of the last minutes has, and another one that is spelled almost like it.
async fn misspelt(api: &Api, target: &Target) -> Result<Option<String>, Problem> {
    if api.managed.recent.values() != KeyValues::Plain {
        return Ok(None);
    }
    let recent = api.view_of(None, Parts { keys: true, ..Parts::default() }).await?.merged;
    let keys = || recent.keys.iter().chain(&recent.unmatched).filter(|one| target.is_of_domain(&one.domain));
    for (key, value) in target.entries() {
        let Some(value) = value.text().filter(|value| !value.contains(['*', '/'])) else { continue };
        let known = || keys().flat_map(|one| &one.descriptor).filter(|entry| entry.key == **key);
        if known().any(|entry| entry.value == value) {
            continue;
        }
        if let Some(meant) = nearest(value, known().map(|entry| entry.value.as_str())) {
            return Ok(Some(format!(
                "no request of the last minutes had {key}={value}; did you mean {key}={meant}?"
            )));
        }
    }
    Ok(None)
}
