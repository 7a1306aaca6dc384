//! The servers as they are known now, and the lanes to each: one for each thread that asks.
//!
//! A key belongs to the server that `name` says, by the order of the servers. They are those of the settings,
//! or what a name server tells of them, which may change.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{runtime::Handle, time::sleep};
use tracing::{info, warn};

use super::{dialer::Dialer, lane::Lane, name, name_servers::NameServers, reply::KINDS};
use crate::{
    settings::{
        ServerAddress,
        memcached::{Memcached, MemcachedServers},
    },
    store::{FailureReason, PoolUsage, StoreError, StoreKind, meters::Meters, pace::Pace},
};

/// What all lanes share.
pub(super) struct Shared {
    pub(super) dialer: Dialer,
    pub(super) meters: Meters,
    pub(super) timeout: Duration,
    pub(super) max_queued: usize,
}

/// Who is asked.
pub(super) struct Servers {
    pub(super) shared: Arc<Shared>,
    lanes: ArcSwap<Vec<Server>>,
    /// The threads that run lanes, by their seats.
    threads: Mutex<Vec<Option<Handle>>>,
}

/// A server and the lanes to it.
#[derive(Clone)]
struct Server {
    address: ServerAddress,
    lanes: Vec<Arc<Lane>>,
}

impl Servers {
    /// Servers that so many threads will ask.
    ///
    /// # Errors
    /// All that is wrong with the files that the settings name.
    pub(super) fn new(settings: &Memcached, threads: usize) -> Result<Self, Vec<String>> {
        let shared = Arc::new(Shared {
            dialer: Dialer::new(settings)?,
            meters: Meters::default(),
            timeout: settings.timeout,
            max_queued: settings.max_queued,
        });
        let servers =
            Self { shared, lanes: ArcSwap::default(), threads: Mutex::new(vec![None; threads.max(1)]) };
        if let MemcachedServers::Named(addresses) = &settings.servers {
            servers.meet(addresses);
        }
        Ok(servers)
    }

    /// The calling thread takes a seat: from now on it runs that seat's lanes.
    pub(super) fn attend(&self, seat: usize) {
        let mut threads = self.threads();
        let Some(place) = threads.get_mut(seat) else { return };
        let handle = Handle::current();
        for lane in self.lanes.load().iter().filter_map(|server| server.lanes.get(seat)) {
            handle.spawn(lane.clone().run());
        }
        *place = Some(handle);
    }

    /// These are the servers from now on, in this order. Lanes to those that were known stay; to those that are
    /// gone they end.
    pub(super) fn meet(&self, addresses: &[ServerAddress]) {
        let threads = self.threads();
        let known = self.lanes.load_full();
        let mut left = (*known).clone();
        let server = |address: &ServerAddress| {
            // One that is named twice has two shares of the keys, and lanes of its own for each.
            if let Some(place) = left.iter().position(|server| server.address == *address) {
                return left.swap_remove(place);
            }
            let lane = || Arc::new(Lane::new(address.clone(), self.shared.clone()));
            let lanes: Vec<_> = threads.iter().map(|_| lane()).collect();
            for (lane, thread) in lanes.iter().zip(threads.iter()) {
                if let Some(thread) = thread {
                    thread.spawn(lane.clone().run());
                }
            }
            Server { address: address.clone(), lanes }
        };
        let servers: Vec<_> = addresses.iter().map(server).collect();
        self.lanes.store(Arc::new(servers));
        left.iter().flat_map(|server| &server.lanes).for_each(|lane| lane.end());
    }

    /// The lane on which this seat asks for a counter of this name.
    ///
    /// # Errors
    /// While no server is known.
    pub(super) fn lane(&self, name: &str, seat: usize) -> Result<Arc<Lane>, StoreError> {
        let servers = self.lanes.load();
        let server = servers.get(name::place(name, servers.len()));
        let lane = server.and_then(|server| server.lanes.get(seat % server.lanes.len().max(1)));
        lane.cloned().ok_or_else(|| StoreError {
            reason: FailureReason::Unavailable,
            message: "memcached: no server is known yet; see MEMCACHE_SRV".into(),
        })
    }

    /// True when every server can be asked.
    pub(super) fn is_reachable(&self) -> bool {
        let servers = self.lanes.load();
        let is_open = |server: &Server| server.lanes.iter().any(|lane| lane.is_open());
        !servers.is_empty() && servers.iter().all(is_open)
    }

    /// How the connections fare.
    pub(super) fn usage(&self) -> PoolUsage {
        let servers = self.lanes.load();
        let lanes = || servers.iter().flat_map(|server| &server.lanes);
        let mut usage = PoolUsage {
            kind: StoreKind::Memcached,
            breakers_open: lanes().filter(|lane| lane.is_shut()).count() as u64,
            queued: lanes().map(|lane| lane.waiting() as u64).sum(),
            max_queued: (lanes().count() as u64).saturating_mul(self.shared.max_queued as u64),
            ..self.shared.meters.usage()
        };
        usage.errors.retain(|(name, _)| KINDS.iter().any(|kind| kind.name() == *name));
        usage
    }

    /// Looks the servers up until they are found, and then, if that is wanted, again and again.
    pub(super) async fn follow(
        self: Arc<Self>,
        srv: String,
        refresh: Option<Duration>,
        name_servers: impl Fn() -> NameServers,
    ) {
        let mut pace = Pace::again();
        let mut known = Vec::new();
        let mut failed = false;
        loop {
            let pause = match name_servers().services(&srv).await {
                Ok(found) => {
                    if mem::replace(&mut known, found) != known {
                        info!(servers = ?known.iter().map(ToString::to_string).collect::<Vec<_>>(), "memcached: found by {srv}");
                        self.meet(&known);
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

    fn threads(&self) -> MutexGuard<'_, Vec<Option<Handle>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
