//! `GET /api/v1/replicas`: the replicas that share the Redis, and the rules that each serves.

use serde_json::{Value as Json, json};

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use crate::replicas::Replica;

/// The replicas.
pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    Reply::json(&replicas(api))
}

/// `{"own", "serve_same_rules", "replicas"}`; no replicas where counters are not in Redis.
pub(super) fn replicas(api: &Api) -> Json {
    let known = &api.options.shown.replicas;
    let replicas: Vec<Json> = known.list().iter().map(Replica::to_json).collect();
    json!({
        "own": known.id(),
        "serve_same_rules": known.by_rules_hash().len() <= 1,
        "replicas": replicas,
    })
}
