//! The servers of a store as they are known now, and the connections to each: one for each thread that asks.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use super::{Backend, Connection, Shared};
use crate::{
    settings::ServerAddress,
    store::{PoolUsage, StoreKind},
};

thread_local! {
    /// Which connections the thread runs, and asks; one that runs none asks the first.
    static WORKER_INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Gives workers to the threads that ask.
#[derive(Default)]
pub(in crate::store) struct WorkerIndexes(AtomicUsize);

impl WorkerIndexes {
    /// The calling thread takes the next worker.
    pub(in crate::store) fn take(&self) -> usize {
        let worker = self.0.fetch_add(1, Relaxed);
        WORKER_INDEX.set(worker);
        worker
    }
}

/// Servers, and the connections to them.
pub(in crate::store) struct ServerPool<B: Backend, O> {
    pub(in crate::store) shared: Arc<Shared<B>>,
    known: ArcSwap<Known<B, O>>,
    /// The threads that run connections, by their workers.
    threads: Mutex<Vec<Option<Handle>>>,
}

/// Whom to ask.
pub(in crate::store) struct Known<B: Backend, O> {
    pub(in crate::store) servers: Vec<Server<B>>,
    /// What tells which of them owns a key.
    pub(in crate::store) owners: O,
}

/// A server and the connections to it.
pub(in crate::store) struct Server<B: Backend> {
    pub(in crate::store) address: ServerAddress,
    connections: Vec<Arc<Connection<B>>>,
}

impl<B: Backend, O: Default> ServerPool<B, O> {
    /// A pool of no servers yet, each of which is to have so many connections.
    pub(in crate::store) fn new(shared: Shared<B>, lanes_each: usize) -> Self {
        Self {
            shared: Arc::new(shared),
            known: ArcSwap::from_pointee(Known { servers: Vec::new(), owners: O::default() }),
            threads: Mutex::new(vec![None; lanes_each.max(1)]),
        }
    }

    /// The calling thread has this worker: from now on it runs that worker's connections.
    pub(in crate::store) fn start_worker(&self, worker: usize) {
        let mut threads = self.threads();
        let Some(place) = threads.get_mut(worker) else { return };
        let handle = Handle::current();
        for connection in self.known.load().servers.iter().filter_map(|server| server.connections.get(worker))
        {
            handle.spawn(connection.clone().keep_running());
        }
        *place = Some(handle);
    }

    /// These are the servers from now on, in this order. Connections to those that were known stay; to those that
    /// are gone they end.
    pub(in crate::store) fn meet(&self, addresses: &[ServerAddress], owners: O) {
        let threads = self.threads();
        let known = self.known.load_full();
        let mut left: Vec<_> = known.servers.iter().collect();
        let server = |address: &ServerAddress| {
            // One that is named twice has two shares of the keys, and connections of its own for each.
            let connections = match left.iter().position(|server| server.address == *address) {
                Some(place) => left.swap_remove(place).connections.clone(),
                None => self.open(address, &threads),
            };
            Server { address: address.clone(), connections }
        };
        let servers = addresses.iter().map(server).collect();
        self.known.store(Arc::new(Known { servers, owners }));
        left.iter().flat_map(|server| &server.connections).for_each(|connection| connection.end());
    }

    fn open(&self, address: &ServerAddress, threads: &[Option<Handle>]) -> Vec<Arc<Connection<B>>> {
        let open = |thread: &Option<Handle>| {
            let connection = Arc::new(Connection::new(address.clone(), self.shared.clone()));
            if let Some(thread) = thread {
                thread.spawn(connection.clone().keep_running());
            }
            connection
        };
        threads.iter().map(open).collect()
    }

    /// The calling thread's connection to the server whose place `choose` tells; none where there is no such server.
    pub(in crate::store) fn connection(
        &self,
        choose: impl FnOnce(&Known<B, O>) -> Option<usize>,
    ) -> Option<Arc<Connection<B>>> {
        let known = self.known.load();
        let connections = &known.servers.get(choose(&known)?)?.connections;
        connections.get(WORKER_INDEX.get() % connections.len().max(1)).cloned()
    }

    /// Every connection to every server.
    pub(in crate::store) fn each_connection(&self, each: impl FnMut(&Arc<Connection<B>>)) {
        self.known.load().servers.iter().flat_map(|server| &server.connections).for_each(each);
    }

    /// True when every server can be asked.
    pub(in crate::store) fn is_reachable(&self) -> bool {
        let known = self.known.load();
        let is_open = |server: &Server<B>| server.connections.iter().any(|connection| connection.is_open());
        !known.servers.is_empty() && known.servers.iter().all(is_open)
    }

    /// How the connections fare.
    pub(in crate::store) fn usage(&self, kind: StoreKind) -> PoolUsage {
        let known = self.known.load();
        let connections = || known.servers.iter().flat_map(|server| &server.connections);
        PoolUsage {
            kind,
            breakers_open: connections().filter(|connection| connection.is_breaker_open()).count() as u64,
            queued: connections().map(|connection| connection.load().0 as u64).sum(),
            max_outstanding: connections().map(|connection| connection.load().1 as u64).sum(),
            max_queued: (connections().count() as u64).saturating_mul(self.shared.bounds.max_queued as u64),
            ..self.shared.metrics.usage()
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Option<Handle>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
