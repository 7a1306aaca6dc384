//! Connections between processes and servers: bytes in flight with a delay, and what networks do to them.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use serde::{Deserialize, Serialize};
use simulated_redis::ConnectionId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    random::Random,
    world::{Event, Micros, Process, World},
};

/// Bytes in flight to a server; a writer waits for room.
const WINDOW: usize = 64 * 1024;

pub struct Network {
    pub world: Arc<World>,
    links: Mutex<Vec<Arc<Link>>>,
    weather: Mutex<Weather>,
    /// When a half-open connection was last found to be one: an idle one of a cluster waits for its next request.
    pub found: AtomicU64,
}

/// The state of the network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Weather {
    /// A packet's least delay, and the bound of what is added at random.
    pub delay: Micros,
    pub jitter: Micros,
    /// One in this many packets is late by up to ten milliseconds; 0 for none. It ends at the second time.
    pub late: u64,
    pub late_until: Micros,
    /// One in this many reads and writes is partial; 0 for none.
    pub partial: u64,
    /// Nothing is delivered to and from these before this time, by process; all if the process is `None`.
    #[serde(skip)]
    pub stalls: Vec<(Option<Process>, Micros)>,
    /// Connections of these processes are not opened before this time.
    #[serde(skip)]
    pub unreachable: Vec<(Option<Process>, Micros)>,
    /// How much longer a packet takes to and from these.
    #[serde(skip)]
    pub distances: Vec<(Process, Micros)>,
}

pub struct Link {
    pub number: usize,
    pub process: Process,
    /// That of the server.
    pub port: u16,
    pub state: Mutex<LinkState>,
}

#[derive(Default)]
pub struct LinkState {
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    /// The arrival of the last packet in each direction.
    last: [Micros; 2],
    in_flight: usize,
    arrived: VecDeque<u8>,
    waker: Option<Waker>,
    pub is_open: Option<bool>,
    pub is_closed_by_server: bool,
    pub is_closed_by_client: bool,
    pub is_reset: bool,
    /// What is sent disappears.
    pub is_half_open: bool,
    /// It was sent something since.
    is_found: bool,
    pub connection: Option<ConnectionId>,
}

impl Network {
    pub fn new(world: &Arc<World>, weather: Weather) -> Arc<Self> {
        let (links, weather) = (Mutex::default(), Mutex::new(weather));
        Arc::new(Self { world: world.clone(), links, weather, found: AtomicU64::new(0) })
    }

    pub fn weather(&self) -> MutexGuard<'_, Weather> {
        self.weather.lock().expect("nothing panics with it")
    }

    pub fn link(&self, number: usize) -> Arc<Link> {
        self.links.lock().expect("nothing panics with it")[number].clone()
    }

    /// The connections that no side has closed.
    pub fn open_links(&self) -> Vec<Arc<Link>> {
        let is_open = |link: &&Arc<Link>| {
            let state = link.lock();
            state.is_open == Some(true) && !state.is_reset && !state.is_closed_by_client
        };
        self.links.lock().expect("nothing panics with it").iter().filter(is_open).cloned().collect()
    }

    /// Sends the first packet of a connection.
    pub fn open(&self, process: Process, port: u16) -> Arc<Link> {
        let mut links = self.links.lock().expect("nothing panics with it");
        let state = Mutex::default();
        let link = Arc::new(Link { number: links.len(), process, port, state });
        links.push(link.clone());
        drop(links);
        let now = self.world.now();
        let weather = self.weather();
        let is_reachable = !weather.unreachable.iter().any(|one| concerns(*one, process, now));
        drop(weather);
        if is_reachable {
            let delay = self.delay(process);
            self.world.at(now + delay, Event::Open(link.number));
        }
        link
    }

    pub fn delay(&self, process: Process) -> Micros {
        let weather = self.weather();
        let Weather { delay, jitter, late, late_until, .. } = *weather;
        let distance = weather.distances.iter().find(|(of, _)| *of == process).map_or(0, |(_, more)| *more);
        drop(weather);
        let late = if self.world.now() < late_until { late } else { 0 };
        self.world.random(|random| {
            let spike = if late > 0 && random.one_in(late) { random.below(10_000) } else { 0 };
            distance + delay + random.below(jitter.max(1)) + spike
        })
    }

    /// True if a partial read or write is due.
    fn is_partial(&self) -> bool {
        let partial = self.weather().partial;
        partial > 0 && self.world.random(|random| random.one_in(partial))
    }

    /// Until when nothing is delivered to or from a process.
    pub fn stalled_until(&self, process: Process) -> Option<Micros> {
        let now = self.world.now();
        let weather = self.weather();
        let stalls = weather.stalls.iter().filter(|one| concerns(**one, process, now));
        stalls.map(|(_, until)| *until).max()
    }

    /// Sends bytes from a server, which has them at `ready`.
    pub fn reply(&self, link: &Link, bytes: Vec<u8>, ready: Micros) {
        let arrival = ready + self.delay(link.process);
        let mut state = link.lock();
        if state.is_half_open || state.is_reset {
            return;
        }
        let arrival = arrival.max(state.last[1]);
        state.last[1] = arrival;
        state.to_client.push_back(bytes);
        drop(state);
        self.world.at(arrival, Event::ToClient(link.number));
    }

    /// The next bytes that arrive at a server.
    pub fn arrive_at_server(&self, link: &Link) -> Option<Vec<u8>> {
        let mut state = link.lock();
        let bytes = state.to_server.pop_front()?;
        state.in_flight -= bytes.len();
        state.waker.take().into_iter().for_each(Waker::wake);
        Some(bytes)
    }

    /// The next bytes arrive at a client, perhaps a part of them first.
    pub fn arrive_at_client(&self, link: &Link) {
        let is_partial = self.is_partial();
        let mut state = link.lock();
        let Some(mut bytes) = state.to_client.pop_front() else { return };
        if is_partial && bytes.len() > 1 {
            let (first, pause) = self
                .world
                .random(|random| (1 + random.below(bytes.len() as u64 - 1) as usize, random.below(300)));
            state.to_client.push_front(bytes.split_off(first));
            self.world.at(self.world.now() + pause, Event::ToClient(link.number));
        }
        state.arrived.extend(bytes);
        state.wake();
    }

    /// The server closes a connection, after what it has sent.
    pub fn close_by_server(&self, link: &Link) {
        let mut state = link.lock();
        state.is_closed_by_server = true;
        state.wake();
    }

    /// A connection is reset: what is in flight to the client is lost, and maybe also what is in flight to the server.
    pub fn reset(&self, link: &Link) {
        let loses = self.world.random(|random| random.one_in(2));
        let mut state = link.lock();
        state.is_reset = true;
        state.to_client.clear();
        state.arrived.clear();
        if loses {
            state.to_server.clear();
            state.in_flight = 0;
        }
        state.wake();
        drop(state);
        self.world.at(self.world.now() + self.delay(link.process), Event::ClientClosed(link.number));
    }
}

