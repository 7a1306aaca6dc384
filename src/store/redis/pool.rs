//! One Redis: its servers as they are known now, and the lanes to each.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
};

use super::{
    backend::{Lane, RedisBackend},
    name::Names,
    permissions::Needs,
    seen::Seen,
    topology::{Servers, Topology},
    wire::Dialer,
};
use crate::{
    net::backoff::Pace,
    panics::{self, Boundary, Panicked},
    settings::redis::{RedisAddress, RedisPool, RedisServers, Startup},
    store::{
        Batch, Check, FailureReason, PoolUsage, StoreError, StoreKind,
        remote::{Bounds, Fleet, Shared, client_metrics::Meters},
    },
};

/// One Redis.
pub(super) struct Pool {
    pub(super) fleet: Fleet<RedisBackend, Arc<Servers>>,
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
                seen: Seen::new(jitter),
                only_masters: matches!(settings.servers, RedisServers::Sentinel { .. }),
                user: settings.credentials.as_ref().and_then(|login| login.user.clone()),
                needs: AtomicU8::new(Needs::COUNTERS.bits()),
                cannot_extend: AtomicBool::new(false),
            },
            meters: Meters::default(),
            bounds: Bounds {
                timeout: settings.timeout,
                pipeline_window: settings.pipeline_window,
                max_queued: settings.max_queued,
                at_start: Pace::at_start(&startup),
            },
        };
        let pool = Self {
            // One lane for each thread that asks, as far as connections are allowed.
            fleet: Fleet::new(shared, threads.min(settings.connections)),
            cluster: matches!(settings.servers, RedisServers::Cluster { .. }),
            names: Names::new(key_prefix),
        };
        pool.follow();
        Ok(pool)
    }

    /// What its lanes know of it.
    pub(super) fn backend(&self) -> &RedisBackend {
        &self.fleet.shared.backend
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
            self.fleet.each_lane(|lane| drop(lane.ask(0, None, |bundle| bundle.check(needs))));
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

    /// Opens lanes to servers that are new, and ends those to servers that are gone.
    fn follow(&self) {
        let servers = self.backend().topology.servers();
        self.fleet.meet(&servers.masters, servers.clone());
    }

    /// The lane on which this thread asks for a key.
    ///
    /// # Errors
    /// When no server is known that owns it.
    pub(super) fn lane(&self, key: &str) -> Result<Arc<Lane>, StoreError> {
        self.fleet.lane(|known| known.owners.owner(key.as_bytes())).ok_or_else(|| {
            self.backend().topology.doubt();
            StoreError {
                reason: FailureReason::Unavailable,
                message: "redis: no master is known that owns the key".into(),
            }
        })
    }

    /// The lane to a server that was named instead of another.
    pub(super) fn lane_to(&self, address: &RedisAddress) -> Option<Arc<Lane>> {
        self.fleet.lane(|known| known.owners.masters.iter().position(|master| master == address))
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
        self.fleet.usage(if per_second { StoreKind::RedisPerSecond } else { StoreKind::Redis })
    }
}
