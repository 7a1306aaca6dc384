//! The servers of a store as they are known now, and the lanes to each: one for each thread that asks.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use super::{Backend, Lane, Shared};
use crate::{
    settings::ServerAddress,
    store::{PoolUsage, StoreKind},
};

thread_local! {
    /// Which lanes the thread runs, and asks; one that runs none asks the first.
    static SEAT: Cell<usize> = const { Cell::new(0) };
}

/// Gives seats to the threads that ask.
#[derive(Default)]
pub(in crate::store) struct Seats(AtomicUsize);

impl Seats {
    /// The calling thread takes the next seat.
    pub(in crate::store) fn take(&self) -> usize {
        let seat = self.0.fetch_add(1, Relaxed);
        SEAT.set(seat);
        seat
    }
}

/// Servers, and the lanes to them.
pub(in crate::store) struct Fleet<B: Backend, O> {
    pub(in crate::store) shared: Arc<Shared<B>>,
    known: ArcSwap<Known<B, O>>,
    /// The threads that run lanes, by their seats.
    threads: Mutex<Vec<Option<Handle>>>,
}

/// Whom to ask.
pub(in crate::store) struct Known<B: Backend, O> {
    pub(in crate::store) servers: Vec<Server<B>>,
    /// What tells which of them owns a key.
    pub(in crate::store) owners: O,
}

/// A server and the lanes to it.
pub(in crate::store) struct Server<B: Backend> {
    pub(in crate::store) address: ServerAddress,
    lanes: Vec<Arc<Lane<B>>>,
}

impl<B: Backend, O: Default> Fleet<B, O> {
    /// A fleet of no servers yet, each of which is to have so many lanes.
    pub(in crate::store) fn new(shared: Shared<B>, lanes_each: usize) -> Self {
        Self {
            shared: Arc::new(shared),
            known: ArcSwap::from_pointee(Known { servers: Vec::new(), owners: O::default() }),
            threads: Mutex::new(vec![None; lanes_each.max(1)]),
        }
    }

    /// The calling thread has this seat: from now on it runs that seat's lanes.
    pub(in crate::store) fn attend(&self, seat: usize) {
        let mut threads = self.threads();
        let Some(place) = threads.get_mut(seat) else { return };
        let handle = Handle::current();
        for lane in self.known.load().servers.iter().filter_map(|server| server.lanes.get(seat)) {
            handle.spawn(lane.clone().keep_running());
        }
        *place = Some(handle);
    }

    /// These are the servers from now on, in this order. Lanes to those that were known stay; to those that
    /// are gone they end.
    pub(in crate::store) fn meet(&self, addresses: &[ServerAddress], owners: O) {
        let threads = self.threads();
        let known = self.known.load_full();
        let mut left: Vec<_> = known.servers.iter().collect();
        let server = |address: &ServerAddress| {
            // One that is named twice has two shares of the keys, and lanes of its own for each.
            let lanes = match left.iter().position(|server| server.address == *address) {
                Some(place) => left.swap_remove(place).lanes.clone(),
                None => self.open(address, &threads),
            };
            Server { address: address.clone(), lanes }
        };
        let servers = addresses.iter().map(server).collect();
        self.known.store(Arc::new(Known { servers, owners }));
        left.iter().flat_map(|server| &server.lanes).for_each(|lane| lane.end());
    }

    fn open(&self, address: &ServerAddress, threads: &[Option<Handle>]) -> Vec<Arc<Lane<B>>> {
        let open = |thread: &Option<Handle>| {
            let lane = Arc::new(Lane::new(address.clone(), self.shared.clone()));
            if let Some(thread) = thread {
                thread.spawn(lane.clone().keep_running());
            }
            lane
        };
        threads.iter().map(open).collect()
    }

    /// The calling thread's lane to the server whose place `choose` tells; none where there is no such server.
    pub(in crate::store) fn lane(
        &self,
        choose: impl FnOnce(&Known<B, O>) -> Option<usize>,
    ) -> Option<Arc<Lane<B>>> {
        let known = self.known.load();
        let lanes = &known.servers.get(choose(&known)?)?.lanes;
        lanes.get(SEAT.get() % lanes.len().max(1)).cloned()
    }

    /// Every lane to every server.
    pub(in crate::store) fn each_lane(&self, each: impl FnMut(&Arc<Lane<B>>)) {
        self.known.load().servers.iter().flat_map(|server| &server.lanes).for_each(each);
    }

    /// True when every server can be asked.
    pub(in crate::store) fn is_reachable(&self) -> bool {
        let known = self.known.load();
        let is_open = |server: &Server<B>| server.lanes.iter().any(|lane| lane.is_open());
        !known.servers.is_empty() && known.servers.iter().all(is_open)
    }

    /// How the connections fare.
    pub(in crate::store) fn usage(&self, kind: StoreKind) -> PoolUsage {
        let known = self.known.load();
        let lanes = || known.servers.iter().flat_map(|server| &server.lanes);
        PoolUsage {
            kind,
            breakers_open: lanes().filter(|lane| lane.is_shut()).count() as u64,
            queued: lanes().map(|lane| lane.load().0 as u64).sum(),
            max_outstanding: lanes().map(|lane| lane.load().1 as u64).sum(),
            max_queued: (lanes().count() as u64).saturating_mul(self.shared.bounds.max_queued as u64),
            ..self.shared.meters.usage()
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Option<Handle>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
