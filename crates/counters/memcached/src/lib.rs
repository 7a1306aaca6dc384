//! Counters in memcached, shared by all replicas and by replicas of the Go service.
//!
//! In reading order: `route` sends a request's checks to the connections of the `servers` that own their keys, as commands
//! of a `pipeline`. `backend` implements the shared connection's `Backend`, `reply` decodes replies. `resets` notifies
//! other replicas of resets.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

mod backend;
mod pipeline;
mod reply;
mod resets;
mod route;
mod servers;
pub mod settings;

use std::sync::Arc;

pub use self::resets::ResetLog;
pub use net::resolve::name_servers::NameServers;

use crate::settings::{Memcached, MemcachedServers};
use clock::Time;
use counters::{Batch, Count, KeepHolds, Operate, Report, StoreFuture};
use faults::panics::{Boundary, Panicked, caught};
use limit::{Countable, Hits};
use metrics::PoolUsage;
use net::edges::Edges;
use servers::Servers;
use wire::WorkerIndexes;

pub struct MemcachedStore {
    servers: Arc<Servers>,
    found_by: MemcachedServers,
    jitter: u64,
    workers: WorkerIndexes,
}

impl MemcachedStore {
    /// memcached increments single numbers. Every other algorithm needs several, or reads before it writes.
    pub const COUNTABLE: Countable = Countable::FixedWindows;

    /// A store for this many worker threads. Keys expire up to `jitter` seconds late.
    pub fn new(
        settings: &Memcached,
        jitter: u64,
        threads: usize,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let servers = Arc::new(Servers::new(settings, threads, edges)?);
        Ok(Self { servers, found_by: settings.servers.clone(), jitter, workers: WorkerIndexes::default() })
    }

    /// The resets of all replicas whose keys begin with `key_prefix`.
    pub fn reset_log(&self, key_prefix: &str) -> ResetLog {
        ResetLog::new(self.servers.clone(), key_prefix)
    }

    /// Starts to resolve `MEMCACHE_SRV`, if set, with the name servers that the function returns each time. Called once,
    /// within a runtime that lives as long as the service.
    pub fn watch(&self, name_servers: impl Fn() -> NameServers + Send + Sync + 'static) {
        if let MemcachedServers::Srv { name, refresh } = &self.found_by {
            let servers = self.servers.clone();
            let name = name.clone();
            let refresh = *refresh;
            self.servers.pool.shared.edges.start(async move {
                let follow = || servers.follow(&name, refresh, &name_servers);
                while let Err(Panicked) = caught(Boundary::StoreDiscovery, follow()).await {
                    net::restart::pause().await;
                }
            });
        }
    }
}

impl Count for MemcachedStore {
    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        let counting = batch.counting_if(batch.is_known_refused());
        Box::pin(self.count(batch, counting, now))
    }
}

impl KeepHolds for MemcachedStore {}

impl Operate for MemcachedStore {
    /// memcached counts only fixed windows, which a refund of all hits resets.
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        batch.ask_all(|_| Hits::Refund(u64::MAX));
        Box::pin(self.ask(batch, now))
    }

    fn start_worker(&self) {
        self.servers.pool.start_worker(self.workers.take());
    }

    fn maintain(&self, _: Time) {
        self.servers.pool.probe_idle();
    }
}

impl Report for MemcachedStore {
    fn is_reachable(&self) -> bool {
        self.servers.pool.is_reachable()
    }

    fn pools(&self) -> Vec<PoolUsage> {
        vec![self.servers.usage()]
    }
}

#[cfg(any(test, feature = "testing"))]
pub fn fuzz_reply(bytes: &[u8]) {
    use wire::framed::Codec;

    if let Ok(Some((_, length))) = reply::Text::decode(bytes) {
        assert!(length <= bytes.len());
    }
    let _ = reply::counter(bytes);
}
