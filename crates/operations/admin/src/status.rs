//! `GET /api/v1/status`: version, rules, store, rates and memory; and `GET /api/v1/replicas`.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{
    Api,
    changes::few,
    history::latency,
    not_enforced::{self, Enforced},
    reply::{Call, Problem, Reply},
    view::{MAX_PUBLISHED, Parts, THIS, View},
};
use api::{
    KeysInMemory, Memory, MemoryBound, OrUnknown, OverridesStatus, RejectedRules, Replica, Replicas,
    Requests, RulesStatus, Status, StoreStatus,
};
use clock::{Clock, Rfc3339, SystemClock};
use faults::OnStoreFailure;
use fleet::{Merged, Summary, TURNED_OFF, own_id};
use metrics::{PoolUsage, StoreUsage};
use rules_source::ReloadState;
use text::cut_owned;

/// The maximum number of errors of the last load; the log has all of them.
const MAX_ERRORS: usize = 10;

pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    of_view(api, &api.view(&call.query, Parts::default()).await?).await
}

pub(super) async fn of_view(api: &Api, View { merged, whose }: &View) -> Result<Reply, Problem> {
    if let Json::Object(published) = &merged.status {
        let mut status = published.clone();
        status.insert("scope".to_owned(), whose.scope.clone().into());
        return Reply::json(api, &status);
    }
    let replicas = match whose.replicas {
        Some(OrUnknown::Known(_)) => OrUnknown::Known(members(api).await.unwrap_or_default()),
        _ => OrUnknown::UNKNOWN,
    };
    Reply::json(api, &status(api, merged, &whose.scope, Some(replicas)))
}

/// The status of this replica, with the rates and latencies of a view.
fn status(api: &Api, merged: &Merged, scope: &str, replicas: Option<OrUnknown<Vec<Replica>>>) -> Status {
    let managed = &api.managed;
    let started = api.managed.started;
    let now = SystemClock.now();
    let [limit, block, allow, shadow, scale] = managed.keeper.index().usage().by_action;
    let known = replicas.as_ref().and_then(OrUnknown::known).map(Vec::as_slice);
    let not_enforced = not_enforced::shown(&merged.not_enforced, known.unwrap_or_default());
    let is_out = managed.outages.current().is_some();
    let policies = if is_out { managed.limiter.failure_policies() } else { Vec::new() };
    let deciding: Vec<_> = policies.iter().map(|(policy, _)| *policy).collect();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: managed.stats.commit.to_owned(),
        zone_data: limit::calendar::zone::data_version().to_owned(),
        time: Rfc3339(now).to_string(),
        started_at: Rfc3339(started).to_string(),
        uptime_seconds: now.seconds().saturating_sub(started.seconds()),
        read_only: api.access.read_only,
        token_file_failure: api.access.tokens.as_ref().and_then(|tokens| tokens.failure()),
        key_values: managed.recent.values().name().to_owned(),
        enforced: Enforced::of(&not_enforced, &deciding).name().to_owned(),
        not_enforced,
        rules: rules(api),
        store: store(api),
        policy: managed.limiter.policy().on_store_failure.name().to_owned(),
        callers: callers(api, merged.without_store),
        requests: Requests { per_second: merged.per_second.into(), total: merged.total.into() },
        latency: latency(&merged.latency),
        answers: merged.answers,
        unmatched: merged.unmatched_total.clone(),
        replica: own_id().to_owned(),
        scope: scope.to_owned(),
        memory: memory(api),
        replicas,
        overrides: OverridesStatus {
            limit,
            block,
            allow,
            shadow,
            scale,
            kept_in: managed.keeper.storage().to_owned(),
            failure: managed.keeper.failure(),
            owed: managed.keeper.owed(),
        },
    }
}

fn memory(api: &Api) -> Memory {
    let managed = &api.managed;
    let keys = managed.store.usage().or_else(|| managed.limiter.local_usage());
    let keys = keys.map(|StoreUsage { held, max_keys }| KeysInMemory {
        held: held.entries,
        max: max_keys,
        bytes: held.bytes,
        evicted: held.evicted,
        evicted_over_limit: held.evicted_over,
    });
    let memory = Memory { resident_bytes: allocator::resident_bytes(), keys, ..Memory::default() };
    let Some((limit, set_by, parts)) = (managed.memory)() else { return memory };
    let parts = parts.into_iter().filter(|part| part.bytes > 0);
    let parts = parts.map(|part| (part.name.to_owned(), MemoryBound { bytes: part.bytes, used: part.used }));
    Memory {
        limit_bytes: Some(limit),
        limit_set_by: Some(set_by.to_owned()),
        bounds: Some(parts.collect()),
        ..memory
    }
}

