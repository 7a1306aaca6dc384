//! Which store counts, and what becomes of a request when it cannot be reached.
//!
//! The Go service counts in Redis unless it is told otherwise. Here the same is true as soon as anything is
//! said of Redis; with nothing said at all a clone of the project counts in memory, and serves at once.

use std::path::Path;

use super::{
    groups::{Backend, Counting, KeyFormat, OnFailure},
    memcached,
    parse::InvalidValue,
    reader::Reader,
    redis, vars,
};

/// What may be chosen.
#[derive(Clone, Copy, Default)]
enum Choice {
    #[default]
    Memory,
    Redis,
    Memcached,
}

/// What counts, and whether nobody chose it.
pub(super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> (Backend, bool) {
    let is_chosen = reader.is_set(vars::BACKEND_TYPE);
    let of_redis = |name: &str| name.starts_with("REDIS_");
    let names_redis = vars::ALL.iter().any(|var| of_redis(var.name) && reader.is_set(*var));
    let by_default = !is_chosen && !names_redis;
    if by_default {
        memcached::warn_of_unused(reader);
    }
    let choice = if is_chosen {
        reader.parsed(vars::BACKEND_TYPE, choice)
    } else if names_redis {
        Choice::Redis
    } else {
        Choice::Memory
    };
    let chosen = match choice {
        Choice::Memory => None,
        Choice::Redis => redis::read(reader, exists).map(|redis| Backend::Redis(Box::new(redis))),
        Choice::Memcached => {
            memcached::read(reader, exists).map(|memcached| Backend::Memcached(Box::new(memcached)))
        }
    };
    // What cannot be read has been told, and memory stands in for it.
    (chosen.unwrap_or(Backend::Memory), by_default)
}

fn choice(text: &str) -> Result<Choice, InvalidValue> {
    match text {
        "memory" => Ok(Choice::Memory),
        "redis" => Ok(Choice::Redis),
        "memcache" => Ok(Choice::Memcached),
        _ => Err(InvalidValue::new("redis, memcache or memory").with_hint(match text {
            "memcached" => "write memcache",
            _ => "write it in small letters",
        })),
    }
}

/// How counters are named in a store that others share, by its name in any case.
pub(super) fn key_format(text: &str) -> Result<KeyFormat, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "compatible" => Ok(KeyFormat::Compatible),
        "unambiguous" => Ok(KeyFormat::Unambiguous),
        _ => Err(InvalidValue::new("compatible or unambiguous, in any case")),
    }
}

/// How replicas share a counter, by its name in any case.
pub(super) fn counting(text: &str) -> Result<Counting, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "exact" => Ok(Counting::Exact),
        "leased" => Ok(Counting::Leased),
        _ => Err(InvalidValue::new("exact or leased, in any case")),
    }
}

/// What becomes of a request whose counters cannot be reached, by its name in any case.
pub(super) fn on_failure(text: &str) -> Result<OnFailure, InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "error" => Ok(OnFailure::Error),
        "allow" => Ok(OnFailure::Allow),
        "deny" => Ok(OnFailure::Deny),
        "local" => Ok(OnFailure::Local),
        _ => Err(InvalidValue::new("error, allow, deny or local, in any case")),
    }
}
