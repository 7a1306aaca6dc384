//! The servers of a store, and the connections to each: one per worker thread.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;

use super::{Backend, Connection, Shared};
use faults::mutex::lock;
use metrics::{PoolUsage, StoreKind};
use net::{ServerAddress, edges::Spawner};

thread_local! {
    /// The index of the thread's connections; other threads use those of the first.
    static WORKER_INDEX: Cell<usize> = const { Cell::new(0) };
}

#[derive(Default)]
pub struct WorkerIndexes(AtomicUsize);

impl WorkerIndexes {
    /// Assigns the next index to the calling thread.
    pub fn take(&self) -> usize {
        let worker = self.0.fetch_add(1, Relaxed);
        WORKER_INDEX.set(worker);
        worker
    }
}

/// Servers and the connections to them. `O` maps keys to servers.
pub struct ServerPool<B: Backend, O> {
    pub shared: Arc<Shared<B>>,
    current: ArcSwap<Servers<B, O>>,
    /// Servers that are not in the pool, and that others redirect to.
    named: ArcSwap<Vec<Server<B>>>,
    /// The runtimes of the worker threads, by index.
    threads: Mutex<Vec<Option<Spawner>>>,
}

pub struct Servers<B: Backend, O> {
    pub servers: Vec<Server<B>>,
    pub owners: O,
}

/// The maximum number of servers that are not in the pool.
const MAX_NAMED: usize = 16;

pub struct Server<B: Backend> {
    pub address: ServerAddress,
    connections: Vec<Arc<Connection<B>>>,
}

impl<B: Backend> Server<B> {
    /// The calling thread's connection.
    fn connection(&self) -> Option<Arc<Connection<B>>> {
        self.connections.get(WORKER_INDEX.get().checked_rem(self.connections.len())?).cloned()
    }
}

impl<B: Backend> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self { address: self.address.clone(), connections: self.connections.clone() }
    }
}

impl<B: Backend, O: Default> ServerPool<B, O> {
    /// A pool without servers; each server will have this many connections.
    pub fn new(shared: Shared<B>, connections_each: usize) -> Self {
        Self {
            shared: Arc::new(shared),
            current: ArcSwap::from_pointee(Servers { servers: Vec::new(), owners: O::default() }),
            named: ArcSwap::default(),
            threads: Mutex::new(vec![None; connections_each.max(1)]),
        }
    }

    /// Makes the calling thread run the connections with this index.
    #[expect(clippy::expect_used, reason = "asserts what the caller requires")]
    pub fn start_worker(&self, worker: usize) {
        let mut threads = lock(&self.threads);
        let Some(slot) = threads.get_mut(worker) else { return };
        let here = self.shared.edges.spawn.here().expect("a worker is started within its runtime");
        let current = self.current.load();
        let named = self.named.load();
        let servers = current.servers.iter().chain(named.iter());
        for connection in servers.filter_map(|server| server.connections.get(worker)) {
            here(Box::pin(connection.clone().keep_running()));
        }
        *slot = Some(here);
    }

    /// Replaces the servers. Connections to servers that stay, or were redirected to, are kept; others end.
    pub fn set_servers(&self, addresses: &[ServerAddress], owners: O) {
        let threads = lock(&self.threads);
        let current = self.current.load_full();
        let named = self.named.swap(Arc::default());
        let mut removed: Vec<_> = current.servers.iter().chain(named.iter()).collect();
        let server = |address: &ServerAddress| {
            // A server that is listed twice owns two shares of the keys, with separate connections.
            let connections = match removed.iter().position(|server| server.address == *address) {
                Some(index) => removed.swap_remove(index).connections.clone(),
                None => threads.iter().map(|thread| self.open(address, thread.as_ref())).collect(),
            };
            Server { address: address.clone(), connections }
        };
        let servers = addresses.iter().map(server).collect();
        self.current.store(Arc::new(Servers { servers, owners }));
        removed.iter().flat_map(|server| &server.connections).for_each(|connection| connection.end());
    }

    fn open(&self, address: &ServerAddress, thread: Option<&Spawner>) -> Arc<Connection<B>> {
        let connection = Arc::new(Connection::new(address.clone(), self.shared.clone()));
        if let Some(thread) = thread {
            thread(Box::pin(connection.clone().keep_running()));
        }
        connection
    }

    /// The calling thread's connection to the server at the index that `choose` returns.
    pub fn connection(
        &self,
        choose: impl FnOnce(&Servers<B, O>) -> Option<usize>,
    ) -> Option<Arc<Connection<B>>> {
        let current = self.current.load();
        current.servers.get(choose(&current)?)?.connection()
    }

    /// The calling thread's connection to a server that another one names: a cluster does not list a master that imports
    /// its first slot. One that is not in the pool is kept until the servers change. `None` if there are too many of those.
    pub fn connection_to(&self, address: &ServerAddress) -> Option<Arc<Connection<B>>> {
        let known = || {
            let current = self.current.load();
            let named = self.named.load();
            let mut servers = current.servers.iter().chain(named.iter());
            servers.find(|server| server.address == *address).map(Server::connection)
        };
        if let Some(connection) = known() {
            return connection;
        }
        let threads = lock(&self.threads);
        // Another thread may have been faster.
        if let Some(connection) = known() {
            return connection;
        }
        let named = self.named.load();
        if named.len() >= MAX_NAMED {
            return None;
        }
        let connections = threads.iter().map(|thread| self.open(address, thread.as_ref())).collect();
        let server = Server { address: address.clone(), connections };
        let connection = server.connection();
        self.named.store(Arc::new(named.iter().cloned().chain([server]).collect()));
        connection
    }

    /// Every connection of every thread.
    pub fn connections(&self) -> Vec<Arc<Connection<B>>> {
        let current = self.current.load();
        let named = self.named.load();
        let servers = current.servers.iter().chain(named.iter());
        servers.flat_map(|server| &server.connections).cloned().collect()
    }

    /// One connection to each server that has an open one.
    pub fn open_connections(&self) -> Vec<Arc<Connection<B>>> {
        let open =
            |server: &Server<B>| server.connections.iter().find(|connection| connection.is_open()).cloned();
        self.current.load().servers.iter().filter_map(open).collect()
    }

    /// Asks each server over each connection that nobody uses; called once a second.
    pub fn probe_idle(&self) {
        let current = self.current.load();
        current
            .servers
            .iter()
            .flat_map(|server| &server.connections)
            .for_each(|connection| connection.probe_idle());
    }

    pub fn is_reachable(&self) -> bool {
        let current = self.current.load();
        let is_open = |server: &Server<B>| server.connections.iter().any(|connection| connection.is_open());
        !current.servers.is_empty() && current.servers.iter().all(is_open)
    }

    pub fn usage(&self, kind: StoreKind) -> PoolUsage {
        let current = self.current.load();
        let connections = || current.servers.iter().flat_map(|server| &server.connections);
        let max_queued = self.shared.bounds.max_queued;
        PoolUsage {
            kind,
            breakers_open: connections().filter(|connection| connection.is_breaker_open()).count() as u64,
            queued: connections().map(|connection| connection.lock().queue.checks as u64).sum(),
            max_outstanding: connections()
                .map(|connection| connection.lock().queue.window.size() as u64)
                .sum(),
            // The setting has no maximum.
            max_queued: (connections().count() as u64).saturating_mul(max_queued as u64),
            ..self.shared.metrics.usage()
        }
    }
}
