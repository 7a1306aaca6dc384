//! The connection to a sink: opened when needed, closed on failure, reopened with backoff.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use socket2::{SockAddr, Type};
use tracing::{debug, info, warn};

use crate::statsd::settings::SinkAddress;
use faults::log_throttle::LogThrottle;
use net::{HostPort, backoff::Backoff};

/// The connect timeout of the Go service's library.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// A sender of datagrams does not notice that the address of its host has changed.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(60);
const WARN_EVERY: u64 = 600;

pub(super) struct SinkConnection {
    target: SinkAddress,
    pub(super) is_configured: bool,
    socket: Option<Socket>,
    opened: Instant,
    /// Consecutive failures; selects among the addresses of a host.
    failures: usize,
    backoff: Backoff,
    not_before: Option<Instant>,
    warnings: LogThrottle,
    recoveries: LogThrottle,
    length_logged: bool,
}

struct Socket {
    inner: socket2::Socket,
    is_stream: bool,
    is_ip: bool,
}

impl SinkConnection {
    pub(super) fn new(target: SinkAddress, is_configured: bool) -> Self {
        Self {
            target,
            is_configured,
            socket: None,
            opened: Instant::now(),
            failures: 0,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            not_before: None,
            warnings: LogThrottle::new(WARN_EVERY),
            recoveries: LogThrottle::new(10),
            length_logged: false,
        }
    }

    /// True if the connection is open; reopens it after the backoff, or if this is the last flush.
    pub(super) fn is_open(&mut self, is_last: bool) -> bool {
        let is_old = self.opened.elapsed() > LOOK_UP_AGAIN;
        self.socket.take_if(|socket| (is_old && socket.is_udp()) || !socket.is_alive());
        if self.socket.is_some() {
            return true;
        }
        if !is_last && self.not_before.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        match Socket::open(&self.target, self.failures) {
            Ok(socket) => {
                self.socket = Some(socket);
                self.opened = Instant::now();
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// The maximum size of a packet: for a stream, that of a write of the Go service's library; for a Unix socket, that
    /// of a read of agents; for UDP, that of an Ethernet frame.
    pub(super) fn packet_bytes(&self) -> usize {
        match &self.socket {
            Some(Socket { is_stream: true, .. }) => 64 << 10,
            Some(Socket { is_ip: false, .. }) => 8 << 10,
            _ => 1432,
        }
    }

    /// Sends a packet, and returns the number of bytes sent and the error that stopped it.
    pub(super) fn send(&mut self, packet: &[u8]) -> (usize, io::Result<()>) {
        if packet.is_empty() {
            return (0, Ok(()));
        }
        let Some(socket) = &mut self.socket else { return (0, Err(io::ErrorKind::NotConnected.into())) };
        let (sent, result) = socket.send(packet);
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                if !std::mem::replace(&mut self.length_logged, true) {
                    warn!(sink = %self.target, bytes = packet.len(), "statsd: skipped a line that is too long");
                }
                (packet.len(), Ok(()))
            }
            result => (sent, result),
        }
    }

    pub(super) fn succeeded(&mut self) {
        if std::mem::take(&mut self.failures) > 0 && self.recoveries.admit_now().is_some() {
            info!(sink = %self.target, "statsd: sink recovered");
        }
        self.backoff.reset();
        self.not_before = None;
    }

    /// Closes the connection after a failure, and logs it unless one was logged recently.
    pub(super) fn failed(&mut self, error: &io::Error) {
        self.socket = None;
        self.failures += 1;
        self.not_before = Some(Instant::now() + self.backoff.next_pause());
        let sink = &self.target;
        if !self.is_configured {
            debug!(%sink, %error, "statsd: cannot send to the default sink; USE_STATSD=false disables it");
        } else if self.warnings.admit_now().is_some() {
            warn!(%sink, %error, "statsd: cannot send; unsent metrics are kept");
        } else {
            debug!(%sink, %error, "statsd: cannot send");
        }
    }
}

impl Socket {
    fn open(target: &SinkAddress, turn: usize) -> io::Result<Self> {
        match target {
            SinkAddress::Tcp(HostPort { host, port }) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in addresses(host, *port)? {
                    match Self::connect(&address.into(), Type::STREAM) {
                        Ok(socket) => return Ok(socket),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            SinkAddress::Udp(HostPort { host, port }) => {
                let addresses = addresses(host, *port)?;
                let address = addresses.get(turn % addresses.len().max(1));
                let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                Self::connect(&(*address).into(), Type::DGRAM)
            }
            SinkAddress::Unix(path) => {
                let address = SockAddr::unix(path)?;
                match Self::connect(&address, Type::DGRAM) {
                    Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
                        Self::connect(&address, Type::STREAM)
                    }
                    result => result,
                }
            }
        }
    }

    fn connect(address: &SockAddr, kind: Type) -> io::Result<Self> {
        let socket = socket2::Socket::new(address.domain(), kind, None)?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let is_ip = !address.is_unix();
        if is_ip {
            socket.connect_timeout(address, CONNECT_TIMEOUT)?;
        } else {
            socket.connect(address)?;
        }
        Ok(Self { inner: socket, is_stream: kind == Type::STREAM, is_ip })
    }

    fn is_udp(&self) -> bool {
        self.is_ip && !self.is_stream
    }

    /// False if the peer has closed a stream. A write would notice too late: the system accepts the first packet after
    /// the close, which is lost.
    fn is_alive(&mut self) -> bool {
        !self.is_stream
            || (self.inner.set_nonblocking(true).is_ok()
                && !self.at_end()
                && self.inner.set_nonblocking(false).is_ok())
    }

    /// Whether a stream that does not block is at its end. Data from the sink is discarded.
    fn at_end(&mut self) -> bool {
        let mut discarded = [0; 512];
        loop {
            match self.inner.read(&mut discarded) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Sends a packet, and returns the number of bytes sent and the error that stopped it.
    fn send(&mut self, packet: &[u8]) -> (usize, io::Result<()>) {
        if self.is_stream {
            return self.write(packet);
        }
        // Some receivers of datagrams take the text after the last line break for an empty line.
        let datagram = packet.strip_suffix(b"\n").unwrap_or(packet);
        // On one host, a refused packet is known as soon as it is sent.
        match self.inner.send(datagram).and_then(|_| self.inner.take_error()) {
            Ok(None) => (packet.len(), Ok(())),
            Ok(Some(error)) | Err(error) => (0, Err(error)),
        }
    }

    fn write(&mut self, packet: &[u8]) -> (usize, io::Result<()>) {
        let mut sent = 0;
        while sent < packet.len() {
            match self.inner.write(&packet[sent..]) {
                Ok(0) => return (sent, Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => sent += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (sent, Err(io::Error::new(io::ErrorKind::TimedOut, "write timed out")));
                }
                Err(error) => return (sent, Err(error)),
            }
        }
        (sent, Ok(()))
    }
}

/// The addresses of a host, IPv4 first, as in Go.
fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs();
    let found =
        found.map_err(|error| io::Error::new(error.kind(), format!("cannot resolve {host:?}: {error}")))?;
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    Ok(found)
}
