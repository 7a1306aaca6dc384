//! Settings of the Go service that this version does not have, and what becomes of them.
//!
//! What would weaken a deployment if it were passed over is refused; the rest is warned of. Each of
//! these lines goes when its feature comes.

use super::reader::Reader;

/// Variables of the Go service that ask for memcached.
pub(super) const MEMCACHED: [&str; 2] = ["MEMCACHE_HOST_PORT", "MEMCACHE_SRV"];

/// Looks for what asks for memcached where nobody says what is to count.
pub(super) fn check_memcached(reader: &mut Reader<'_>) {
    for name in MEMCACHED {
        if reader.names(name) {
            reader.warn_of(
                name,
                "does nothing in this version, which has no memcached: set REDIS_URL to share counters",
            );
        }
    }
}

/// What to do about a `BACKEND_TYPE` that is not there.
pub(super) fn help_for_backend(text: &str) -> &'static str {
    match text {
        "memcache" => {
            "this version has no memcached: set it to redis, with REDIS_URL, or to memory, where each replica \
             counts by itself"
        }
        _ => "write it in small letters",
    }
}
