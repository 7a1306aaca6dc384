//! Which servers own the keys now.
//!
//! A single server stays what it is. Of a master that sentinels know, and of a cluster, one task keeps
//! itself informed: it asks in a steady pace, and at once when a connection has doubts. Connections read the answer by
//! one atomic load, and connect; whether a server is the master that it is said to be, it must say itself.

mod cluster;
mod node_list;
mod sentinel;
pub(super) mod slots;
#[cfg(test)]
mod tests;
mod watcher;

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};
use tracing::warn;

use self::{
    node_list::Connector,
    watcher::{Source, Watcher},
};
use super::tls;
use crate::settings::redis::{Credentials, RedisAddress, RedisPool, RedisServers};

/// Knows the servers, and keeps itself informed until the last of its clones is dropped.
#[derive(Clone)]
pub(super) struct Topology(Arc<Inner>);

struct Inner {
    known: Arc<Known>,
    /// Whom to ask, until that task is begun.
    watcher: Mutex<Option<Watcher>>,
    watching: OnceLock<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.get() {
            watching.abort();
        }
    }
}

/// What is known, and who wants to know.
struct Known {
    servers: ArcSwap<Servers>,
    changes: watch::Sender<u64>,
    doubt: Notify,
}

/// The servers that own the keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Servers {
    /// Those that are written to; none while nobody knows.
    pub(super) masters: Vec<RedisAddress>,
    /// In a cluster, the place among them of each slot's owner.
    slots: Option<Box<[u16]>>,
}

/// The owner of a slot that has none.
const NOBODY: u16 = u16::MAX;

impl Servers {
    /// The place among the masters of the one that owns a key.
    pub(super) fn owner(&self, key: &[u8]) -> Option<usize> {
        let owner = match &self.slots {
            None => 0,
            Some(slots) => usize::from(*slots.get(usize::from(slots::slot(key)))?),
        };
        (owner < self.masters.len()).then_some(owner)
    }

    fn only(master: RedisAddress) -> Self {
        Self { masters: vec![master], slots: None }
    }

    /// How many slots have no owner.
    fn orphans(&self) -> usize {
        self.slots.iter().flatten().filter(|owner| **owner == NOBODY).count()
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.masters.split_first() else { return f.write_str("unknown") };
        first.fmt(f)?;
        rest.iter().try_for_each(|master| write!(f, ", {master}"))
    }
}

impl Topology {
    /// Reads certificates, if TLS is spoken; asks nobody yet.
    ///
    /// # Errors
    /// All that is wrong with their files, in the words of [`Dialer::new`](super::wire::Dialer::new).
    pub(super) fn new(pool: &RedisPool) -> Result<Self, Vec<String>> {
        let (servers, watcher) = match &pool.servers {
            RedisServers::Single(server) => (Servers::only(server.clone()), None),
            RedisServers::Sentinel { master, sentinels, credentials } => {
                let connector = connector(
                    pool,
                    "sentinel ",
                    credentials.as_ref(),
                    "REDIS_SENTINEL_AUTH (REDIS_PERSECOND_SENTINEL_AUTH)",
                )?;
                let source = Source::Sentinel { master: master.clone() };
                (Servers::default(), Some(Watcher::new(source, connector, sentinels)))
            }
            RedisServers::Cluster { seeds } => {
                let connector =
                    connector(pool, "", pool.credentials.as_ref(), "REDIS_AUTH (REDIS_PERSECOND_AUTH)")?;
                let source = Source::Cluster { seeds: seeds.clone() };
                (Servers::default(), Some(Watcher::new(source, connector, seeds)))
            }
        };
        let known = Known {
            servers: ArcSwap::from_pointee(servers),
            changes: watch::Sender::new(0),
            doubt: Notify::new(),
        };
        let inner = Inner { known: Arc::new(known), watcher: Mutex::new(watcher), watching: OnceLock::new() };
        Ok(Self(Arc::new(inner)))
    }

    /// Begins to watch, within a runtime; nothing happens for a single server, nor a second time.
    pub(super) fn watch(&self) {
        let watcher = self.0.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(watcher) = watcher {
            let task = tokio::spawn(watcher.watch(Arc::clone(&self.0.known)));
            // There is one watcher, so that nothing was set before.
            let _ = self.0.watching.set(task.abort_handle());
        }
    }

    /// The servers as they are known now.
    pub(super) fn servers(&self) -> Arc<Servers> {
        self.0.known.servers.load_full()
    }

    /// Tells of every change of the servers.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.known.changes.subscribe()
    }

    /// Something did not fit: have another look soon.
    pub(super) fn request_refresh(&self) {
        self.0.known.doubt.notify_one();
    }
}

fn connector(
    pool: &RedisPool,
    role: &'static str,
    credentials: Option<&Credentials>,
    variable: &'static str,
) -> Result<Connector, Vec<String>> {
    let tls = pool.tls.as_ref().map(|settings| tls::load(settings).map(|tls| (tls, settings.skip_hostname)));
    Connector::new(role, credentials, variable, tls.transpose()?, pool.connect_timeout)
        .map_err(|error| vec![error])
}

impl Known {
    /// Publishes the servers if they are others than before, and says so.
    fn publish(&self, source: &Source, servers: Servers) -> bool {
        let before = self.servers.load_full();
        if *before == servers {
            return false;
        }
        let orphans = servers.orphans();
        if orphans > 0 && orphans != before.orphans() {
            warn!("{source}: {orphans} slots have no owner, and the keys in them cannot be counted");
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
