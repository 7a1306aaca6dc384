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
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tracing::warn;

use self::watcher::{Source, Watcher};
use super::dialer::Dialer;
use crate::{redis::settings::RedisPool, redis::settings::RedisServers};
use containment::mutex::lock;
use net::{ServerAddress, edges::Edges};

/// The current servers; polls for changes until the last clone is dropped.
#[derive(Clone)]
pub(super) struct Topology(Arc<Inner>);

struct Inner {
    known: Arc<Known>,
    /// The watcher, until its task starts.
    watcher: Mutex<Option<Watcher>>,
    /// The watcher's task, which ends with this.
    task: Mutex<JoinSet<()>>,
}

struct Known {
    servers: ArcSwap<KeyOwners>,
    changes: watch::Sender<u64>,
    refresh: Notify,
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
    /// Loads certificates if TLS is enabled; polls nothing yet. Returns every problem with the files.
    pub(super) fn new(pool: &RedisPool, edges: &Edges) -> Result<Self, Vec<String>> {
        let (servers, watcher) = match &pool.servers {
            RedisServers::Single(server) => (KeyOwners::single(server.clone()), None),
            RedisServers::Sentinel { master, sentinels, credentials } => {
                let dialer = Dialer::of_sentinels(pool, credentials.as_ref(), edges)?;
                let source = Source::Sentinel { master: master.clone() };
                (KeyOwners::default(), Some(Watcher::new(source, dialer, sentinels, edges)))
            }
            RedisServers::Cluster { seeds } => {
                let source = Source::Cluster { seeds: seeds.clone() };
                (KeyOwners::default(), Some(Watcher::new(source, Dialer::new(pool, edges)?, seeds, edges)))
            }
        };
        let known = Known {
            servers: ArcSwap::from_pointee(servers),
            changes: watch::Sender::new(0),
            refresh: Notify::new(),
        };
        let (known, watcher) = (Arc::new(known), Mutex::new(watcher));
        Ok(Self(Arc::new(Inner { known, watcher, task: Mutex::default() })))
    }

    /// Starts to poll, within a runtime. Does nothing for a single server, and when called again.
    pub(super) fn watch(&self) {
        if let Some(watcher) = lock(&self.0.watcher).take() {
            lock(&self.0.task).spawn(watcher.watch(Arc::clone(&self.0.known)));
        }
    }

    pub(super) fn servers(&self) -> Arc<KeyOwners> {
        self.0.known.servers.load_full()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.known.changes.subscribe()
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
            warn!("{source}: {orphans} slots have no owner; their keys cannot be counted");
        }
        if before.masters == servers.masters {
            warn!("{source}: slots moved between {servers}");
        } else {
            warn!("{source}: {servers}; before: {before}");
        }
        self.servers.store(Arc::new(servers));
        self.changes.send_modify(|change| *change = change.wrapping_add(1));
        true
    }
}
