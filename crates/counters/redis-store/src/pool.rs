//! One Redis: its current servers and the connections to them.

use std::sync::Arc;

use deadpool_redis::redis::cmd;
use tracing::info;

use super::{
    backend::{Connection, RedisBackend},
    command_pool::CommandPool,
    dialer::Dialer,
    login::{self, CurrentLogin},
    name::Names,
    topology::{KeyOwners, Topology, slots},
    ttl_cache::TtlCache,
    write_check::WriteCheck,
};
use crate::settings::{Redis, RedisPool, RedisServers};
use counters::{Batch, Check, StoreError};
use faults::panics::{self, Boundary, Panicked, caught};
use metrics::FailureReason;
use net::{ServerAddress, backoff::Backoff, edges::Edges};
use wire::{Bounds, Patience, ServerPool, Shared, client_metrics::ClientMetrics};

pub(super) struct Pool {
    pub(super) servers: ServerPool<RedisBackend, Arc<KeyOwners>>,
    /// Keys of different slots cannot be counted in one step.
    pub(super) is_cluster: bool,
    pub(super) names: Names,
    pub(super) commands: CommandPool,
}

impl Pool {
    /// A Redis for this many worker threads. Returns every problem with the TLS files.
    pub(super) fn new(
        settings: &RedisPool,
        Redis { startup, unhealthy_without, .. }: &Redis,
        key_prefix: &str,
        jitter: u64,
        threads: usize,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let dialer = Dialer::new(settings, edges)?;
        let metrics = Arc::<ClientMetrics>::default();
        let topology = Topology::new(settings, &dialer, &metrics, edges)?;
        let commands = CommandPool::new(dialer.clone(), &topology, key_prefix, edges);
        let shared = Shared {
            backend: RedisBackend {
                dialer,
                topology,
                ttl_cache: TtlCache::new(jitter, edges.random.clone()),
                only_masters: matches!(settings.servers, RedisServers::Sentinel { .. }),
                write_check: unhealthy_without.then(WriteCheck::default),
            },
            edges: edges.clone(),
            metrics,
            bounds: Bounds {
                timeout: settings.timeout,
                pipeline_window: settings.pipeline_window,
                max_queued: settings.max_queued,
                startup_backoff: Backoff::new(startup.initial_interval, startup.max_interval),
            },
        };
        let is_cluster = matches!(settings.servers, RedisServers::Cluster { .. });
        let pool = Self {
            // One connection per worker thread, up to the configured number.
            servers: ServerPool::new(shared, threads.min(settings.connections)),
            is_cluster,
            names: Names::new(key_prefix, is_cluster),
            commands,
        };
        pool.follow();
        Ok(pool)
    }

    pub(super) fn backend(&self) -> &RedisBackend {
        &self.servers.shared.backend
    }

    /// Probes each connected server, if health checks need to know whether it accepts writes.
    pub(super) fn check_writes(&self) {
        let RedisBackend { write_check: Some(check), topology, .. } = self.backend() else { return };
        let servers = topology.servers();
        check.keep_only(&servers.masters);
        let keys = WriteCheck::keys(&servers);
        for connection in self.servers.open_connections() {
            check.probe(&connection.address, &keys, |key| {
                drop(connection.submit(0, Patience::Timeout, None, |pipeline| pipeline.probe_writes(key)));
            });
        }
    }

    /// True if all servers accept writes, as far as health checks need to know.
    pub(super) fn accepts_writes(&self) -> bool {
        let servers = self.backend().topology.servers();
        self.backend().write_check.as_ref().is_none_or(|check| check.all_accept(&servers.masters))
    }

    /// Follows changes of the servers. Called once, within a runtime.
    pub(super) fn watch(self: &Arc<Self>) {
        let topology = &self.backend().topology;
        topology.watch();
        self.follow_login();
        let changed = topology.changed();
        let pool = Arc::downgrade(self);
        self.servers.shared.edges.start(async move {
            loop {
                // No change is missed from here on.
                let next = changed.notified();
                {
                    let Some(pool) = pool.upgrade() else { return };
                    while let Err(Panicked) = panics::catch(Boundary::StoreDiscovery, || pool.follow()) {
                        net::restart::pause().await;
                    }
                }
                next.await;
            }
        });
    }

    /// Sends `AUTH` over open connections when the credentials have changed. Called once, within a runtime.
    fn follow_login(self: &Arc<Self>) {
        let login = self.backend().dialer.login.clone();
        if !login.changes() {
            return;
        }
        let edges = self.servers.shared.edges.clone();
        let pool = Arc::downgrade(self);
        self.servers.shared.edges.start(async move {
            let mut polls = 0_u64;
            let mut in_use = 1;
            loop {
                let polled = caught(Boundary::StoreLogin, login.poll()).await;
                let Some(pool) = pool.upgrade() else { return };
                if let Ok(Some(current)) = polled {
                    pool.log_in(&current, polls.is_multiple_of(login::POLLS_PER_RETRY));
                    if in_use < current.generation && pool.has_logged_in(&current) {
                        in_use = current.generation;
                        info!("{}: all connections that count use the new credentials", login.origin());
                    }
                }
                drop(pool);
                edges.timer.sleep(login::POLL).await;
                polls = polls.wrapping_add(1);
            }
        });
    }

    /// Logs in over the connections that have not tried this login, or over all with an older one.
    fn log_in(&self, login: &Arc<CurrentLogin>, again: bool) {
        for connection in self.servers.connections() {
            let session = &connection.session;
            if session.is_behind(login)
                && (again || session.is_untried(login))
                && connection.submit(0, Patience::Timeout, None, |pipeline| pipeline.log_in(login)).is_ok()
            {
                session.tried(login);
            }
        }
    }

    fn has_logged_in(&self, login: &CurrentLogin) -> bool {
        self.servers.connections().iter().all(|connection| !connection.session.is_behind(login))
    }

    /// Updates the connections to the current servers.
    fn follow(&self) {
        let servers = self.backend().topology.servers();
        self.servers.set_servers(&servers.masters, servers.clone());
    }

    /// The calling thread's connection to the server that owns a key.
    pub(super) fn connection(&self, key: &str) -> Result<Arc<Connection>, StoreError> {
        self.servers.connection(|known| known.owners.owner(key.as_bytes())).ok_or_else(|| {
            self.backend().topology.request_refresh();
            StoreError::new(FailureReason::Unavailable, "redis: no known master owns the key")
        })
    }

    /// The calling thread's connection to the server of a redirection.
    pub(super) fn connection_to(&self, address: &ServerAddress) -> Option<Arc<Connection>> {
        self.servers.connection_to(address)
    }

    /// The key of a counter's leases. In a cluster, `None` for the few names that no other key shares a slot with: those
    /// with a closing brace but no hash tag. Their hits are not leased.
    pub(super) fn leases_of(&self, name: &str) -> Option<String> {
        let leases = self.names.leases_of(name);
        (!self.is_cluster || slots::slot(leases.as_bytes()) == slots::slot(name.as_bytes())).then_some(leases)
    }

    /// Deletes a check's counter, and its leases, so that no hits of the time before are returned to it.
    pub(super) async fn delete(&self, batch: &Batch, check: &Check) -> Result<(), StoreError> {
        let name = self.names.of(batch, check);
        let mut delete = cmd("DEL");
        delete.arg(&*name).arg(self.leases_of(&name));
        let deleted = self.commands.command::<u64>(&name, &delete).await;
        deleted.map(drop).map_err(|message| StoreError::new(FailureReason::Unavailable, message))
    }
}
