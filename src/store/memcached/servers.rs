//! The current servers: those of `MEMCACHE_HOST_PORT`, or the targets of `MEMCACHE_SRV`, which may change.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{info, warn};

use super::{
    backend::{Connection, MemcachedBackend},
    reply::KINDS,
};
use crate::{
    net::backoff::Backoff,
    panics,
    settings::memcached::{Memcached, MemcachedServers},
    store::{
        FailureReason, PoolUsage, StoreError, StoreKind,
        remote::{Bounds, ServerPool, Shared, client_metrics::ClientMetrics},
    },
};
use crate::{net::resolve::name_servers::NameServers, store::memcached::key};

/// The servers.
pub(super) struct Servers {
    pub(super) pool: ServerPool<MemcachedBackend, ()>,
}

impl Servers {
    /// Servers for this many worker threads.
    pub(super) fn new(settings: &Memcached, threads: usize) -> Result<Self, Vec<String>> {
        let shared = Shared {
            backend: MemcachedBackend::new(settings)?,
            metrics: ClientMetrics::default(),
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
        let connection = self.pool.connection(|known| Some(key::server_index(name, known.servers.len())));
        connection.ok_or_else(|| StoreError {
            reason: FailureReason::Unavailable,
            message: "memcached: no servers yet; see MEMCACHE_SRV".into(),
        })
    }

    /// The pool's metrics.
    pub(super) fn usage(&self) -> PoolUsage {
        let mut usage = self.pool.usage(StoreKind::Memcached);
        usage.errors.retain(|(name, _)| KINDS.iter().any(|kind| kind.name() == *name));
        usage
    }

    /// Resolves the SRV record until it succeeds, and then again at each `refresh`, if set.
    pub(super) async fn follow(
        &self,
        srv: &str,
        refresh: Option<Duration>,
        name_servers: impl Fn() -> NameServers,
    ) {
        let mut backoff = Backoff::reconnect();
        let mut known = Vec::new();
        let mut failed = false;
        loop {
            panics::point("store_discovery");
            let pause = match name_servers().services(srv).await {
                Ok(found) => {
                    if mem::replace(&mut known, found) != known {
                        info!(servers = ?known.iter().map(ToString::to_string).collect::<Vec<_>>(), "memcached: resolved {srv}");
                        self.pool.set_servers(&known, ());
                    }
                    failed = false;
                    backoff.reset();
                    let Some(refresh) = refresh else { return };
                    refresh
                }
                Err(why) => {
                    // The known servers stay in use.
                    if !mem::replace(&mut failed, true) {
                        warn!("memcached: cannot resolve MEMCACHE_SRV={srv}: {why}");
                    }
                    refresh.filter(|_| !known.is_empty()).unwrap_or_else(|| backoff.next_pause())
                }
            };
            sleep(pause).await;
        }
    }
}
