//! The store of counters.
//!
//! The Go service counts in Redis by default. Here Redis is the default if any variable of Redis is set, so that a clone
//! of the project starts with counters in memory.

use super::{
    memcached::{self, Memcached},
    reader::Reader,
    redis::{self, Redis},
    values::BackendType,
    vars,
};

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
