//! Where hits are counted.
//!
//! The Go service counts in Redis by default. Here the same is true as soon as any variable of Redis is set; without
//! one a clone of the project counts in memory, and serves at once.

use std::path::Path;

use super::{
    groups::Backend,
    memcached,
    parse::{InvalidValue, Value},
    reader::Reader,
    redis, vars,
};

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
        match text {
            "memory" => Ok(Self::Memory),
            "redis" => Ok(Self::Redis),
            "memcache" => Ok(Self::Memcached),
            _ => Err(InvalidValue::new("redis, memcache or memory").with_hint(match text {
                "memcached" => "write memcache",
                _ => "write it in small letters",
            })),
        }
    }
}

/// Where hits are counted, and whether that is only the default.
pub(super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> (Backend, bool) {
    let is_set = reader.is_set(&vars::BACKEND_TYPE);
    let has_redis = !reader.set_with_prefix("REDIS_").is_empty();
    let is_default = !is_set && !has_redis;
    if is_default {
        memcached::warn_of_unused(reader);
    }
    let chosen = if is_set || is_default { reader.read(&vars::BACKEND_TYPE) } else { BackendType::Redis };
    let backend = match chosen {
        BackendType::Memory => None,
        BackendType::Redis => redis::read(reader, exists).map(|redis| Backend::Redis(Box::new(redis))),
        BackendType::Memcached => {
            memcached::read(reader, exists).map(|memcached| Backend::Memcached(Box::new(memcached)))
        }
    };
    // What cannot be read has been refused, and memory stands in for it.
    (backend.unwrap_or(Backend::Memory), is_default)
}
