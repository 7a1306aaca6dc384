//! The connections of one port: admits new ones, and closes silent or idle ones for them when the port is full.
//!
//! Every port, gRPC or HTTP, has one [`Registry`], shared by the thread that accepts connections and the workers that
//! serve them. It does not depend on a protocol or a socket.
//!
//! ```text
//! admit ─▶ silent ──ready()──▶ idle ──busy()──▶ busy
//!                               ▲──────idle()────┘
//! ```
//!
//! A server uses it as follows:
//!
//! 1. [`Registry::admit`] for an accepted socket, before anything else. After an error, close the socket: the rejection
//!    is already counted and logged.
//! 2. The connection owns the [`Handle`] and drops it at its end.
//! 3. [`Handle::ready`] once the peer has shown that it speaks the protocol: after the HTTP/2 preface and the first
//!    SETTINGS (not after the TLS handshake), or the first byte of HTTP/1. Until then the connection is silent. `ready`
//!    takes a lock, once per connection.
//! 4. [`Handle::busy`] when the first request opens, [`Handle::idle`] when the last one ends. Each is one relaxed store,
//!    cheap enough for every request.
//! 5. The connection waits for [`Handle::closing`] beside its other work. [`Closing::Silent`]: close at once.
//!    [`Closing::Idle`]: send GOAWAY, finish open requests, close within [`FAREWELL`]. The place is already free.
//! 6. [`Handle::count`] when the server closes the connection for a reason of its own, such as a time limit.
//!
//! If the port is full or the peer's address is at its limit, the connection that is silent longest makes room, else the
//! one that is idle longest; busy ones stay. At an address's limit, only connections of that address make room.

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

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tracing::warn;

use faults::{log_throttle::LogThrottle, mutex::lock};
use metrics::{ConnectionClosed, ConnectionRefused, Port, Stats};

/// The time for an idle connection to close after [`Handle::closing`].
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// The maximum number of candidates from one scan of all connections. A scan of 10,000 takes about 100 µs, which is less
/// than a microsecond per candidate.
const CANDIDATES: usize = 256;

/// The pause after a scan that found no idle connection.
const SCAN_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    pub(super) connections: usize,
    /// Maximum number of connections of one peer address; of IPv6, of one /64 network.
    pub(super) per_address: usize,
    /// Minimum silent or idle time of a connection that makes room.
    pub(super) patience: Duration,
    /// Maximum number of idle connections per second that make room. Without it, more live clients than places would
    /// reconnect all the time.
    pub(super) idle_closed_per_second: usize,
    /// The variables of both connection limits, for log lines.
    pub(super) names: [&'static str; 2],
}

pub(super) struct Registry {
    port: Port,
    limits: ConnectionLimits,
    stats: Arc<Stats>,
    start: Instant,
    log: LogThrottle,
    members: Mutex<Members>,
}

/// One connection's place in its registry, until it is dropped.
pub(super) struct Handle {
    registry: Arc<Registry>,
    entry: Arc<Listed>,
}

/// The state of a connection that has to make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closing {
    /// No preface was received.
    Silent,
    /// No request is open.
    Idle,
}

/// Shared by the registry and the connection.
struct Listed {
    id: u64,
    address: Option<IpAddr>,
    /// In microseconds since the registry's start.
    admitted: u64,
    /// [`SILENT`], [`BUSY`], or the microseconds since the registry's start at which it became idle.
    state: AtomicU64,
    /// Shared by the places of a connection that has several.
    closing: Arc<Notify>,
}

const BUSY: u64 = u64::MAX;
const SILENT: u64 = u64::MAX - 1;

#[derive(Default)]
struct Members {
    next_id: u64,
    entries: HashMap<u64, Arc<Listed>>,
    all: Scope,
    by_address: HashMap<IpAddr, Scope>,
    idle_closed: Allowance,
}

/// All connections, or those of one address.
#[derive(Default)]
struct Scope {
    open: usize,
    /// In the order of admission.
    silent: BTreeSet<u64>,
    /// Idle connections with the time since which they are idle, the longest last. An entry is stale if its connection
    /// was busy since. Connections that are not in the list became idle later, so the order holds between two scans.
    candidates: Vec<(u64, u64)>,
    /// The time of the last scan, if it found no idle connection.
    failed_scan: Option<Instant>,
}