/// True if a condition of a process, or of all, holds now.
fn concerns((of, until): (Option<Process>, Micros), process: Process, now: Micros) -> bool {
    now < until && of.is_none_or(|of| of == process)
}

impl Link {
    pub fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().expect("nothing panics with it")
    }
}

impl LinkState {
    pub fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn failure(&self) -> Option<io::Error> {
        self.is_reset.then(|| io::ErrorKind::ConnectionReset.into())
    }
}

/// A process's end of a connection.
pub struct Socket {
    network: Arc<Network>,
    link: Arc<Link>,
}

impl Socket {
    /// Connects to a server of Redis.
    pub async fn connect(network: Arc<Network>, process: Process, port: u16) -> io::Result<Self> {
        let link = network.open(process, port);
        let socket = Self { network, link };
        let is_open = std::future::poll_fn(|context| {
            let mut state = socket.link.lock();
            let Some(is_open) = state.is_open else {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            Poll::Ready(is_open)
        });
        if is_open.await { Ok(socket) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_partial = self.network.is_partial();
        let mut state = self.link.lock();
        if let Some(error) = state.failure() {
            return Poll::Ready(Err(error));
        }
        if state.arrived.is_empty() {
            if state.is_closed_by_server && state.to_client.is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut length = state.arrived.len().min(into.remaining());
        if is_partial && length > 1 {
            length =
                self.network.world.random(|random: &mut Random| 1 + random.below(length as u64 - 1) as usize);
        }
        state.arrived.drain(..length).for_each(|byte| into.put_slice(&[byte]));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let is_partial = self.network.is_partial();
        let delay = self.network.delay(self.link.process);
        let now = self.network.world.now();
        let mut state = self.link.lock();
        if let Some(error) = state.failure() {
            return Poll::Ready(Err(error));
        }
        if state.in_flight >= WINDOW {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut length = bytes.len();
        if is_partial && length > 1 {
            length = self.network.world.random(|random| 1 + random.below(length as u64 - 1) as usize);
        }
        if state.is_half_open {
            if !std::mem::replace(&mut state.is_found, true) {
                self.network.found.store(now, Relaxed);
            }
            return Poll::Ready(Ok(length));
        }
        state.to_server.push_back(bytes[..length].to_vec());
        state.in_flight += length;
        let arrival = (now + delay).max(state.last[0]);
        state.last[0] = arrival;
        drop(state);
        self.network.world.at(arrival, Event::ToServer(self.link.number));
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let delay = self.network.delay(self.link.process);
        let arrival = {
            let mut state = self.link.lock();
            state.is_closed_by_client = true;
            state.last[0].max(self.network.world.now() + delay)
        };
        self.network.world.at(arrival, Event::ClientClosed(self.link.number));
    }
}
