//! `/api/v1/domains`: switches that allow or shadow all requests of a domain, or change its failure policy.
//!
//! A switch is an override of a whole domain, and is stored as one. A replica that cannot reach Redis can be switched on its
//! own.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value as Json;

use super::{
    Api,
    overrides::{as_api, by, changed, effect, owed},
    reply::{Call, Problem, Reply},
};
use api::{Switches, SwitchesCleared};
use clock::{Clock, SystemClock, Time};
use fleet::Summary;
use overrides::{ChangeError, Durability, EVERY_DOMAIN, Index, Override, model::is_forced};

/// `GET /api/v1/domains`: the switches in force, by their domains.
pub(super) async fn get(api: &Api, _: &Call<'_>) -> Result<Reply, Problem> {
    list(api)
}

pub(super) fn list(api: &Api) -> Result<Reply, Problem> {
    let index = api.managed.keeper.index();
    let all = in_force(index, index.time(SystemClock.now()));
    let shown = |(switch, this_replica): &(Arc<Override>, bool)| api::Override {
        this_replica: *this_replica,
        ..as_api(switch.to_json())
    };
    let domains = all.iter().map(shown).collect();
    Reply::json(api, &Switches { domains, kept_in: api.managed.keeper.storage().to_owned() })
}

/// The switches in force by their domains, and whether each is of this replica alone.
pub(super) fn in_force(index: &Index, now: Time) -> Vec<(Arc<Override>, bool)> {
    let here = index.here();
    // A switch of this replica alone replaces the stored one.
    let is_replaced = |one: &Override| here.iter().any(|own| own.target == one.target && !own.is_over(now));
    let stored = index.switches().into_iter().filter(|one| !is_replaced(one)).map(|one| (one, false));
    let mut all: Vec<_> = here.iter().map(|one| (one.clone(), true)).chain(stored).collect();
    all.retain(|(one, _)| !one.is_over(now));
    all.sort_by(|(one, _), (other, _)| {
        let key = |one: &Override| one.on_store_failure().is_some();
        (one.target.domain(), key(one)).cmp(&(other.target.domain(), key(other)))
    });
    all
}

pub(super) async fn set(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let body: Json = call.json()?;
    let keeper = &api.managed.keeper;
    let now = keeper.index().time(SystemClock.now());
    let mut one = Override::switch_from_json(&body, now).map_err(Problem::bad_request)?;
    one.by = by(call, &one.by);
    let is_forced = is_forced(&body).map_err(Problem::bad_request)?;
    let effect = effect(api, &one, &Summary::default(), is_forced)?;
    let kept = match &body["this_replica"] {
        Json::Null | Json::Bool(false) => keeper.set(&one).await.map_err(with_advice)?,
        Json::Bool(true) => keeper.switch_here(one.clone()).map(|()| Durability::Stored)?,
        other => {
            return Err(Problem::bad_request(format!("this_replica: expected true or false, got {other}")));
        }
    };
    changed(api, &one, effect, kept)
}

/// The error of a change that could not be stored, with what is possible nonetheless.
fn with_advice(error: ChangeError) -> ChangeError {
    match error {
        ChangeError::Unavailable(why) => ChangeError::Unavailable(format!(
            "{why}; --this-replica (\"this_replica\": true) changes one replica without storing it: repeat it on each"
        )),
        other => other,
    }
}

/// `DELETE /api/v1/domains?domain=&this_replica=`: removes the switches of a domain.
pub(super) async fn clear(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = &call.query;
    let keeper = &api.managed.keeper;
    let domain = query.needed("domain");
    let (removed, kept) = if query.is_true("this_replica") {
        (keeper.index().clear_here(domain), Durability::Stored)
    } else {
        keeper.clear(domain).await.map_err(with_advice)?
    };
    if removed.is_empty() {
        let message = format!("domain {:?} has no switch; GET /api/v1/domains lists them", text::cut(domain));
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    }
    let what: Vec<String> = removed.iter().map(|one| one.effect()).collect();
    let whose = if domain == EVERY_DOMAIN { "all domains" } else { domain };
    let what = format!("{whose}, which was {}", what.join(" and "));
    let cleared = removed.iter().map(|one| as_api(one.to_json())).collect();
    Ok(Reply::json(api, &SwitchesCleared { cleared, warning: owed(kept) })?
        .changed(what, query.needed("reason")))
}