fn rules(api: &Api) -> RulesStatus {
    let state = api.managed.source.state();
    let last_error = state.last_error.map(|(at, errors)| RejectedRules {
        at: Rfc3339(at).to_string(),
        errors: errors.iter().take(MAX_ERRORS).map(ToString::to_string).collect(),
    });
    RulesStatus {
        is_current: state.is_current,
        hash: state.last_success.map(|_| format!("{:016x}", state.hash)),
        loaded_at: state.last_success.map(|at| Rfc3339(at).to_string()),
        files: state.files,
        domains: state.domains,
        rules: state.rules,
        warnings: state.warnings,
        last_error,
    }
}

fn store(api: &Api) -> StoreStatus {
    let store = &api.managed.store;
    let pools = store.pools();
    let sum = |number: fn(&PoolUsage) -> u64| pools.iter().map(number).fold(0, u64::saturating_add);
    let outage = api.managed.outages.current();
    StoreStatus {
        kind: api.managed.store_kind.to_owned(),
        address: api.managed.store_address.clone(),
        connected: outage.as_ref().is_none_or(|outage| outage.is_connected),
        since: outage.as_ref().map(|outage| Rfc3339(outage.since).to_string()),
        error: outage.as_ref().map(|outage| outage.error.to_string()),
        // The latencies are those of the last minute, so of the time before.
        stale: outage.is_some(),
        connections: sum(|pool| pool.connections),
        breakers_open: sum(|pool| pool.breakers_open),
        queued: sum(|pool| pool.queued),
        latency: latency(&api.history.store_latency()),
    }
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
            OnStoreFailure::Share => "counted by each replica against its share of the limits",
        };
        let decided = policies.iter().find(|(known, _)| *known == policy);
        let domains = decided.filter(|_| several).map(|(_, domains)| format!(" ({})", few(domains)));
        let domains = domains.unwrap_or_default();
        let is_shown = rate > 0.0 || decided.is_some();
        is_shown.then(|| format!("{}{domains}: {rate:.0}/s {effect}", policy.name()))
    };
    rates.filter_map(line).collect()
}

/// `GET /api/v1/replicas`: the replicas that share the Redis, and the rules of each.
pub(super) async fn get_replicas(api: &Api, _: &Call<'_>) -> Result<Reply, Problem> {
    replicas(api).await
}

pub(super) async fn replicas(api: &Api) -> Result<Reply, Problem> {
    let own = own_id().to_owned();
    let Ok(members) = members(api).await else {
        return Reply::json(api, &Replicas { own, ..Replicas::default() });
    };
    let first = members.first().map(|one| &one.rules_hash);
    let is_same = members.iter().all(|one| Some(&one.rules_hash) == first);
    Reply::json(
        api,
        &Replicas { own, serve_same_rules: OrUnknown::Known(is_same), replicas: OrUnknown::Known(members) },
    )
}

/// This replica and the others; an error if these are unknown.
async fn members(api: &Api) -> Result<Vec<Replica>, String> {
    let own = Replica { summary: "published".to_owned(), ..api.announcement() };
    let members = if api.managed.fleet.is_shared() { api.members().await? } else { Arc::default() };
    let others = members.iter().map(|member| &member.replica).filter(|replica| replica.id != own.id);
    let mut all: Vec<_> = others.chain([&own]).cloned().collect();
    all.sort_by(|one, other| one.id.cmp(&other.id));
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
        let status = serde_json::to_value(status(self, &summary, THIS, None)).unwrap_or_default();
        Some(Summary { status, ..summary }.packed())
    }

    /// How this replica announces itself.
    pub fn announcement(&self) -> Replica {
        let managed = &self.managed;
        let rates = self.history.rates();
        let state = managed.source.state();
        let overrides = managed.keeper.index().usage();
        let summary = if managed.fleet.publishes() { "published" } else { TURNED_OFF };
        Replica {
            id: own_id().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rules_hash: state.last_success.map(|_| overrides.with_zone_data(state.hash)),
            requests_per_second: whole(rates.ok + rates.over_limit + rates.error),
            started: managed.started.seconds(),
            age_seconds: 0,
            summary: summary.to_owned(),
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
