//! The servers as they are known now, and whose a key is.
//!
//! A key belongs to the server that `name` says, by the order of the servers. They are those of the settings,
//! or what a name server tells of them, which may change.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::{info, warn};

use super::{
    backend::{Connection, MemcachedBackend},
    dialer::Dialer,
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

/// Who is asked.
pub(super) struct Servers {
    pub(super) pool: ServerPool<MemcachedBackend, ()>,
}

impl Servers {
    /// Servers that so many threads will ask.
    ///
    /// # Errors
    /// All that is wrong with the files that the settings name.
    pub(super) fn new(settings: &Memcached, threads: usize) -> Result<Self, Vec<String>> {
        let shared = Shared {
            backend: MemcachedBackend { dialer: Dialer::new(settings)? },
            metrics: ClientMetrics::default(),
            bounds: Bounds {
                timeout: settings.timeout,
                pipeline_window: Duration::ZERO,
                max_queued: settings.max_queued,
                at_start: Backoff::again(),
            },
        };
        let pool = ServerPool::new(shared, threads);
        if let MemcachedServers::Named(addresses) = &settings.servers {
            pool.meet(addresses, ());
        }
        Ok(Self { pool })
    }

    /// The connection on which this thread asks for a counter of this name.
    ///
    /// # Errors
    /// While no server is known.
    pub(super) fn connection(&self, name: &str) -> Result<Arc<Connection>, StoreError> {
        let connection = self.pool.connection(|known| Some(key::place(name, known.servers.len())));
        connection.ok_or_else(|| StoreError {
            reason: FailureReason::Unavailable,
            message: "memcached: no server is known yet; see MEMCACHE_SRV".into(),
        })
    }

    /// How the connections fare.
    pub(super) fn usage(&self) -> PoolUsage {
        let mut usage = self.pool.usage(StoreKind::Memcached);
        usage.errors.retain(|(name, _)| KINDS.iter().any(|kind| kind.name() == *name));
        usage
    }

    /// Looks the servers up until they are found, and then, if that is wanted, again and again.
    pub(super) async fn follow(
        &self,
        srv: &str,
        refresh: Option<Duration>,
        name_servers: impl Fn() -> NameServers,
    ) {
        let mut pace = Backoff::again();
        let mut known = Vec::new();
        let mut failed = false;
        loop {
            panics::point("store_discovery");
            let pause = match name_servers().services(srv).await {
                Ok(found) => {
                    if mem::replace(&mut known, found) != known {
                        info!(servers = ?known.iter().map(ToString::to_string).collect::<Vec<_>>(), "memcached: found by {srv}");
                        self.pool.meet(&known, ());
                    }
                    failed = false;
                    pace.reset();
                    let Some(refresh) = refresh else { return };
                    refresh
                }
                Err(why) => {
                    // Those that are known are asked on.
                    if !mem::replace(&mut failed, true) {
                        warn!("memcached: the name servers tell no server for MEMCACHE_SRV={srv}: {why}");
                    }
                    refresh.filter(|_| !known.is_empty()).unwrap_or_else(|| pace.pause())
                }
            };
            sleep(pause).await;
        }
    }
}
