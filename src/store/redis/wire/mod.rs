//! A socket to a Redis that is ready to be asked: connected, secured, logged in, and alive.
//!
//! A lane dials for itself whenever it has no connection. `login` greets the server; who is to be dialled
//! is the topology's to say. Every failure tells the address, the step, and which variable to look at.

mod login;
#[cfg(test)]
mod tests;

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
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{self, pki_types::ServerName},
};

use self::login::Login;
use super::{
    failure::{Failure, Kind},
    tls,
};
use crate::settings::{
    HostPort,
    redis::{RedisAddress, RedisPool, RedisServers},
};

/// A connection is asked for a sign of life when it was silent for so long: address translators on the way
/// forget it after some minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// And so often until it is given up.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// A socket.
pub(super) enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// All that is needed to connect to a server but its address.
#[derive(Clone)]
pub(super) struct Dialer {
    login: Login,
    tls: Option<TlsConnector>,
    /// How long all of it may take.
    bound: Duration,
    /// Where addresses come from.
    origin: &'static str,
}

/// What is being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Resolve,
    Connect,
    Secure,
    LogIn,
    Select,
    SetName,
    Ping,
    AskRole,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up its name",
            Self::Connect => "connecting",
            Self::Secure => "the TLS handshake",
            Self::LogIn => "the log-in (AUTH)",
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::Ping => "PING",
            Self::AskRole => "ROLE",
        })
    }
}

impl Dialer {
    /// Reads certificates, if TLS is spoken.
    ///
    /// # Errors
    /// All that is wrong with their files, each with its path.
    pub(super) fn new(pool: &RedisPool) -> Result<Self, Vec<String>> {
        if let (RedisServers::Single(RedisAddress::Unix(path)), Some(_)) = (&pool.servers, &pool.tls) {
            let path = path.display();
            return Err(vec![format!("redis {path}: a unix socket speaks no TLS; unset REDIS_TLS")]);
        }
        let tls = pool.tls.as_ref().map(tls::load).transpose()?;
        Ok(Self {
            login: Login::new(pool.credentials.clone(), pool.database),
            tls: tls.map(|tls| TlsConnector::from(tls.config)),
            bound: pool.connect_timeout,
            origin: match pool.servers {
                RedisServers::Single(_) => "see REDIS_URL (REDIS_PERSECOND_URL)",
                RedisServers::Sentinel { .. } => "its sentinels tell this address",
                RedisServers::Cluster { .. } => "the cluster tells this address",
            },
        })
    }

    /// A connection that has answered `PING` and, where a master is needed, called itself one.
    ///
    /// # Errors
    /// Whatever kept it from that; so does a server that takes too long.
    pub(super) async fn dial(&self, to: &RedisAddress, must_be_master: bool) -> Result<Wire, Failure> {
        let mut step = Step::Connect;
        let dialled = timeout(self.bound, self.attempt(to, must_be_master, &mut step)).await;
        let failure = match dialled {
            Ok(Ok(wire)) => return Ok(wire),
            Ok(Err(failure)) => failure,
            Err(_) => self.timed_out(step),
        };
        Err(Failure::new(failure.kind, format!("redis {to}: {}", failure.message)))
    }

    async fn attempt(
        &self,
        to: &RedisAddress,
        must_be_master: bool,
        step: &mut Step,
    ) -> Result<Wire, Failure> {
        let mut wire = self.connect(to, step).await?;
        self.login.perform(&mut wire, must_be_master, step).await?;
        Ok(wire)
    }

    async fn connect(&self, to: &RedisAddress, step: &mut Step) -> Result<Wire, Failure> {
        let address = match to {
            RedisAddress::Tcp(address) => address,
            RedisAddress::Unix(path) => {
                let socket = UnixStream::connect(path).await;
                return socket.map(Wire::Unix).map_err(|error| self.unreachable(&error));
            }
        };
        *step = Step::Resolve;
        let found = resolve(address).await.map_err(|error| {
            let (host, origin) = (&address.host, self.origin);
            Failure::new(Kind::Resolve, format!("the name {host:?} has no address here: {error}; {origin}"))
        })?;
        *step = Step::Connect;
        let socket = self.reach(&found).await?;
        let Some(tls) = &self.tls else { return Ok(Wire::Tcp(socket)) };
        *step = Step::Secure;
        secure(tls, host(address), socket).await
    }

    /// Connects to the first of a host's addresses that lets us, and gives none of them the time of the
    /// others.
    async fn reach(&self, addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
        let share = self.bound / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut failure = self.timed_out(Step::Connect);
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(socket)) => {
                    prepare(&socket).map_err(|error| self.unreachable(&error))?;
                    return Ok(socket);
                }
                Ok(Err(error)) => failure = self.unreachable(&error),
                Err(_) => failure = self.timed_out(Step::Connect),
            }
        }
        Err(failure)
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let seen = match error.kind() {
            io::ErrorKind::ConnectionRefused => "nobody listens there (connection refused)".to_owned(),
            io::ErrorKind::NotFound => "the socket is not there".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(Kind::Connect, format!("{seen}; {}", self.origin))
    }

    fn timed_out(&self, step: Step) -> Failure {
        let advice = match step {
            Step::Resolve => "is the name server well?",
            Step::Connect => "is the way there open, and the address right?",
            Step::Secure => tls::WITHOUT,
            _ if self.tls.is_none() => tls::WITH,
            _ => "is it frozen, or busy?",
        };
        let bound = self.bound;
        Failure::new(Kind::Timeout, format!("no answer within {bound:?}, at {step}; {advice}"))
    }
}

/// The host to connect to; as in Go, none is this machine.
pub(super) fn host(address: &HostPort) -> &str {
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

async fn secure(tls: &TlsConnector, host: &str, socket: TcpStream) -> Result<Wire, Failure> {
    // The zone of an IPv6 address is this machine's own affair, and stands in no certificate.
    let bare = host.split('%').next().unwrap_or(host);
    let name = ServerName::try_from(bare.to_owned())
        .map_err(|_| Failure::new(Kind::Tls, format!("{bare:?} is no name that a certificate can hold")))?;
    match tls.connect(name, socket).await {
        Ok(stream) => Ok(Wire::Tls(Box::new(stream))),
        Err(error) => Err(lost(&error, Step::Secure, tls::WITHOUT)),
    }
}

/// What the end of a connection means.
fn lost(error: &io::Error, step: Step, advice: &str) -> Failure {
    if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return Failure::new(Kind::Tls, format!("TLS failed: {}", tls::explain(error)));
    }
    let kind = if step == Step::Secure { Kind::Tls } else { Kind::Lost };
    let message = match error.kind() {
        io::ErrorKind::UnexpectedEof => format!("it closed the connection at {step}; {advice}"),
        _ => format!("the connection ended at {step}: {error}; {advice}"),
    };
    Failure::new(kind, message)
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, into),
            Self::Unix(socket) => Pin::new(socket).poll_read(cx, into),
            Self::Tls(socket) => Pin::new(socket).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Wire {
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
