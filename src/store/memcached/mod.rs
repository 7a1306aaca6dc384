//! Counters in memcached, shared by all replicas, and by replicas of the Go service.
//!
//! Reading order: a request's checks are `route`d, each to a connection of the `servers` that owns its key, under
//! the `name` that memcached takes; a connection is one connection and what waits for it, and makes a `pipeline` of it:
//! one pipeline. `backend` is what a connection has to know of memcached. `dialer` connects and greets, `reply` is
//! what is answered. Servers that are not named one by one are looked up: `name_servers` says whom to ask,
//! `lookup` asks, `dns` is what is said.

pub(crate) mod key;

mod backend;
mod dialer;
mod pipeline;
mod reply;
mod route;
mod servers;

use std::sync::Arc;

pub use crate::net::resolve::name_servers::NameServers;

use super::{Applied, Batch, Counting, PoolUsage, Store};
use crate::store::remote::WorkerIndexes;
use crate::{
    clock::Time,
    panics::{self, Boundary, Panicked, caught},
    rules::Countable,
    settings::memcached::{Memcached, MemcachedServers},
};
use servers::Servers;

/// memcached as a store.
pub struct MemcachedStore {
    servers: Arc<Servers>,
    found_by: MemcachedServers,
    /// Counters live up to so many seconds longer than needed.
    jitter: u64,
    workers: WorkerIndexes,
}

impl MemcachedStore {
    /// memcached keeps numbers and changes them one at a time; every other algorithm needs more than one,
    /// or changes it by what it is.
    pub const COUNTABLE: Countable = Countable::FixedWindows;

    /// A store that so many threads will attend. Keys live up to `jitter` seconds longer than needed.
    ///
    /// # Errors
    /// All that is wrong with the files that the settings name.
    pub fn new(settings: &Memcached, jitter: u64, threads: usize) -> Result<Self, Vec<String>> {
        let servers = Arc::new(Servers::new(settings, threads)?);
        Ok(Self { servers, found_by: settings.servers.clone(), jitter, workers: WorkerIndexes::default() })
    }

    /// Begins to look the servers up where they are not named one by one, of the name servers that are to be
    /// asked each time; once, within a runtime that lives as long as the service.
    pub fn watch(&self, name_servers: impl Fn() -> NameServers + Send + Sync + 'static) {
        if let MemcachedServers::Srv { name, refresh } = &self.found_by {
            let (servers, name, refresh) = (self.servers.clone(), name.clone(), *refresh);
            tokio::spawn(async move {
                let follow = || servers.follow(&name, refresh, &name_servers);
                while let Err(Panicked) = caught(Boundary::StoreDiscovery, follow()).await {
                    panics::pause().await;
                }
            });
        }
    }
}

impl Store for MemcachedStore {
    fn apply<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        match batch.counting {
            Counting::StopWhenOver => Applied::Later(Box::pin(self.count_unless_over(batch, now))),
            Counting::Always | Counting::Look => self.count(batch, now),
        }
    }

    fn start_worker(&self) {
        self.servers.pool.start_worker(self.workers.take());
    }

    fn is_reachable(&self) -> bool {
        self.servers.pool.is_reachable()
    }

    fn pools(&self) -> Vec<PoolUsage> {
        vec![self.servers.usage()]
    }
}

/// An answer of memcached.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_reply(bytes: &[u8]) {
    use crate::store::remote::framed::Codec;

    if let Ok(Some((_, length))) = reply::Text::read(bytes) {
        assert!(length <= bytes.len());
    }
    let _ = reply::counter(bytes);
}
