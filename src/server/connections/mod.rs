//! The connections of one port: who is admitted, and who makes room when the port is full.
//!
//! Every port has one [`Registry`], shared by the thread that accepts connections and the workers that serve
//! them. The gRPC server and the HTTP server use it; nothing here knows a protocol or a socket.
//!
//! ```text
//! admit ─▶ silent ──ready()──▶ idle ──busy()──▶ busy
//!                               ▲──────idle()────┘
//! ```
//!
//! How a server uses it:
//!
//! 1. [`Registry::admit`] for an accepted socket, before anything else is done for it. An error means: close the
//!    socket. The refusal is counted and logged already.
//! 2. The [`Handle`] belongs to the connection and is dropped with it.
//! 3. [`Handle::ready`] once the peer has shown that it speaks the protocol: after the HTTP/2 preface and the first
//!    SETTINGS (with TLS: after those too, not after the handshake), or the first byte of HTTP/1. Until then the
//!    connection is silent. `ready` takes a lock, once in a connection's life.
//! 4. [`Handle::busy`] when the first request is under way, [`Handle::idle`] when none is any more. Each is one
//!    relaxed store of a word: cheap enough for every request. `idle` takes the time as an argument, so that a
//!    server that has read the clock need not read it again.
//! 5. The connection waits for [`Handle::closing`] beside its other work. It completes at most once, when the
//!    connection has to make room for another. [`Closing::Silent`]: close at once. [`Closing::Idle`]: send GOAWAY, answer what
//!    still comes, close within [`FAREWELL`]. The place is free from the moment of the request.
//! 6. A server that closes a connection for its own reason, such as a time limit, counts that by [`Handle::count`].
//!
//! When the port is full, or the peer's address is at its limit, room is made: by the connection that is silent
//! longest, else by the one that is idle longest; busy ones stay. At an address's limit, only connections of that
//! address make room.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;
use tracing::warn;

use crate::{
    log_throttle::LogThrottle,
    mutex::lock,
    telemetry::metrics::{ConnectionClosed, ConnectionRefused, Port, Stats},
};

/// How long a connection that was idle may take to close after it was asked to make room.
pub const FAREWELL: Duration = Duration::from_secs(1);

/// Candidates found by one scan of all connections. A scan of 10,000 takes about 100 µs; with this many
/// candidates it costs less than a microsecond per connection that makes room.
const CANDIDATES: usize = 256;

/// The pause after a scan that found no idle connection.
const SCAN_PAUSE: Duration = Duration::from_millis(100);

/// How many connections a port holds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time.
    pub connections: usize,
    /// Connections of one peer address at one time; of IPv6, of one network of 64 bits.
    pub per_address: usize,
    /// How long a connection must have been silent or idle before it makes room.
    pub patience: Duration,
    /// Idle connections that may be closed in a second to make room. Without it, more live clients than places
    /// would spend their time connecting.
    pub idle_closed_per_second: usize,
    /// Names both limits to the operator.
    pub names: [&'static str; 2],
}

/// The connections of one port.
pub struct Registry {
    port: Port,
    limits: Limits,
    stats: Arc<Stats>,
    start: Instant,
    /// Lines about refused and closed connections.
    log: LogThrottle,
    members: Mutex<Members>,
}

/// One connection's place in its registry. The place is given back when this is dropped.
pub struct Handle {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
}

/// Why a connection has to make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// It never said anything.
    Silent,
    /// It was idle longest.
    Idle,
}

/// What the registry and the connection share.
struct Entry {
    id: u64,
    address: Option<IpAddr>,
    /// In microseconds since the registry's start.
    admitted: u64,
    /// [`SILENT`], [`BUSY`], or the microseconds since the registry's start at which it became idle.
    state: AtomicU64,
    closing: Notify,
}

const BUSY: u64 = u64::MAX;
const SILENT: u64 = u64::MAX - 1;

#[derive(Default)]
struct Members {
    next_id: u64,
    entries: HashMap<u64, Arc<Entry>>,
    everyone: Scope,
    by_address: HashMap<IpAddr, Scope>,
    idle_closed: Allowance,
}

/// All connections, or those of one address.
#[derive(Default)]
struct Scope {
    open: usize,
    /// In the order of their admission.
    silent: BTreeSet<u64>,
    /// Idle connections with the moment since when; the one idle longest comes last. Those that have been busy
    /// since do not count. All others became idle later, so that the order holds between two scans.
    candidates: Vec<(u64, u64)>,
    /// The moment of the last scan that found no idle connection.
    nobody_idle: Option<Instant>,
}

