//! The store of counters, and the time limit of its operations.
//!
//! The Go service counts in Redis by default. Here Redis is the default if any variable of Redis is set, so that a clone
//! of the project starts with counters in memory.

use std::time::Duration;

use super::{
    duration::duration,
    memcached::{self, Memcached},
    parse::{InvalidValue, Value, exact_choice},
    reader::Reader,
    redis::{self, Redis},
    variable::Setting,
    vars,
};

/// The default timeout of Envoy's rate limit filter.
const ENVOY_TIMEOUT: Duration = Duration::from_millis(20);

/// The store of counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    /// In this process.
    Memory,
    /// In Redis, shared by all replicas.
    Redis(Box<Redis>),
    /// In memcached, shared by all replicas.
    Memcached(Box<Memcached>),
}

impl Backend {
    /// Its name in logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
            Self::Memcached(_) => "memcached",
        }
    }

    /// Its servers, without credentials; `None` for the memory of this process.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Memory => None,
            Self::Redis(redis) => {
                let second = redis.per_second.iter().map(|pool| format!(" per_second={}", pool.servers));
                Some([redis.main.servers.to_string()].into_iter().chain(second).collect())
            }
            Self::Memcached(memcached) => Some(memcached.servers.to_string()),
        }
    }
}

/// `BACKEND_TYPE`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum BackendType {
    /// `memory`.
    #[default]
    Memory,
    /// `redis`.
    Redis,
    /// `memcache`.
    Memcached,
}

impl Value for BackendType {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        exact_choice(text, &[("redis", Self::Redis), ("memcache", Self::Memcached), ("memory", Self::Memory)])
    }
}

/// The store, and whether it is only the default. Memory replaces a store whose settings were rejected.
pub(super) fn read(reader: &mut Reader<'_>) -> (Backend, bool) {
    let is_set = reader.is_set(&vars::BACKEND_TYPE);
    let has_redis = !reader.set_with_prefix("REDIS_").is_empty();
    let is_default = !is_set && !has_redis;
    if is_default {
        reader.warn_unused_prefix(&vars::BACKEND_TYPE, "memcache", "MEMCACHE_");
    }
    let chosen = if is_set || is_default { reader.read(&vars::BACKEND_TYPE) } else { BackendType::Redis };
    let backend = match chosen {
        BackendType::Memory => None,
        BackendType::Redis => redis::read(reader).map(|redis| Backend::Redis(Box::new(redis))),
        BackendType::Memcached => memcached::read(reader).map(|read| Backend::Memcached(Box::new(read))),
    };
    (backend.unwrap_or(Backend::Memory), is_default)
}

/// The time limit of an operation, whose default in the Go service is `go_default`.
pub(super) fn timeout(
    reader: &mut Reader<'_>,
    setting: &'static Setting<Duration>,
    go_default: Duration,
) -> Duration {
    let default = duration(setting.default).unwrap_or_default();
    let set = reader.read(setting);
    if set.is_zero() {
        reader.warn(setting, format!("0 would wait forever; using {default:?}"));
        return default;
    }
    if set > ENVOY_TIMEOUT {
        let default_of = if set == go_default { ", the Go service's default," } else { "" };
        let message = format!(
            "with {set:?}{default_of} a response may arrive after Envoy's timeout, {ENVOY_TIMEOUT:?} by default; \
             use {default:?}, or half of the `timeout` of Envoy's rate limit filter"
        );
        reader.warn(setting, message);
    }
    set
}
