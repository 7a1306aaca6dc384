//! One Redis: its servers as they are known now, and the connections to each.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
};

use super::{
    backend::{Connection, RedisBackend},
    name::Names,
    permissions::Needs,
    topology::{Servers, Topology},
    ttl_cache::TtlCache,
    wire::Dialer,
};
use crate::{
    net::backoff::Backoff,
    panics::{self, Boundary, Panicked},
    settings::redis::{RedisAddress, RedisPool, RedisServers, Startup},
    store::{
        Batch, Check, FailureReason, PoolUsage, StoreError, StoreKind,
        remote::{Bounds, ServerPool, Shared, client_metrics::ClientMetrics},
    },
};

/// One Redis.
pub(super) struct Pool {
    pub(super) servers: ServerPool<RedisBackend, Arc<Servers>>,
    cluster: bool,
    names: Names,
}

impl Pool {
    /// A Redis that so many threads will ask.
    ///
    /// # Errors
    /// All that is wrong with the files it names.
    pub(super) fn new(
        settings: &RedisPool,
        startup: Startup,
        key_prefix: &str,
        jitter: u64,
        threads: usize,
    ) -> Result<Self, Vec<String>> {
        let shared = Shared {
            backend: RedisBackend {
                dialer: Dialer::new(settings)?,
                topology: Topology::new(settings)?,
                seen: TtlCache::new(jitter),
                only_masters: matches!(settings.servers, RedisServers::Sentinel { .. }),
                user: settings.credentials.as_ref().and_then(|login| login.user.clone()),
                needs: AtomicU8::new(Needs::COUNTERS.bits()),
                cannot_extend: AtomicBool::new(false),
            },
            metrics: ClientMetrics::default(),
            bounds: Bounds {
                timeout: settings.timeout,
                pipeline_window: settings.pipeline_window,
                max_queued: settings.max_queued,
                at_start: Backoff::at_start(&startup),
            },
        };
        let pool = Self {
            // One connection for each thread that asks, as far as connections are allowed.
            servers: ServerPool::new(shared, threads.min(settings.connections)),
            cluster: matches!(settings.servers, RedisServers::Cluster { .. }),
            names: Names::new(key_prefix),
        };
        pool.follow();
        Ok(pool)
    }

    /// What its connections know of it.
    pub(super) fn backend(&self) -> &RedisBackend {
        &self.servers.shared.backend
    }

    /// The rules need these commands from now on: where some are new, every connection checks them.
    pub(super) fn need(&self, needs: Needs) {
        // Requests are stopped when over by a setting, which rules do not know.
        let kept = |bits| Some(needs.bits() | bits & Needs::WHOLE_REQUESTS.bits());
        self.need_by(needs, kept);
    }

    /// A request needs these commands.
    pub(super) fn need_too(&self, needs: Needs) {
        if !Needs::from_bits(self.backend().needs.load(Relaxed)).include(needs) {
            self.need_by(needs, |bits| Some(bits | needs.bits()));
        }
    }

    fn need_by(&self, needs: Needs, change: impl FnMut(u8) -> Option<u8>) {
        let before = self.backend().needs.fetch_update(Relaxed, Relaxed, change);
        if before.is_ok_and(|before| !Needs::from_bits(before).include(needs)) {
            // Who connects later checks then.
            self.servers.each_connection(|connection| {
                drop(connection.ask(0, None, |pipeline| pipeline.check(needs)));
            });
        }
    }

    /// Follows the servers as they change. Called once, within a runtime.
    pub(super) fn watch(self: &Arc<Self>) {
        let topology = &self.backend().topology;
        topology.watch();
        let mut changes = topology.changes();
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(pool) = pool.upgrade() else { return };
                while let Err(Panicked) = panics::catch(Boundary::StoreDiscovery, || pool.follow()) {
                    panics::pause().await;
                }
            }
        });
    }

    /// Opens connections to servers that are new, and ends those to servers that are gone.
    fn follow(&self) {
        let servers = self.backend().topology.servers();
        self.servers.meet(&servers.masters, servers.clone());
    }

    /// The connection on which this thread asks for a key.
    ///
    /// # Errors
    /// When no server is known that owns it.
    pub(super) fn connection(&self, key: &str) -> Result<Arc<Connection>, StoreError> {
        self.servers.connection(|known| known.owners.owner(key.as_bytes())).ok_or_else(|| {
            self.backend().topology.request_refresh();
            StoreError {
                reason: FailureReason::Unavailable,
                message: "redis: no master is known that owns the key".into(),
            }
        })
    }

    /// The connection to a server that was named instead of another.
    pub(super) fn lane_to(&self, address: &RedisAddress) -> Option<Arc<Connection>> {
        self.servers.connection(|known| known.owners.masters.iter().position(|master| master == address))
    }

    /// The name of a check's counter.
    pub(super) fn name<'b>(&self, batch: &'b Batch<'_>, check: &Check<'_>) -> Cow<'b, str> {
        self.names.of(batch, check)
    }

    /// True when keys of different slots cannot be counted in one step.
    pub(super) fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// How the connections fare.
    pub(super) fn usage(&self, per_second: bool) -> PoolUsage {
        self.servers.usage(if per_second { StoreKind::RedisPerSecond } else { StoreKind::Redis })
    }
}