/// What was used of an allowance per second.
#[derive(Default)]
struct Allowance {
    second: Option<Instant>,
    used: usize,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new(port: Port, limits: Limits, stats: Arc<Stats>, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            port,
            limits,
            stats,
            start: now,
            log: LogThrottle::new(10),
            members: Mutex::default(),
        })
    }

    /// Admits a connection of this peer; a unix socket's peer has no address and no limit of its own.
    ///
    /// # Errors
    /// The limit that is reached while nobody can make room.
    pub fn admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        now: Instant,
    ) -> Result<Handle, ConnectionRefused> {
        self.try_admit(address, now).inspect_err(|reason| {
            self.stats.service().connections_refused(self.port, *reason).increment();
            let event = "connection refused: limit reached, all others are busy";
            self.log(&lock(&self.members), event, *reason);
        })
    }

    /// Admits a connection of this peer; a refusal is neither counted nor logged.
    ///
    /// # Errors
    /// As [`Registry::admit`].
    pub fn try_admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        now: Instant,
    ) -> Result<Handle, ConnectionRefused> {
        let address = address.map(network);
        let mut members = lock(&self.members);
        self.find_place(&mut members, address, now)?;
        let id = members.next_id;
        members.next_id = id.wrapping_add(1);
        let entry = Arc::new(Entry {
            id,
            address,
            admitted: self.micros(now),
            state: AtomicU64::new(SILENT),
            closing: Notify::new(),
        });
        for scope in members.scopes(address) {
            scope.open = scope.open.saturating_add(1);
            scope.silent.insert(id);
        }
        members.entries.insert(id, entry.clone());
        Ok(Handle { registry: self.clone(), entry })
    }

    /// The connections that hold a place now.
    #[must_use]
    pub fn open(&self) -> usize {
        lock(&self.members).everyone.open
    }

    fn find_place(
        &self,
        members: &mut Members,
        address: Option<IpAddr>,
        now: Instant,
    ) -> Result<(), ConnectionRefused> {
        let of_address =
            address.and_then(|address| members.by_address.get(&address)).map_or(0, |peer| peer.open);
        if of_address >= self.limits.per_address && !self.make_room(members, address, now) {
            return Err(ConnectionRefused::PerAddress);
        }
        if members.everyone.open >= self.limits.connections && !self.make_room(members, None, now) {
            return Err(ConnectionRefused::Total);
        }
        Ok(())
    }

    /// Has one connection close, of this address or of any. False when all are busy.
    fn make_room(&self, members: &mut Members, address: Option<IpAddr>, now: Instant) -> bool {
        let before = self.micros(now).checked_sub(self.patience_micros());
        let Some(before) = before else { return false };
        let (id, closed) = match members.longest_silent(address, before) {
            Some(id) => (id, ConnectionClosed::Silent),
            None => match self.longest_idle(members, address, before, now) {
                Some(id) => (id, ConnectionClosed::Idle),
                None => return false,
            },
        };
        let Some(entry) = members.remove(id) else { return false };
        entry.closing.notify_one();
        self.stats.service().connections_closed_by_us(self.port, closed).increment();
        let reason = if address.is_some() { ConnectionRefused::PerAddress } else { ConnectionRefused::Total };
        self.log(members, "connection closed to make room: limit reached", reason);
        true
    }

    fn longest_idle(
        &self,
        members: &mut Members,
        address: Option<IpAddr>,
        before: u64,
        now: Instant,
    ) -> Option<u64> {
        if !members.idle_closed.is_left(self.limits.idle_closed_per_second, now) {
            return None;
        }
        let id = members.longest_idle(address, before, now)?;
        members.idle_closed.used = members.idle_closed.used.saturating_add(1);
        Some(id)
    }

    fn log(&self, members: &Members, event: &str, reason: ConnectionRefused) {
        if self.log.admit_now().is_none() {
            return;
        }
        let [total, per_address] = self.limits.names;
        let (limit, value) = match reason {
            ConnectionRefused::Total => (total, self.limits.connections),
            ConnectionRefused::PerAddress => (per_address, self.limits.per_address),
        };
        warn!(port = self.port.name(), limit, value, open = members.everyone.open, "{event}");
    }

    fn patience_micros(&self) -> u64 {
        u64::try_from(self.limits.patience.as_micros()).unwrap_or(u64::MAX)
    }

    fn micros(&self, now: Instant) -> u64 {
        let micros = now.saturating_duration_since(self.start).as_micros();
        u64::try_from(micros).unwrap_or(SILENT).min(SILENT.saturating_sub(1))
    }
}

impl Members {
    fn scope(&mut self, address: Option<IpAddr>) -> Option<&mut Scope> {
        match address {
            None => Some(&mut self.everyone),
            Some(address) => self.by_address.get_mut(&address),
        }
    }