/// The use of an allowance per second.
#[derive(Default)]
struct Allowance {
    second: Option<Instant>,
    used: usize,
}

impl Registry {
    pub(super) fn new(port: Port, limits: ConnectionLimits, stats: Arc<Stats>, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            port,
            limits,
            stats,
            start: now,
            log: LogThrottle::new(10),
            members: Mutex::default(),
        })
    }

    /// Admits a connection of this peer. The peer of a unix socket has no address and no limit per address.
    /// The error is the limit that is reached, if no connection can make room.
    pub(super) fn admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        now: Instant,
    ) -> Result<Handle, ConnectionRefused> {
        self.try_admit(address, None, now).inspect_err(|reason| {
            self.stats.service().connections_refused(self.port, *reason).increment();
            self.log(&lock(&self.members), "connection refused: limit reached, all others are busy", *reason);
        })
    }

    /// [`admit`](Self::admit), but a rejection is neither counted nor logged. `other` is a place of the same connection in
    /// another registry.
    pub(super) fn try_admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        other: Option<&Handle>,
        now: Instant,
    ) -> Result<Handle, ConnectionRefused> {
        let address = address.map(network);
        let mut members = lock(&self.members);
        let peer = address.and_then(|address| members.by_address.get(&address));
        let open = peer.map_or(0, |peer| peer.open);
        if open >= self.limits.per_address && !self.make_room(&mut members, address, now) {
            return Err(ConnectionRefused::PerAddress);
        }
        if members.all.open >= self.limits.connections && !self.make_room(&mut members, None, now) {
            return Err(ConnectionRefused::Total);
        }
        let id = members.next_id;
        members.next_id = id.wrapping_add(1);
        let entry = Arc::new(Listed {
            id,
            address,
            admitted: self.micros(now),
            state: AtomicU64::new(SILENT),
            closing: other.map(|other| other.entry.closing.clone()).unwrap_or_default(),
        });
        for scope in members.scopes(address) {
            scope.open += 1;
            scope.silent.insert(id);
        }
        members.entries.insert(id, entry.clone());
        Ok(Handle { registry: self.clone(), entry })
    }

    pub(super) fn open(&self) -> usize {
        lock(&self.members).all.open
    }

    /// Closes one connection, of this address or of any; false if all are busy.
    fn make_room(&self, members: &mut Members, address: Option<IpAddr>, now: Instant) -> bool {
        let patience = u64::try_from(self.limits.patience.as_micros()).unwrap_or(u64::MAX);
        let Some(before) = self.micros(now).checked_sub(patience) else { return false };
        let (id, closed) = if let Some(id) = members.longest_silent(address, before) {
            (id, ConnectionClosed::Silent)
        } else if members.idle_closed.is_left(self.limits.idle_closed_per_second, now)
            && let Some(id) = members.longest_idle(address, before, now)
        {
            members.idle_closed.used += 1;
            (id, ConnectionClosed::Idle)
        } else {
            return false;
        };
        let Some(entry) = members.remove(id) else { return false };
        entry.closing.notify_one();
        self.stats.service().connections_closed_by_us(self.port, closed).increment();
        let reason = if address.is_some() { ConnectionRefused::PerAddress } else { ConnectionRefused::Total };
        self.log(members, "connection closed to make room: limit reached", reason);
        true
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
        warn!(port = self.port.name(), limit, value, open = members.all.open, "{event}");
    }

    fn micros(&self, now: Instant) -> u64 {
        let micros = now.saturating_duration_since(self.start).as_micros();
        u64::try_from(micros).unwrap_or(SILENT).min(SILENT - 1)
    }
}

impl Members {
    fn scope(&mut self, address: Option<IpAddr>) -> Option<&mut Scope> {
        match address {
            None => Some(&mut self.all),
            Some(address) => self.by_address.get_mut(&address),
        }
    }

