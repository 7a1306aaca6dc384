//! The task that polls sentinels or cluster nodes, and publishes the servers.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tracing::Level;

use super::{Inner, KeyOwners, Known, node_list::NodeList, replies};
use crate::{dialer::Dialer, resp::Reply};
use faults::panics::{self, Boundary, Panicked, caught};
use net::{HostPort, ServerAddress, backoff::jittered_by, edges::Edges};
use wire::client_metrics::ClientMetrics;

/// The shortest time between two polls, however many refreshes are requested.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The interval for sentinels: a demoted master may not report it.
const SENTINEL_INTERVAL: Duration = Duration::from_secs(1);

/// The interval for clusters, which announce moved slots by `MOVED`.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(5);

pub(super) enum Source {
    Sentinel { master: String },
    Cluster { seeds: Vec<HostPort> },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sentinel { master } => write!(f, "redis master {master:?}"),
            Self::Cluster { .. } => f.write_str("redis cluster"),
        }
    }
}

pub(super) struct Watcher {
    source: Source,
    nodes: NodeList,
    edges: Edges,
}

impl Watcher {
    pub(super) fn new(source: Source, dialer: Dialer, addresses: &[HostPort], edges: &Edges) -> Self {
        Self { source, nodes: NodeList::new(dialer, addresses), edges: edges.clone() }
    }

    /// Polls until the last owner is gone.
    pub(super) async fn watch(mut self: Box<Self>, known: Arc<Known>, owner: Weak<Inner>) {
        while let Err(Panicked) =
            caught(Boundary::StoreDiscovery, self.watch_until_panic(&known, &owner)).await
        {
            net::restart::pause().await;
        }
    }

    async fn watch_until_panic(&mut self, known: &Known, owner: &Weak<Inner>) {
        let mut is_refresh = false;
        while owner.strong_count() > 0 {
            panics::point("store_discovery");
            let polled = self.poll(is_refresh, &known.metrics).await;
            let source = &self.source;
            let interval = match (source, &polled) {
                (Source::Cluster { .. }, Ok(_)) => CLUSTER_INTERVAL,
                _ => SENTINEL_INTERVAL,
            };
            match polled {
                Ok(servers) => {
                    if known.publish(source, servers.clone()) {
                        self.add_masters(&servers);
                    }
                }
                Err(failure) => {
                    let none =
                        format_args!("{source}: no node replied; last known: {}", known.servers.load());
                    known.metrics.log(Level::ERROR, "nodes", none);
                    known.metrics.keep(&failure);
                }
            }
            let Edges { timer, random, .. } = &self.edges;
            timer.sleep(MIN_INTERVAL).await;
            let rest = jittered_by(interval.saturating_sub(MIN_INTERVAL), 0.1, random.fraction());
            is_refresh = timer.timeout(rest, known.refresh.notified()).await.is_some();
        }
    }

    /// The servers, or the failure of the last node that was queried.
    async fn poll(&mut self, is_refresh: bool, metrics: &ClientMetrics) -> Result<KeyOwners, String> {
        match &self.source {
            Source::Sentinel { master } => {
                self.nodes.dialer.login.poll().await;
                let command = [&b"SENTINEL"[..], b"get-master-addr-by-name", master.as_bytes()];
                let read = |reply: &Reply, _: &HostPort| replies::master(reply, master);
                self.nodes.query(&command, read, is_refresh, metrics).await
            }
            Source::Cluster { .. } => {
                self.nodes.query(&[b"CLUSTER", b"SLOTS"], replies::slots, is_refresh, metrics).await
            }
        }
    }

    /// Adds the masters of a cluster to the nodes: they may outlive those in the settings.
    fn add_masters(&mut self, servers: &KeyOwners) {
        let Source::Cluster { seeds } = &self.source else { return };
        let masters = servers.masters.iter().filter_map(|master| match master {
            ServerAddress::Tcp(address) => Some(address),
            ServerAddress::Unix(_) => None,
        });
        self.nodes.set(masters.chain(seeds));
    }
}
