//! Settings of the Go service that this version does not have, and what becomes of them.
//!
//! What would weaken a deployment if it were passed over is refused; the rest is warned of. Each of
//! these lines goes when its feature comes.

use super::{groups::Backend, parse::Refusal, reader::Reader, vars};

/// Looks for what this version lacks.
pub(super) fn check(reader: &mut Reader<'_>) {
    reader.parsed(vars::CONFIG_TYPE, |text| match text {
        "FILE" => Ok(()),
        _ => Err(Refusal::new("FILE").with_hint(match text {
            "GRPC_XDS_SOTW" => "this version reads rules from files only: unset it and mount the rules",
            _ => "write it in capitals, or unset it",
        })),
    });
    if reader.flag(vars::GRPC_SERVER_USE_TLS) {
        let hint = "this version has no TLS, and what asked for it is not served without: \
            let a sidecar end TLS, or set it to false";
        reader.refuse(
            vars::GRPC_SERVER_USE_TLS,
            Some("true".to_owned()),
            Refusal::new("false").with_hint(hint),
        );
    }
    if reader.flag(vars::TRACING_ENABLED) {
        reader.warn(vars::TRACING_ENABLED, "does nothing in this version");
    }
}

/// Variables of the Go service that ask for counters shared by replicas, though they name no server.
pub(super) const SHARED_COUNTERS: [&str; 7] = [
    "REDIS_SOCKET_TYPE",
    "REDIS_TYPE",
    "REDIS_AUTH",
    "REDIS_TLS",
    "REDIS_PERSECOND",
    "MEMCACHE_HOST_PORT",
    "MEMCACHE_SRV",
];

/// What counts, and whether nobody chose it.
pub(super) fn backend(reader: &mut Reader<'_>) -> (Backend, bool) {
    let instead = "this version counts in memory only, each replica by itself: \
        set BACKEND_TYPE=memory to accept that";
    let (has_backend, has_redis) = (reader.is_set(vars::BACKEND_TYPE), reader.is_set(vars::REDIS_URL));
    reader.parsed(vars::BACKEND_TYPE, |text| match text {
        "memory" => Ok(()),
        _ => Err(Refusal::new("memory").with_hint(instead)),
    });
    if has_redis && !has_backend {
        // The value is not told: it may hold a password.
        reader.refuse(vars::REDIS_URL, None, Refusal::new("nothing").with_hint(instead));
    }
    let by_default = !has_backend && !has_redis;
    if by_default {
        for name in SHARED_COUNTERS {
            if reader.names(name) {
                reader.warn_of(name, "does nothing in this version, which counts in memory only");
            }
        }
    }
    (Backend::Memory, by_default)
}