    /// The scopes that a connection of this address is in.
    fn scopes(&mut self, address: Option<IpAddr>) -> impl Iterator<Item = &mut Scope> {
        let peer = address.map(|address| self.by_address.entry(address).or_default());
        std::iter::once(&mut self.all).chain(peer)
    }

    /// The connection that is silent longest, if it was admitted at `before` or earlier.
    fn longest_silent(&mut self, address: Option<IpAddr>, before: u64) -> Option<u64> {
        let id = *self.scope(address)?.silent.first()?;
        self.entries.get(&id).filter(|entry| entry.admitted <= before).map(|_| id)
    }

    /// The connection that is idle longest, if it became idle at `before` or earlier.
    fn longest_idle(&mut self, address: Option<IpAddr>, before: u64, now: Instant) -> Option<u64> {
        let scope = self.scope(address)?;
        let may_scan = scope.failed_scan.is_none_or(|scan| now.saturating_duration_since(scan) >= SCAN_PAUSE);
        let mut candidates = std::mem::take(&mut scope.candidates);
        let mut found = self.still_idle(&mut candidates);
        if found.is_none() && may_scan {
            candidates = self.scan(address, before);
            found = self.still_idle(&mut candidates);
            self.scope(address)?.failed_scan = found.is_none().then_some(now);
        }
        self.scope(address)?.candidates = candidates;
        found
    }

    /// Takes the last candidate that has been idle since it was found.
    fn still_idle(&self, candidates: &mut Vec<(u64, u64)>) -> Option<u64> {
        std::iter::from_fn(|| candidates.pop())
            .find(|(since, id)| self.entries.get(id).is_some_and(|entry| entry.state() == *since))
            .map(|(_, id)| id)
    }

    /// The connections that are idle longest, the longest last.
    fn scan(&self, address: Option<IpAddr>, before: u64) -> Vec<(u64, u64)> {
        let in_scope = self.entries.values().filter(|entry| address.is_none() || entry.address == address);
        let states = in_scope.map(|entry| (entry.state(), entry.id));
        let mut idle: Vec<_> = states.filter(|(state, _)| *state <= before).collect();
        if idle.len() > CANDIDATES {
            idle.select_nth_unstable(CANDIDATES);
            idle.truncate(CANDIDATES);
        }
        idle.sort_unstable_by(|one, other| other.cmp(one));
        idle
    }

    /// Removes a connection; `None` if it was already removed.
    fn remove(&mut self, id: u64) -> Option<Arc<Listed>> {
        let entry = self.entries.remove(&id)?;
        for scope in self.scopes(entry.address) {
            scope.open -= 1;
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

impl Listed {
    fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
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
    /// The peer has shown that it speaks the protocol; no request is open.
    pub(super) fn ready(&self, now: Instant) {
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

    pub(super) fn busy(&self) {
        self.entry.state.store(BUSY, Ordering::Relaxed);
    }

    /// The last request has ended.
    pub(super) fn idle(&self, now: Instant) {
        self.entry.state.store(self.registry.micros(now), Ordering::Relaxed);
    }

    /// True until [`Handle::ready`].
    pub(super) fn is_silent(&self) -> bool {
        self.entry.state() == SILENT
    }

    /// Completes when the connection has to make room, at most once.
    pub(super) async fn closing(&self) -> Closing {
        self.entry.closing.notified().await;
        if self.is_silent() { Closing::Silent } else { Closing::Idle }
    }

    /// True if the connection has to make room, which [`closing`](Self::closing) does not tell afterwards.
    pub(super) fn must_close(&self) -> bool {
        self.closing().now_or_never().is_some()
    }

    /// The address or network of the peer; `None` for a unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.entry.address
    }

    /// Counts a connection that the server closes for this reason.
    pub(super) fn count(&self, reason: ConnectionClosed) {
        self.registry.stats.service().connections_closed_by_us(self.registry.port, reason).increment();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.registry.members).remove(self.entry.id);
    }
}

/// The address that identifies a peer: IPv4, or the /64 network of IPv6, since a host may use every address of that.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}
