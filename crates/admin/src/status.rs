//! `GET /api/v1/status`: version, rules, store, rates and memory; and `GET /api/v1/replicas`.

use serde_json::{Value as Json, json};

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use crate::replicas::Replicas;
use clock::{Clock, Rfc3339, SystemClock};
use rules::OnStoreFailure;
use store::{PoolUsage, StoreUsage};

/// The maximum number of errors of the last load; the log has all of them.
const MAX_ERRORS: usize = 10;

pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let (managed, started) = (&api.managed, api.managed.started);
    let now = SystemClock.now();
    let [ok, over_limit, error] = managed.stats.requests_by_code();
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
    Reply::json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": managed.stats.commit,
        "zone_data": calendar::zone::data_version(),
        "time": Rfc3339(now).to_string(),
        "started_at": Rfc3339(started).to_string(),
        "uptime_seconds": now.seconds().saturating_sub(started.seconds()),
        "read_only": api.access.read_only,
        "key_values": managed.recent.values().name(),
        "rules": rules(api),
        "store": store(api),
        "policy": managed.limiter.on_store_failure().name(),
        "callers": callers(api),
        "requests": {
            "per_second": api.history.rates(),
            "total": {"ok": ok, "over_limit": over_limit, "error": error},
        },
        "latency": api.history.latency(),
        "memory": {"resident_bytes": allocator::resident_bytes(), "keys": keys},
        "replicas": replicas_shown(api),
        "overrides": {
            "limit": limit,
            "block": block,
            "allow": allow,
            "shadow": shadow,
            "kept_in": managed.keeper.storage(),
        },
    }))
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
    let latency = api.history.store_latency();
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

/// The replicas, or `unknown` while Redis is out of service.
fn replicas_shown(api: &Api) -> Json {
    if api.managed.keeper.storage() == "redis" && api.managed.outages.current().is_some() {
        return "unknown".into();
    }
    json!(api.managed.replicas.list())
}

/// What callers get while the store is out of service: a line for each policy that decides, or that would.
fn callers(api: &Api) -> Vec<String> {
    if api.managed.outages.current().is_none() {
        return Vec::new();
    }
    let rates = OnStoreFailure::ALL.into_iter().zip(api.history.without_store());
    let decides = |policy, rate| rate > 0.0 || policy == api.managed.limiter.on_store_failure();
    let line = |(policy, rate): (OnStoreFailure, f64)| {
        let effect = match policy {
            OnStoreFailure::Error => "failing; Envoy lets them through unless failure_mode_deny",
            OnStoreFailure::Allow => "allowed without counting",
            OnStoreFailure::Deny => "refused",
            OnStoreFailure::Local => "counted by each replica alone",
        };
        decides(policy, rate).then(|| format!("{}: {rate:.0}/s {effect}", policy.name()))
    };
    rates.filter_map(line).collect()
}

/// The replicas that share the Redis, and the rules of each.
pub(super) fn replicas(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let known = &api.managed.replicas;
    Reply::json(&json!({
        "own": Replicas::own_id(),
        "serve_same_rules": known.by_rules_hash().len() <= 1,
        "replicas": known.list(),
    }))
}
