//! Which store counts, and what becomes of a request when it cannot be reached.
//!
//! The Go service counts in Redis unless it is told otherwise. Here the same is true as soon as anything is
//! said of Redis; with nothing said at all a clone of the project counts in memory, and serves at once.

use std::path::Path;

use super::{
    absent,
    groups::{Backend, OnFailure},
    parse::Refusal,
    reader::Reader,
    redis, vars,
};

/// What counts, and whether nobody chose it.
pub(super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> (Backend, bool) {
    let is_chosen = reader.is_set(vars::BACKEND_TYPE);
    let of_redis = |name: &str| name.starts_with("REDIS_");
    let names_redis = vars::ALL.iter().any(|var| of_redis(var.name) && reader.is_set(*var));
    let is_redis = if is_chosen { reader.parsed(vars::BACKEND_TYPE, is_redis) } else { names_redis };
    let by_default = !is_chosen && !names_redis;
    if by_default {
        absent::check_memcached(reader);
    }
    // What cannot be read has been told, and memory stands in for it.
    let redis = if is_redis { redis::read(reader, exists) } else { None };
    (redis.map_or(Backend::Memory, |redis| Backend::Redis(Box::new(redis))), by_default)
}

fn is_redis(text: &str) -> Result<bool, Refusal> {
    match text {
        "redis" => Ok(true),
        "memory" => Ok(false),
        _ => Err(Refusal::new("redis or memory").with_hint(absent::help_for_backend(text))),
    }
}

/// What becomes of a request whose counters cannot be reached, by its name in any case.
pub(super) fn on_failure(text: &str) -> Result<OnFailure, Refusal> {
    match text.to_ascii_lowercase().as_str() {
        "error" => Ok(OnFailure::Error),
        "allow" => Ok(OnFailure::Allow),
        "deny" => Ok(OnFailure::Deny),
        "local" => Ok(OnFailure::Local),
        _ => Err(Refusal::new("error, allow, deny or local, in any case")),
    }
}
