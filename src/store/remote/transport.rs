//! A socket to a server of counters: its name looked up, connected, and secured where TLS is spoken.
//!
//! What a server is greeted with then is its store's to say. Every failure tells the step, and which variable
//! to look at; the store adds the address.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::deadline::part;
use super::{
    failure::{Failure, Kind},
    tls::Words,
};
use crate::{
    net::tls,
    settings::{HostPort, ServerAddress},
};

/// A connection is asked for a sign of life when it was silent for so long: address translators on the way
/// forget it after some minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// And so often until it is given up.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// A socket.
pub(in crate::store) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// All that is needed to connect to a server but its address.
#[derive(Clone)]
pub(in crate::store) struct Connector {
    pub(in crate::store) tls: Option<TlsConnector>,
    pub(in crate::store) words: &'static Words,
    /// How long all of it may take, the greeting included.
    pub(in crate::store) bound: Duration,
    /// Where addresses come from.
    pub(in crate::store) origin: &'static str,
}

/// What is being done.
#[derive(Clone, Copy)]
enum Step {
    Resolve,
    Connect,
    Secure,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up its name",
            Self::Connect => "connecting",
            Self::Secure => "the TLS handshake",
        })
    }
}

impl Connector {
    /// A socket, by this moment.
    ///
    /// # Errors
    /// Whatever kept us from it; so does a server that takes too long.
    pub(in crate::store) async fn connect(
        &self,
        to: &ServerAddress,
        until: Instant,
    ) -> Result<Transport, Failure> {
        let mut step = Step::Connect;
        let connected = timeout_at(until, self.attempt(to, until, &mut step)).await;
        connected.unwrap_or_else(|_| Err(self.late(step)))
    }

    async fn attempt(
        &self,
        to: &ServerAddress,
        until: Instant,
        step: &mut Step,
    ) -> Result<Transport, Failure> {
        let address = match to {
            ServerAddress::Tcp(address) => address,
            ServerAddress::Unix(path) => {
                let socket = UnixStream::connect(path).await;
                return socket.map(Transport::Unix).map_err(|error| self.unreachable(&error));
            }
        };
        *step = Step::Resolve;
        let found = resolve(address).await.map_err(|error| {
            let (host, origin) = (&address.host, self.origin);
            Failure::new(Kind::Resolve, format!("the name {host:?} has no address here: {error}; {origin}"))
        })?;
        *step = Step::Connect;
        let socket = self.reach(&found, until).await?;
        let Some(tls) = &self.tls else { return Ok(Transport::Tcp(socket)) };
        *step = Step::Secure;
        self.secure(tls, host(address), socket).await
    }

    /// Connects to the first of a host's addresses that lets us, and gives none of them the time of the
    /// others.
    async fn reach(&self, addresses: &[SocketAddr], until: Instant) -> Result<TcpStream, Failure> {
        let all = until.saturating_duration_since(Instant::now());
        let share = part(all, u32::try_from(addresses.len()).unwrap_or(u32::MAX));
        let mut failure = self.late(Step::Connect);
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(socket)) => {
                    prepare(&socket).map_err(|error| self.unreachable(&error))?;
                    return Ok(socket);
                }
                Ok(Err(error)) => failure = self.unreachable(&error),
                Err(_) => failure = self.late(Step::Connect),
            }
        }
        Err(failure)
    }

    async fn secure(&self, tls: &TlsConnector, host: &str, socket: TcpStream) -> Result<Transport, Failure> {
        let name = tls::server_name(host).map_err(|why| Failure::new(Kind::Tls, why))?;
        match tls.connect(name, socket).await {
            Ok(stream) => Ok(Transport::Tls(Box::new(stream))),
            Err(error) => {
                let failure = self.lost(&error, &Step::Secure, self.words.tls.plain_text);
                Err(Failure { kind: Kind::Tls, ..failure })
            }
        }
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let seen = match error.kind() {
            io::ErrorKind::ConnectionRefused => "nobody listens there (connection refused)".to_owned(),
            io::ErrorKind::NotFound => "the socket is not there".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(Kind::Connect, format!("{seen}; {}", self.origin))
    }

    fn late(&self, step: Step) -> Failure {
        let advice = match step {
            Step::Resolve => "is the name server well?",
            Step::Connect => "is the way there open, and the address right?",
            Step::Secure => self.words.tls.plain_text,
        };
        self.timed_out(&step, advice)
    }

    /// The greeting took too long.
    pub(in crate::store) fn not_greeted(&self, step: &dyn fmt::Display) -> Failure {
        self.timed_out(step, if self.tls.is_none() { self.words.with } else { "is it frozen, or busy?" })
    }

    fn timed_out(&self, step: &dyn fmt::Display, advice: &str) -> Failure {
        let bound = self.bound;
        Failure::new(Kind::Timeout, format!("no answer within {bound:?}, at {step}; {advice}"))
    }

    /// What the end of a connection means.
    pub(in crate::store) fn lost(&self, error: &io::Error, step: &dyn fmt::Display, advice: &str) -> Failure {
        if let Some(why) = tls::explain(error, &self.words.tls) {
            return Failure::new(Kind::Tls, format!("TLS failed: {why}"));
        }
        let message = match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("it closed the connection at {step}; {advice}"),
            _ => format!("the connection ended at {step}: {error}; {advice}"),
        };
        Failure::new(Kind::Lost, message)
    }
}

/// The host to connect to; as in Go, none is this machine.
pub(in crate::store) fn host(address: &HostPort) -> &str {
    if address.host.is_empty() { "localhost" } else { &address.host }
}

/// A host's addresses; those of IPv4 first, as a listener on both families may take them alone.
async fn resolve(address: &HostPort) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<_> = lookup_host((host(address), address.port)).await?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    if found.is_empty() { Err(io::Error::other("the name server knows none")) } else { Ok(found) }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, into),
            Self::Unix(socket) => Pin::new(socket).poll_read(cx, into),
            Self::Tls(socket) => Pin::new(socket).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Unix(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            Self::Unix(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
