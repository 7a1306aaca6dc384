//! Which servers own the keys. A single server is fixed. For sentinels and clusters a task polls the nodes, at an
//! interval and when a connection requests a refresh. Readers take the current servers by one atomic load. A connection
//! checks the role of a server that should be a master.

mod node_list;
mod replies;
pub(super) mod slots;
#[cfg(test)]
mod tests;
mod watcher;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tracing::Level;

use self::watcher::{Source, Watcher};
use super::dialer::Dialer;
use crate::settings::{RedisPool, RedisServers};
use faults::mutex::lock;
use net::{ServerAddress, edges::Edges};
use wire::client_metrics::ClientMetrics;

/// The current servers; polls for changes until the last clone is dropped.
#[derive(Clone)]
pub(super) struct Topology(Arc<Inner>);

struct Inner {
    known: Arc<Known>,
    /// Until it is started. A single server needs none.
    watcher: Mutex<Option<Box<Watcher>>>,
    edges: Edges,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The watcher and those who follow see that their pool is gone.
        self.known.refresh.notify_one();
        self.known.changed.notify_waiters();
    }
}

struct Known {
    servers: ArcSwap<KeyOwners>,
    /// Wakes in the order of waiting, unlike a `watch` channel.
    changed: Arc<Notify>,
    refresh: Notify,
    /// Those of the servers: their log is bounded, and status shows the last failure.
    metrics: Arc<ClientMetrics>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct KeyOwners {
    /// The masters; empty while unknown.
    pub(super) masters: Vec<ServerAddress>,
    /// In a cluster, the index of each slot's master.
    slots: Option<Box<[u16]>>,
}

/// The index for a slot without an owner.
const NO_OWNER: u16 = u16::MAX;

impl KeyOwners {
    pub(super) fn owner(&self, key: &[u8]) -> Option<usize> {
        let owner = match &self.slots {
            None => 0,
            Some(slots) => usize::from(*slots.get(usize::from(slots::slot(key)))?),
        };
        (owner < self.masters.len()).then_some(owner)
    }

    fn single(master: ServerAddress) -> Self {
        Self { masters: vec![master], slots: None }
    }

    fn orphans(&self) -> usize {
        self.slots.iter().flatten().filter(|owner| **owner == NO_OWNER).count()
    }
}

impl fmt::Display for KeyOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.masters.split_first() else { return f.write_str("unknown") };
        first.fmt(f)?;
        rest.iter().try_for_each(|master| write!(f, ", {master}"))
    }
}

impl Topology {
    /// `dialer` is for the servers that have the keys; sentinels have their own. Polls nothing yet. Returns every problem
    /// with the TLS files.
    pub(super) fn new(
        pool: &RedisPool,
        dialer: &Dialer,
        metrics: &Arc<ClientMetrics>,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let (servers, watcher) = match &pool.servers {
            RedisServers::Single(server) => (KeyOwners::single(server.clone()), None),
            RedisServers::Sentinel { master, sentinels, credentials } => {
                let dialer = Dialer::of_sentinels(pool, credentials.as_ref(), edges)?;
                let source = Source::Sentinel { master: master.clone() };
                (KeyOwners::default(), Some(Watcher::new(source, dialer, sentinels, edges)))
            }
            RedisServers::Cluster { seeds } => {
                let source = Source::Cluster { seeds: seeds.clone() };
                (KeyOwners::default(), Some(Watcher::new(source, dialer.clone(), seeds, edges)))
            }
        };
        let known = Known {
            servers: ArcSwap::from_pointee(servers),
            changed: Arc::default(),
            refresh: Notify::new(),
            metrics: Arc::clone(metrics),
        };
        Ok(Self(Arc::new(Inner {
            known: Arc::new(known),
            watcher: Mutex::new(watcher.map(Box::new)),
            edges: edges.clone(),
        })))
    }

    /// Starts to poll, within a runtime. Does nothing for a single server, and when called again.
    pub(super) fn watch(&self) {
        if let Some(watcher) = lock(&self.0.watcher).take() {
            self.0.edges.start(watcher.watch(Arc::clone(&self.0.known), Arc::downgrade(&self.0)));
        }
    }

    pub(super) fn servers(&self) -> Arc<KeyOwners> {
        self.0.known.servers.load_full()
    }

    /// Notified of each change.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.0.known.changed.clone()
    }

    pub(super) fn request_refresh(&self) {
        self.0.known.refresh.notify_one();
    }
}

impl Known {
    /// Publishes and logs the servers if they changed; returns true if so.
    fn publish(&self, source: &Source, servers: KeyOwners) -> bool {
        let before = self.servers.load_full();
        if *before == servers {
            return false;
        }
        let orphans = servers.orphans();
        if orphans > 0 && orphans != before.orphans() {
            let what = format_args!("{source}: {orphans} slots have no owner; their keys cannot be counted");
            self.metrics.log(Level::WARN, "orphans", what);
        }
        if before.masters == servers.masters {
            // While slots move, they do so several times a second.
            self.metrics.log(Level::WARN, "moves", format_args!("{source}: slots move between {servers}"));
        } else {
            self.metrics.log(Level::WARN, "masters", format_args!("{source}: {servers}; before: {before}"));
        }
        self.servers.store(Arc::new(servers));
        self.changed.notify_waiters();
        true
    }
}
