//! `GET /api/v1/status`: version, rules, store, rates and memory; and `GET /api/v1/replicas`.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    Api,
    changes::few,
    history::Latency,
    not_enforced,
    reply::{Call, Problem, Reply},
    view::{MAX_PUBLISHED, Parts, REPLICA, Scope, View, silence},
};
use clock::{Clock, Rfc3339, SystemClock};
use faults::OnStoreFailure;
use fleet::{Announcement, Member, Merged, Summary, own_id};
use metrics::{PoolUsage, StoreUsage};
use rules_source::ReloadState;
use text::cut_owned;

/// The maximum number of errors of the last load; the log has all of them.
const MAX_ERRORS: usize = 10;

pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&[REPLICA])?;
    let View { merged, scope, replicas } = api.view(query.text(REPLICA), Parts::default()).await?;
    if let Scope::Other(name) = &scope {
        // Its own status, as it was published.
        let mut status = merged.status;
        status["scope"] = name.as_str().into();
        return Reply::json(&status);
    }
    let listed = match &replicas {
        Json::String(_) => replicas,
        _ => json!(members(api).await.unwrap_or_default()),
    };
    Reply::json(&json(api, &merged, &scope, &listed))
}

/// The status of this replica, with the rates and latencies of a view.
pub(super) fn json(api: &Api, merged: &Merged, scope: &Scope, replicas: &Json) -> Json {
    let (managed, started) = (&api.managed, api.managed.started);
    let now = SystemClock.now();
    let ([ok, over_limit, error], [rate_ok, rate_over, rate_error]) = (merged.total, merged.per_second);
    let [limit, block, allow, shadow] = managed.keeper.index().usage().by_action;
    let keys = managed.store.usage().or_else(|| managed.limiter.local_usage());
    let keys = keys.map(|StoreUsage { held, max_keys }| {
        json!({
            "held": held.entries,
            "max": max_keys,
            "bytes": held.bytes,
            "evicted": held.evicted,
            "evicted_over_limit": held.evicted_over,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": managed.stats.commit,
        "zone_data": limit::calendar::zone::data_version(),
        "time": Rfc3339(now).to_string(),
        "started_at": Rfc3339(started).to_string(),
        "uptime_seconds": now.seconds().saturating_sub(started.seconds()),
        "read_only": api.access.read_only,
        "key_values": managed.recent.values().name(),
        "not_enforced": not_enforced::json_of(&merged.not_enforced, replicas),
        "rules": rules(api),
        "store": store(api),
        "policy": managed.limiter.on_store_failure().name(),
        "callers": callers(api, merged.without_store),
        "requests": {
            "per_second": {"ok": rate_ok, "over_limit": rate_over, "error": rate_error},
            "total": {"ok": ok, "over_limit": over_limit, "error": error},
        },
        "latency": Latency::of(&merged.latency),
        "unmatched": merged.unmatched_total,
        "replica": own_id(),
        "scope": scope.name(),
        "memory": memory(api, keys),
        "replicas": replicas,
        "overrides": {
            "limit": limit,
            "block": block,
            "allow": allow,
            "shadow": shadow,
            "kept_in": managed.keeper.storage(),
            "failure": managed.keeper.failure(),
        },
    })
}

fn memory(api: &Api, keys: Option<Json>) -> Json {
    let mut memory = json!({"resident_bytes": allocator::resident_bytes()});
    memory["keys"] = keys.unwrap_or_default();
    if let Some((limit, set_by, parts)) = (api.managed.memory)() {
        let parts = parts.into_iter().filter(|part| part.bytes > 0);
        let parts = parts.map(|part| (part.name.to_owned(), json!({"bytes": part.bytes, "used": part.used})));
        memory["limit_bytes"] = limit.into();
        memory["limit_set_by"] = set_by.into();
        memory["bounds"] = Json::Object(parts.collect());
    }
    memory
}

fn rules(api: &Api) -> Json {
    let state = api.managed.source.state();
    let last_error = state.last_error.map(|(at, errors)| {
        let errors: Vec<String> = errors.iter().take(MAX_ERRORS).map(ToString::to_string).collect();
        json!({"at": Rfc3339(at).to_string(), "errors": errors})
    });
    json!({
        "is_current": state.is_current,
        "hash": state.last_success.map(|_| format!("{:016x}", state.hash)),
        "loaded_at": state.last_success.map(|at| Rfc3339(at).to_string()),
        "files": state.files,
        "domains": state.domains,
        "rules": state.rules,
        "warnings": state.warnings,
        "last_error": last_error,
    })
}

fn store(api: &Api) -> Json {
    let store = &api.managed.store;
    let pools = store.pools();
    let sum = |of: fn(&PoolUsage) -> u64| pools.iter().map(of).fold(0, u64::saturating_add);
    let latency = Latency::of(&api.history.store_latency());
    let outage = api.managed.outages.current();
    json!({
        "kind": api.managed.store_kind,
        "address": api.managed.store_address,
        "connected": store.is_reachable(),
        "since": outage.as_ref().map(|outage| Rfc3339(outage.since).to_string()),
        "error": outage.as_ref().map(|outage| &*outage.error),
        // The latencies are those of the last minute, so of the time before.
        "stale": outage.is_some(),
        "connections": sum(|pool| pool.connections),
        "breakers_open": sum(|pool| pool.breakers_open),
        "queued": sum(|pool| pool.queued),
        "p50_seconds": latency.p50_seconds,
        "p99_seconds": latency.p99_seconds,
    })
}

/// What callers get while the store is out of service: a line for each policy that decides, or that would.
fn callers(api: &Api, rates: [f64; OnStoreFailure::ALL.len()]) -> Vec<String> {
    if api.managed.outages.current().is_none() {
        return Vec::new();
    }
    let rates = OnStoreFailure::ALL.into_iter().zip(rates);
    let policies = api.managed.limiter.failure_policies();
    let several = policies.len() > 1;
    let line = |(policy, rate): (OnStoreFailure, f64)| {
        let effect = match policy {
            OnStoreFailure::Error => "failing; Envoy lets them through unless failure_mode_deny",
            OnStoreFailure::Allow => "allowed without counting",
            OnStoreFailure::Deny => "refused",
            OnStoreFailure::Local => "counted by each replica alone",
        };
        let decided = policies.iter().find(|(known, _)| *known == policy);
        let domains = decided.filter(|_| several).map(|(_, domains)| format!(" ({})", few(domains)));
        let domains = domains.unwrap_or_default();
        let is_shown = rate > 0.0 || decided.is_some();
        is_shown.then(|| format!("{}{domains}: {rate:.0}/s {effect}", policy.name()))
    };
    rates.filter_map(line).collect()
}

/// The replicas that share the Redis, and the rules of each.
pub(super) async fn replicas(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let (serve_same_rules, replicas): (Json, Json) = match members(api).await {
        Ok(members) => {
            let mut hashes = members.iter().map(|member| &member["rules_hash"]);
            let first = hashes.next();
            (hashes.all(|hash| Some(hash) == first).into(), members.into())
        }
        Err(_) => ("unknown".into(), "unknown".into()),
    };
    Reply::json(&json!({"own": own_id(), "serve_same_rules": serve_same_rules, "replicas": replicas}))
}

/// This replica and the others; an error if these are unknown.
async fn members(api: &Api) -> Result<Vec<Json>, String> {
    let own = Member { announcement: api.announcement(), age_seconds: 0, summary: None };
    let members = if api.managed.fleet.is_shared() { api.members().await? } else { Arc::default() };
    let others = members.iter().filter(|member| member.announcement.id != own_id());
    let json = |member: &Member| {
        let announcement = &member.announcement;
        let mut json = json!(announcement);
        if let Some(fields) = json.as_object_mut() {
            fields.remove("summaries");
        }
        json["age_seconds"] = member.age_seconds.into();
        json["summary"] = if announcement.id == own_id() { "published" } else { silence(member) }.into();
        json
    };
    let mut all: Vec<Json> = std::iter::once(&own).chain(others).map(json).collect();
    all.sort_by_key(|member| member["id"].to_string());
    Ok(all)
}

impl Api {
    /// The summary that other replicas read, with the status of this one; `None` if it publishes none.
    pub fn published_summary(&self) -> Option<String> {
        if !self.managed.fleet.publishes() {
            return None;
        }
        let parts = Parts { keys: true, refusals: true, rules: true, ..Parts::default() };
        let summary = self.own_summary(parts, MAX_PUBLISHED);
        let status = json(self, &summary, &Scope::This, &Json::Null);
        Some(Summary { status, ..summary }.packed())
    }

    /// How this replica announces itself.
    pub fn announcement(&self) -> Announcement {
        let (managed, rates) = (&self.managed, self.history.rates());
        let state = managed.source.state();
        let overrides = managed.keeper.index().usage();
        Announcement {
            id: own_id().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rules_hash: state.last_success.map(|_| overrides.with_zone_data(state.hash)),
            requests_per_second: whole(rates.ok + rates.over_limit + rates.error),
            started: managed.started.seconds(),
            summaries: managed.fleet.publishes(),
            rejected: rejection(&state),
        }
    }
}

/// The first error of the newest rules, if they are not in service.
fn rejection(state: &ReloadState) -> Option<String> {
    let (_, errors) = state.last_error.as_ref().filter(|_| !state.is_current)?;
    errors.first().map(|error| cut_owned(error.to_string()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}
