//! One Redis: its servers as they are known now, and the lanes to each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use super::{
    lane::Lane,
    meters::Meters,
    seen::Seen,
    topology::{Servers, Topology},
    wire::Dialer,
};
use crate::{
    settings::redis::{RedisAddress, RedisPool, RedisServers, Startup},
    store::{FailureReason, PoolUsage, StoreError, StoreKind},
};

/// What all lanes of a Redis share.
pub(super) struct Shared {
    pub(super) dialer: Dialer,
    pub(super) topology: Topology,
    pub(super) seen: Seen,
    pub(super) meters: Meters,
    pub(super) startup: Startup,
    pub(super) bounds: Bounds,
    /// A server that says it is a replica is not asked.
    pub(super) only_masters: bool,
}

/// How long and how much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) timeout: std::time::Duration,
    pub(super) pipeline_window: std::time::Duration,
    pub(super) max_queued: usize,
}

/// One Redis.
pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    cluster: bool,
    /// Lanes to each server: one for each thread that asks, as far as connections are allowed.
    lanes_each: usize,
    routes: ArcSwap<Routes>,
    /// The threads that run lanes, by their seats.
    threads: Mutex<Vec<Option<Handle>>>,
}

/// Whom to ask.
struct Routes {
    servers: Arc<Servers>,
    /// The lanes to each master, in the order of the masters.
    lanes: Vec<Vec<Arc<Lane>>>,
}

impl Pool {
    /// A Redis that so many threads will ask.
    ///
    /// # Errors
    /// All that is wrong with the files it names.
    pub(super) fn new(
        settings: &RedisPool,
        startup: Startup,
        jitter: u64,
        threads: usize,
    ) -> Result<Self, Vec<String>> {
        let shared = Arc::new(Shared {
            dialer: Dialer::new(settings)?,
            topology: Topology::new(settings)?,
            seen: Seen::new(jitter),
            meters: Meters::default(),
            startup,
            bounds: Bounds {
                timeout: settings.timeout,
                pipeline_window: settings.pipeline_window,
                max_queued: settings.max_queued,
            },
            only_masters: matches!(settings.servers, RedisServers::Sentinel { .. }),
        });
        let lanes_each = threads.min(settings.connections).max(1);
        let servers = shared.topology.servers();
        let lanes = servers.masters.iter().map(|master| lanes(master, &shared, lanes_each)).collect();
        Ok(Self {
            shared,
            cluster: matches!(settings.servers, RedisServers::Cluster { .. }),
            lanes_each,
            routes: ArcSwap::from_pointee(Routes { servers, lanes }),
            threads: Mutex::new(vec![None; lanes_each]),
        })
    }

    /// The calling thread takes a seat: from now on it runs that seat's lanes.
    pub(super) fn attend(&self, seat: usize) {
        let mut threads = self.threads();
        let Some(place) = threads.get_mut(seat) else { return };
        let handle = Handle::current();
        for lane in self.routes.load().lanes.iter().filter_map(|each| each.get(seat)) {
            handle.spawn(lane.clone().run());
        }
        *place = Some(handle);
    }

    /// Follows the servers as they change. Called once, within a runtime.
    pub(super) fn watch(self: &Arc<Self>) {
        self.shared.topology.watch();
        let pool = Arc::downgrade(self);
        let mut changes = self.shared.topology.changes();
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(pool) = pool.upgrade() else { return };
                pool.follow();
            }
        });
    }

    /// Opens lanes to servers that are new, and ends those to servers that are gone.
    fn follow(&self) {
        let threads = self.threads();
        let known = self.routes.load_full();
        let servers = self.shared.topology.servers();
        let lanes_of = |master: &RedisAddress| {
            if let Some(at) = known.servers.masters.iter().position(|other| other == master) {
                return known.lanes[at].clone();
            }
            let lanes = lanes(master, &self.shared, self.lanes_each);
            for (lane, thread) in lanes.iter().zip(threads.iter()) {
                if let Some(thread) = thread {
                    thread.spawn(lane.clone().run());
                }
            }
            lanes
        };
        let lanes = servers.masters.iter().map(lanes_of).collect();
        let gone = known.servers.masters.iter().zip(&known.lanes);
        let gone = gone.filter(|(master, _)| !servers.masters.contains(master));
        let gone: Vec<Arc<Lane>> = gone.flat_map(|(_, lanes)| lanes.clone()).collect();
        self.routes.store(Arc::new(Routes { servers, lanes }));
        for lane in gone {
            lane.end();
        }
    }

    /// The lane on which this thread asks for a key.
    ///
    /// # Errors
    /// When no server is known that owns it.
    pub(super) fn lane(&self, key: &str, seat: usize) -> Result<Arc<Lane>, StoreError> {
        let routes = self.routes.load();
        let owner = routes.servers.owner(key.as_bytes());
        let lanes = owner.and_then(|owner| routes.lanes.get(owner));
        let lane = lanes.and_then(|lanes| lanes.get(seat % lanes.len().max(1)));
        lane.cloned().ok_or_else(|| {
            self.shared.topology.doubt();
            StoreError {
                reason: FailureReason::Unavailable,
                message: "redis: no master is known that owns the key".into(),
            }
        })
    }

    /// The lane to a server that was named instead of another.
    pub(super) fn lane_to(&self, address: &RedisAddress, seat: usize) -> Option<Arc<Lane>> {
        let routes = self.routes.load();
        let at = routes.servers.masters.iter().position(|master| master == address)?;
        let lanes = &routes.lanes[at];
        lanes.get(seat % lanes.len().max(1)).cloned()
    }

    /// True when keys of different slots cannot be counted in one step.
    pub(super) fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// True when every master can be asked.
    pub(super) fn is_reachable(&self) -> bool {
        let routes = self.routes.load();
        !routes.lanes.is_empty() && routes.lanes.iter().all(|lanes| lanes.iter().any(|lane| lane.is_open()))
    }

    /// How the connections fare.
    pub(super) fn usage(&self, per_second: bool) -> PoolUsage {
        let routes = self.routes.load();
        let lanes = || routes.lanes.iter().flatten();
        PoolUsage {
            kind: if per_second { StoreKind::RedisPerSecond } else { StoreKind::Redis },
            breakers_open: lanes().filter(|lane| lane.is_shut()).count() as u64,
            queued: lanes().map(|lane| lane.waiting() as u64).sum(),
            max_queued: (lanes().count() * self.shared.bounds.max_queued) as u64,
            ..self.shared.meters.usage()
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Option<Handle>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lanes(master: &RedisAddress, shared: &Arc<Shared>, count: usize) -> Vec<Arc<Lane>> {
    (0..count).map(|_| Arc::new(Lane::new(master.clone(), shared.clone()))).collect()
}
