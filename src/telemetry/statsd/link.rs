//! The way to a sink: opened when it is needed, closed when it fails, tried again with growing pauses.

use std::{
    io,
    io::{Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket},
    os::unix::net::{UnixDatagram, UnixStream},
    time::{Duration, Instant},
};

use tracing::{debug, info, warn};

use crate::{
    log_throttle::LogThrottle,
    net::backoff::Backoff,
    settings::{HostPort, sinks::SinkAddress},
};

/// What the Go service's library waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// What it waits for a sink that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// A name may come to stand for another address, which a sender of datagrams would never notice.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(60);
/// Seconds between two warnings about a sink.
const WARN_EVERY: u64 = 600;

/// The way to one sink.
#[derive(Debug)]
pub(super) struct Link {
    target: SinkAddress,
    /// Somebody set it; else it is the default, and nobody need be there.
    is_asked_for: bool,
    socket: Option<Socket>,
    opened: Instant,
    /// Counts failures, so that of a name's addresses another one is tried the next time.
    failures: usize,
    backoff: Backoff,
    not_before: Option<Instant>,
    warnings: LogThrottle,
    length_logged: bool,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
    Stream(UnixStream),
    Datagram(UnixDatagram),
}

impl Link {
    pub(super) fn new(target: SinkAddress, is_asked_for: bool) -> Self {
        Self {
            target,
            is_asked_for,
            socket: None,
            opened: Instant::now(),
            failures: 0,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            not_before: None,
            warnings: LogThrottle::new(WARN_EVERY),
            length_logged: false,
        }
    }

    /// True when the sink is configured.
    pub(super) fn is_asked_for(&self) -> bool {
        self.is_asked_for
    }

    /// True when something can be sent; opens the way if it is time to. The last time it is always time.
    pub(super) fn is_open(&mut self, is_last: bool) -> bool {
        let stale = matches!(self.socket, Some(Socket::Udp(_))) && self.opened.elapsed() > LOOK_UP_AGAIN;
        if stale || self.socket.as_mut().is_some_and(|socket| !socket.is_alive()) {
            self.socket = None;
        }
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

    /// The most bytes of one packet: what fits into a frame of an ordinary network; what agents read at
    /// once from a unix socket; and for a stream as much as the Go service's library writes at once.
    pub(super) fn packet_bytes(&self) -> usize {
        match &self.socket {
            Some(Socket::Tcp(_) | Socket::Stream(_)) => 64 << 10,
            Some(Socket::Datagram(_)) => 8 << 10,
            Some(Socket::Udp(_)) | None => 1432,
        }
    }

    /// Sends a packet. Says how many bytes of it are gone, and why no more.
    pub(super) fn send(&mut self, packet: &[u8]) -> (usize, io::Result<()>) {
        if packet.is_empty() {
            return (0, Ok(()));
        }
        let Some(socket) = &mut self.socket else { return (0, Err(io::ErrorKind::NotConnected.into())) };
        let (sent, result) = socket.send(packet);
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                if !std::mem::replace(&mut self.length_logged, true) {
                    warn!(
                        "statsd: a line of {} bytes is too long for {} and is left out",
                        packet.len(),
                        self.target
                    );
                }
                (packet.len(), Ok(()))
            }
            result => (sent, result),
        }
    }

    /// Takes note that everything was sent.
    pub(super) fn succeeded(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            info!("statsd: {} takes statistics again", self.target);
        }
        self.backoff.reset();
        self.not_before = None;
    }

    /// Notes a failure, and logs it unless one was logged a short while ago.
    pub(super) fn failed(&mut self, error: &io::Error) {
        self.socket = None;
        self.failures += 1;
        self.not_before = Some(Instant::now() + self.backoff.next_pause());
        let target = &self.target;
        if self.warnings.admit_now().is_none() {
            debug!("statsd: {target} takes no statistics: {error}");
            return;
        }
        if self.is_asked_for {
            warn!("statsd: {target} takes no statistics: {error}. They are kept, and sent when it does");
        } else {
            debug!(
                "statsd: {target} takes no statistics: {error}. It is only the default; USE_STATSD=false sends none"
            );
        }
    }
}

impl Socket {
    fn open(target: &SinkAddress, turn: usize) -> io::Result<Self> {
        match target {
            SinkAddress::Tcp(HostPort { host, port }) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in addresses(host, *port)? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                            return Ok(Self::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            SinkAddress::Udp(HostPort { host, port }) => {
                let addresses = addresses(host, *port)?;
                let address = addresses.get(turn % addresses.len().max(1)).copied();
                let Some(address) = address else { return Err(io::ErrorKind::NotFound.into()) };
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Udp(socket))
            }
            SinkAddress::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
                match socket.connect(path) {
                    Ok(()) => Ok(Self::Datagram(socket)),
                    Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
                        let stream = UnixStream::connect(path)?;
                        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                        Ok(Self::Stream(stream))
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// False when the other end of a stream is closed. Writing would show it too late: the first packet
    /// after the end is taken by the system and lost.
    fn is_alive(&mut self) -> bool {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(true).is_ok()
                    && !at_end(stream)
                    && stream.set_nonblocking(false).is_ok()
            }
            Self::Stream(stream) => {
                stream.set_nonblocking(true).is_ok()
                    && !at_end(stream)
                    && stream.set_nonblocking(false).is_ok()
            }
            Self::Udp(_) | Self::Datagram(_) => true,
        }
    }

    fn send(&mut self, packet: &[u8]) -> (usize, io::Result<()>) {
        // Some readers of datagrams take what follows the last line's end for an empty line.
        let datagram = packet.strip_suffix(b"\n").unwrap_or(packet);
        let whole = |result: io::Result<usize>| match result {
            Ok(_) => (packet.len(), Ok(())),
            Err(error) => (0, Err(error)),
        };
        match self {
            Self::Tcp(stream) => write(stream, packet),
            Self::Stream(stream) => write(stream, packet),
            Self::Datagram(socket) => whole(socket.send(datagram)),
            Self::Udp(socket) => {
                // A refused packet on this machine is known as soon as it is sent.
                let refused = |sent| match socket.take_error() {
                    Ok(None) => Ok(sent),
                    Ok(Some(error)) | Err(error) => Err(error),
                };
                whole(socket.send(datagram).and_then(refused))
            }
        }
    }
}

/// The addresses of a host, those of IPv4 first, as Go takes them.
fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs().map_err(|error| {
        io::Error::new(error.kind(), format!("the host {host:?} is unknown here: {error}"))
    })?;
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    Ok(found)
}

/// Whether a stream that does not block is at its end. What a sink says is passed over.
fn at_end(stream: &mut impl Read) -> bool {
    let mut said = [0; 512];
    loop {
        match stream.read(&mut said) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// Writes all, or says how much was written before it failed.
fn write(stream: &mut impl Write, packet: &[u8]) -> (usize, io::Result<()>) {
    let mut sent = 0;
    while sent < packet.len() {
        match stream.write(&packet[sent..]) {
            Ok(0) => return (sent, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return (sent, Err(io::Error::new(io::ErrorKind::TimedOut, "it does not read")));
            }
            Err(error) => return (sent, Err(error)),
        }
    }
    (sent, Ok(()))
}
