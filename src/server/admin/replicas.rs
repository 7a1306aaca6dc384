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
    let known = &api.options.shown.replicas;
    Reply::json(&json!({
        "own": known.id(),
        "serve_same_rules": known.by_rules_hash().len() <= 1,
        "replicas": replicas(api),
    }))
}

/// The replicas; none where counters are not in Redis.
pub(super) fn replicas(api: &Api) -> Vec<Json> {
    api.options.shown.replicas.list().iter().map(Replica::to_json).collect()
}
