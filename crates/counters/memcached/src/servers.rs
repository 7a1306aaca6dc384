//! The current servers, which are those of `MEMCACHE_HOST_PORT` or the targets of `MEMCACHE_SRV`, and the owners of
//! keys. The names of keys and their servers are those of the Go service, so replicas of both share every counter that
//! it supports. Keys that memcached does not accept, because they are too long or contain spaces, are hashed.

use std::{borrow::Cow, mem, sync::Arc, time::Duration};

use tracing::Level;

use super::backend::{Connection, MemcachedBackend};
use crate::settings::{Memcached, MemcachedServers};
use counters::StoreError;
use faults::panics;
use metrics::{FailureReason, PoolUsage, StoreKind};
use net::{backoff::Backoff, edges::Edges, resolve::name_servers::NameServers};
use wire::{Bounds, ServerPool, Shared, failure::FailureKind, hashed};

const MAX_KEY: usize = 250;

/// The kinds of failure that memcached does not have.
const NOT_OF_MEMCACHED: [FailureKind; 7] = [
    FailureKind::Denied,
    FailureKind::Loading,
    FailureKind::ReadOnly,
    FailureKind::WritesDisabled,
    FailureKind::Busy,
    FailureKind::Moved,
    FailureKind::ClusterDown,
];

pub(super) struct Servers {
    pub(super) pool: ServerPool<MemcachedBackend, ()>,
}

impl Servers {
    /// Servers for this many worker threads. Returns every problem with the TLS files.
    pub(super) fn new(settings: &Memcached, threads: usize, edges: &Edges) -> Result<Self, Vec<String>> {
        let shared = Shared {
            backend: MemcachedBackend::new(settings, edges)?,
            edges: edges.clone(),
            metrics: Arc::default(),
            bounds: Bounds {
                timeout: settings.timeout,
                pipeline_window: Duration::ZERO,
                max_queued: settings.max_queued,
                startup_backoff: Backoff::reconnect(),
            },
        };
        let pool = ServerPool::new(shared, threads);
        if let MemcachedServers::Named(addresses) = &settings.servers {
            pool.set_servers(addresses, ());
        }
        Ok(Self { pool })
    }

    /// The calling thread's connection to the server that owns a key.
    pub(super) fn connection(&self, name: &str) -> Result<Arc<Connection>, StoreError> {
        let connection = self.pool.connection(|known| server_index(name, known.servers.len()));
        let message = "memcached: no servers yet; see MEMCACHE_SRV";
        connection.ok_or_else(|| StoreError::new(FailureReason::Unavailable, message))
    }

    pub(super) fn usage(&self) -> PoolUsage {
        let mut usage = self.pool.usage(StoreKind::Memcached);
        usage.errors.retain(|(name, _)| NOT_OF_MEMCACHED.iter().all(|kind| kind.name() != *name));
        usage
    }

    /// Resolves the SRV record until it succeeds, and then again at each `refresh`, if set.
    pub(super) async fn follow(
        &self,
        srv: &str,
        refresh: Option<Duration>,
        name_servers: impl Fn() -> NameServers,
    ) {
        let Shared { metrics, edges: Edges { timer, random, .. }, .. } = &*self.pool.shared;
        let mut backoff = Backoff::reconnect();
        let mut known = Vec::new();
        loop {
            panics::point("store_discovery");
            let pause = match name_servers().services(srv).await {
                Ok(found) => {
                    if mem::replace(&mut known, found) != known {
                        let shown: Vec<_> = known.iter().map(ToString::to_string).collect();
                        let resolved = format_args!("memcached: resolved {srv}: {}", shown.join(", "));
                        metrics.log(Level::INFO, "resolved", resolved);
                        self.pool.set_servers(&known, ());
                    }
                    backoff.reset();
                    let Some(refresh) = refresh else { return };
                    refresh
                }
                Err(why) => {
                    // The known servers stay in use.
                    let why = format!("memcached: cannot resolve MEMCACHE_SRV={srv}: {why}");
                    metrics.log(Level::WARN, FailureKind::Resolve.name(), &why);
                    metrics.keep(&why);
                    refresh.filter(|_| !known.is_empty()).unwrap_or_else(|| backoff.pause(random.fraction()))
                }
            };
            timer.sleep(pause).await;
        }
    }
}

/// The key in memcached: the counter's key if memcached accepts it, else its hash.
pub(super) fn key_name(key: &str) -> Cow<'_, str> {
    if is_accepted(key) { Cow::Borrowed(key) } else { Cow::Owned(hashed(key)) }
}

fn is_accepted(key: &str) -> bool {
    (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte > b' ' && byte != 0x7f)
}

/// The index of the server that owns a key, of this many; `None` if there are none.
fn server_index(name: &str, servers: usize) -> Option<usize> {
    (crc32fast::hash(name.as_bytes()) as usize).checked_rem(servers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksums_are_crc32() {
        for (text, sum) in [
            ("", 0),
            ("123456789", 0xcbf4_3926),
            ("The quick brown fox jumps over the lazy dog", 0x414f_a339),
        ] {
            assert_eq!(crc32fast::hash(text.as_bytes()), sum, "{text}");
        }
    }

    #[test]
    fn one_server_owns_every_key() {
        assert_eq!((server_index("d_k_v_120", 1), server_index("d_k_v_120", 0)), (Some(0), None));
    }

    #[test]
    fn accepted_keys_are_not_changed() {
        for key in ["d_k_v_120", "d_\u{fc}_\u{4f60}_120", &"x".repeat(250)] {
            assert_eq!(key_name(key), key);
        }
    }

    #[test]
    fn other_keys_are_hashed() {
        let long = "x".repeat(251);
        for key in ["a b", "a\r\nflush_all\r\n", "a\u{7f}", "\0", "", &long] {
            let name = key_name(key);
            assert!(
                name.starts_with("tollgate:") && name.len() == 73 && is_accepted(&name),
                "{key:?}: {name}"
            );
        }
        let of_space = "tollgate:36a9e7f1c95b82ffb99743e0c5c4ce95d83c9a430aac59f84ef3cbfab6145068";
        assert_eq!(key_name(" "), of_space, "every version uses the same name");
    }

    proptest! {
        #[test]
        fn every_name_is_accepted_and_unique(one in ".{0,300}", other in ".{0,300}") {
            prop_assert!(is_accepted(&key_name(&one)));
            prop_assert_eq!(key_name(&one) == key_name(&other), one == other);
        }

        #[test]
        fn an_index_is_below_the_number_of_servers(name in ".*", servers in 1_usize..100) {
            prop_assert!(server_index(&name, servers).is_some_and(|index| index < servers));
        }
    }
}