    /// The scopes that a connection of this address is in.
    fn scopes(&mut self, address: Option<IpAddr>) -> impl Iterator<Item = &mut Scope> {
        let peer = address.map(|address| self.by_address.entry(address).or_default());
        std::iter::once(&mut self.everyone).chain(peer)
    }

    /// The connection that is silent longest, if it was admitted before.
    fn longest_silent(&mut self, address: Option<IpAddr>, before: u64) -> Option<u64> {
        let id = *self.scope(address)?.silent.first()?;
        self.entries.get(&id).filter(|entry| entry.admitted <= before).map(|_| id)
    }

    /// The connection that is idle longest, if it became so before.
    fn longest_idle(&mut self, address: Option<IpAddr>, before: u64, now: Instant) -> Option<u64> {
        let mut candidates = std::mem::take(&mut self.scope(address)?.candidates);
        let mut found = self.still_idle(&mut candidates);
        if found.is_none() && !self.scope(address)?.was_scanned_in_vain(now) {
            candidates = self.scan(address, before);
            found = self.still_idle(&mut candidates);
            self.scope(address)?.nobody_idle = found.is_none().then_some(now);
        }
        self.scope(address)?.candidates = candidates;
        found
    }

    /// Takes the last candidate that has been idle since it was found.
    fn still_idle(&self, candidates: &mut Vec<(u64, u64)>) -> Option<u64> {
        while let Some((since, id)) = candidates.pop() {
            if self.entries.get(&id).is_some_and(|entry| entry.state.load(Ordering::Relaxed) == since) {
                return Some(id);
            }
        }
        None
    }

    /// Those idle longest, the longest last.
    fn scan(&self, address: Option<IpAddr>, before: u64) -> Vec<(u64, u64)> {
        let of_scope = |entry: &&Arc<Entry>| address.is_none() || entry.address == address;
        let idle = self
            .entries
            .values()
            .filter(of_scope)
            .map(|entry| (entry.state.load(Ordering::Relaxed), entry.id));
        let mut idle: Vec<_> = idle.filter(|(state, _)| *state <= before).collect();
        if idle.len() > CANDIDATES {
            idle.select_nth_unstable(CANDIDATES);
            idle.truncate(CANDIDATES);
        }
        idle.sort_unstable_by(|one, other| other.cmp(one));
        idle
    }

    /// Gives a connection's place back; nothing when it has none any more.
    fn remove(&mut self, id: u64) -> Option<Arc<Entry>> {
        let entry = self.entries.remove(&id)?;
        for scope in self.scopes(entry.address) {
            scope.open = scope.open.saturating_sub(1);
            scope.silent.remove(&id);
        }
        if let Some(address) = entry.address
            && self.by_address.get(&address).is_some_and(|peer| peer.open == 0)
        {
            self.by_address.remove(&address);
        }
        Some(entry)
    }
}

impl Scope {
    fn was_scanned_in_vain(&self, now: Instant) -> bool {
        self.nobody_idle.is_some_and(|scan| now.saturating_duration_since(scan) < SCAN_PAUSE)
    }
}

impl Allowance {
    fn is_left(&mut self, per_second: usize, now: Instant) -> bool {
        let is_over = |second| now.saturating_duration_since(second) >= Duration::from_secs(1);
        if self.second.is_none_or(is_over) {
            *self = Self { second: Some(now), used: 0 };
        }
        self.used < per_second
    }
}

impl Handle {
    /// The peer has shown that it speaks the protocol; no request is under way.
    pub fn ready(&self, now: Instant) {
        if !self.is_silent() {
            return;
        }
        self.idle(now);
        let mut members = lock(&self.registry.members);
        if members.entries.contains_key(&self.entry.id) {
            for scope in members.scopes(self.entry.address) {
                scope.silent.remove(&self.entry.id);
            }
        }
    }

    /// A request is under way.
    pub fn busy(&self) {
        self.entry.state.store(BUSY, Ordering::Relaxed);
    }

    /// No request is under way any more.
    pub fn idle(&self, now: Instant) {
        self.entry.state.store(self.registry.micros(now), Ordering::Relaxed);
    }

    /// True until [`Handle::ready`].
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.entry.state.load(Ordering::Relaxed) == SILENT
    }

    /// Completes when the connection has to make room for another.
    pub async fn closing(&self) -> Closing {
        self.entry.closing.notified().await;
        if self.is_silent() { Closing::Silent } else { Closing::Idle }
    }

    /// Counts that the server closes the connection for this reason.
    pub fn count(&self, reason: ConnectionClosed) {
        self.registry.stats.service().connections_closed_by_us(self.registry.port, reason).increment();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.registry.members).remove(self.entry.id);
    }
}

/// What counts as one peer: an IPv4 address, or a network of 64 bits, of which an IPv6 host may use every address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}
