//! `GET /api/v1/status`: version, rules, store, rates and memory at a glance; and `GET /api/v1/replicas`.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::{
    Api,
    history::{Latency, Rates},
    reply::{Call, Problem, Reply},
};
use crate::{
    clock::{Clock, Rfc3339, SystemClock, Time},
    memory,
    replicas::{Replica, Replicas},
    rules_source::ReloadState,
    store::StoreUsage,
    telemetry::metrics::{COMMIT, ResponseCode},
};

/// Errors of the last load that are shown; the log has more.
const MAX_ERRORS: usize = 10;

#[derive(Serialize)]
struct Status {
    version: &'static str,
    commit: &'static str,
    time: String,
    started_at: String,
    uptime_seconds: u64,
    read_only: bool,
    /// How callers' values are shown: `plain`, `hashed` or `hidden`.
    key_values: &'static str,
    rules: Rules,
    store: Store,
    requests: Requests,
    latency: Latency,
    memory: Memory,
    replicas: Arc<Vec<Replica>>,
    overrides: Overrides,
}

/// The overrides by their actions.
#[derive(Serialize)]
struct Overrides {
    limit: u64,
    block: u64,
    allow: u64,
    shadow: u64,
    kept_in: &'static str,
}

#[derive(Serialize)]
struct Rules {
    /// The rules in force are those that were read last.
    is_current: bool,
    hash: Option<String>,
    loaded_at: Option<String>,
    files: usize,
    domains: usize,
    #[serde(rename = "rules")]
    count: usize,
    warnings: usize,
    last_error: Option<LastError>,
}

#[derive(Serialize)]
struct LastError {
    at: String,
    errors: Vec<String>,
}

#[derive(Serialize)]
struct Store {
    kind: &'static str,
    address: Option<String>,
    connected: bool,
    connections: u64,
    breakers_open: u64,
    queued: u64,
    #[serde(flatten)]
    latency: Latency,
}

#[derive(Serialize)]
struct Requests {
    per_second: Rates,
    total: Total,
}

#[derive(Serialize)]
struct Total {
    ok: u64,
    over_limit: u64,
    error: u64,
}

#[derive(Serialize)]
struct Memory {
    resident_bytes: Option<u64>,
    keys: Option<Keys>,
}

/// The counters in this process.
#[derive(Serialize)]
struct Keys {
    held: usize,
    max: usize,
    bytes: usize,
    evicted: u64,
}

/// The status.
pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    Reply::json(&status(api, SystemClock.now()))
}

fn status(api: &Api, now: Time) -> Status {
    let options = &api.options;
    let [ok, over_limit, error] = options.shown.stats.requests_by_code();
    const { assert!(ResponseCode::ALL.len() == 3) };
    Status {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT,
        time: Rfc3339(now).to_string(),
        started_at: Rfc3339(options.started).to_string(),
        uptime_seconds: now.seconds().saturating_sub(options.started.seconds()),
        read_only: options.read_only,
        key_values: options.shown.recent.values().name(),
        rules: rules(options.shown.source.state()),
        store: store(api),
        requests: Requests { per_second: api.history.rates(), total: Total { ok, over_limit, error } },
        latency: api.history.latency(),
        memory: Memory { resident_bytes: memory::resident_bytes(), keys: usage(api).map(keys) },
        replicas: api.options.shown.replicas.list(),
        overrides: overrides(api),
    }
}

fn rules(state: ReloadState) -> Rules {
    let last_error = state.last_error.map(|(at, errors)| LastError {
        at: Rfc3339(at).to_string(),
        errors: errors.iter().take(MAX_ERRORS).map(ToString::to_string).collect(),
    });
    Rules {
        is_current: state.is_current,
        hash: state.last_success.map(|_| format!("{:016x}", state.hash)),
        loaded_at: state.last_success.map(|at| Rfc3339(at).to_string()),
        files: state.files,
        domains: state.domains,
        count: state.rules,
        warnings: state.warnings,
        last_error,
    }
}

fn store(api: &Api) -> Store {
    let store = &api.options.shown.store;
    let pools = store.pools();
    let sum = |of: fn(&crate::store::PoolUsage) -> u64| pools.iter().map(of).fold(0, u64::saturating_add);
    Store {
        kind: api.options.store.kind,
        address: api.options.store.address.clone(),
        connected: store.is_reachable(),
        connections: sum(|pool| pool.connections),
        breakers_open: sum(|pool| pool.breakers_open),
        queued: sum(|pool| pool.queued),
        latency: api.history.store_latency(),
    }
}

fn overrides(api: &Api) -> Overrides {
    let keeper = &api.options.shown.keeper;
    let [limit, block, allow, shadow] = keeper.index().usage().by_action;
    Overrides { limit, block, allow, shadow, kept_in: keeper.place() }
}

fn usage(api: &Api) -> Option<StoreUsage> {
    api.options.shown.store.usage().or_else(|| api.options.shown.limiter.local_usage())
}

fn keys(usage: StoreUsage) -> Keys {
    let held = usage.held;
    Keys { held: held.entries, max: usage.max_keys, bytes: held.bytes, evicted: held.evicted }
}

/// The replicas that share the Redis, and the rules that each serves.
pub(super) fn replicas(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let known = &api.options.shown.replicas;
    Reply::json(&json!({
        "own": Replicas::own_id(),
        "serve_same_rules": known.by_rules_hash().len() <= 1,
        "replicas": known.list(),
    }))
}
