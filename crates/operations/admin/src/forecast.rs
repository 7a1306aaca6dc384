//! What an override would have made of the last recorded requests, and values of it that are probably misspelt.

use std::sync::Arc;

use super::{
    Api,
    reply::Problem,
    trial::{check_room, compare, memory_limit},
    view::Parts,
};
use ::overrides::{Override, target::Target};
use api::Forecast;
use clock::Rfc3339;
use recent::KeyValues;
use text::spelling::nearest;

/// The forecast; `None` if no requests are recorded, another trial is under way, or there is no room for one.
pub(super) async fn of(api: &Api, one: Override) -> Option<Forecast> {
    let index = api.managed.keeper.index().clone();
    let limit = memory_limit(api);
    let compared = compare(api, move |served, decider| {
        let in_force = &served.rules;
        check_room(0, in_force, limit)?;
        let with = index.with(one).map_err(Problem::bad_request)?;
        Ok([decider(in_force.clone(), Arc::new(with)), decider(in_force.clone(), index)])
    });
    let (report, recorded) = compared.await.ok()?;
    let time = |time| Rfc3339(time).to_string();
    Some(Forecast {
        requests: report.requests,
        newly_refused: report.newly_refused,
        newly_allowed: report.newly_allowed,
        from: report.from.map(time),
        to: report.to.map(time),
        recorded,
    })
}

/// A warning about a value that no key of the last minutes has, beside another one that is spelled almost like it.
pub(super) async fn misspelt(api: &Api, target: &Target) -> Result<Option<String>, Problem> {
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
