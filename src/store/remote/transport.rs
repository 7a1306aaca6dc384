//! A socket to a store's server: resolves its name, connects, and performs the TLS handshake.
//!
//! The store sends the first commands. Every failure names the step and the variable to check; the store adds the
//! address.

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
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::client::Resumption};

use super::{
    failure::{Failure, Kind},
    part,
};
use crate::{
    net::tls::{self, Client},
    settings::{ClientTls, HostPort, ServerAddress},
};

/// Idle time before the first keepalive probe: network address translators drop idle connections after minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// The interval of keepalive probes.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// A socket.
pub(in crate::store) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to servers.
#[derive(Clone)]
pub(in crate::store) struct Connector {
    pub(in crate::store) tls: Option<TlsConnector>,
    pub(in crate::store) advice: &'static TlsAdvice,
    /// The timeout for everything up to the end of the store's first commands.
    pub(in crate::store) timeout: Duration,
    /// Where the address comes from, as advice.
    pub(in crate::store) origin: &'static str,
}

/// The step in progress, for failures.
#[derive(Clone, Copy)]
enum Step {
    Resolve,
    Connect,
    Secure,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "name resolution",
            Self::Connect => "connect",
            Self::Secure => "TLS handshake",
        })
    }
}

impl Connector {
    /// Connects.
    ///
    /// # Errors
    /// When a step fails, or `until` is reached.
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
            Failure::new(Kind::Resolve, format!("cannot resolve {host:?}: {error}; {origin}"))
        })?;
        *step = Step::Connect;
        let socket = self.connect_any(&found, until).await?;
        let Some(tls) = &self.tls else { return Ok(Transport::Tcp(socket)) };
        *step = Step::Secure;
        self.secure(tls, host(address), socket).await
    }

    /// Connects to the first address that accepts. Each gets its share of the time.
    async fn connect_any(&self, addresses: &[SocketAddr], until: Instant) -> Result<TcpStream, Failure> {
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
                let failure = self.lost(&error, &Step::Secure, self.advice.tls.plain_text);
                Err(Failure { kind: Kind::Tls, ..failure })
            }
        }
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let seen = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::NotFound => "no such socket".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(Kind::Connect, format!("{seen}; {}", self.origin))
    }

    fn late(&self, step: Step) -> Failure {
        let advice = match step {
            Step::Resolve => "check the name server",
            Step::Connect => "check the address and the network",
            Step::Secure => self.advice.tls.plain_text,
        };
        self.timed_out(&step, advice)
    }

    /// The store's first commands timed out.
    pub(in crate::store) fn handshake_timed_out(&self, step: &dyn fmt::Display) -> Failure {
        self.timed_out(step, if self.tls.is_none() { self.advice.use_tls } else { "is it frozen or busy?" })
    }

    fn timed_out(&self, step: &dyn fmt::Display, advice: &str) -> Failure {
        let timeout = self.timeout;
        Failure::new(Kind::Timeout, format!("no reply within {timeout:?} ({step}); {advice}"))
    }

    /// The failure for a lost connection.
    pub(in crate::store) fn lost(&self, error: &io::Error, step: &dyn fmt::Display, advice: &str) -> Failure {
        if let Some(why) = tls::explain(error, &self.advice.tls) {
            return Failure::new(Kind::Tls, format!("TLS failed: {why}"));
        }
        let message = match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("connection closed by the server ({step}); {advice}"),
            _ => format!("connection lost ({step}): {error}; {advice}"),
        };
        Failure::new(Kind::Lost, message)
    }
}

/// Names of variables and advice in errors about TLS.
pub(in crate::store) struct TlsAdvice {
    /// Names of the file variables, and advice if the server does not use TLS.
    pub(in crate::store) tls: tls::Words,
    /// Advice if the server uses TLS and we do not.
    pub(in crate::store) use_tls: &'static str,
}

/// Loads the TLS files of a store.
///
/// # Errors
/// Every problem with them, with its variable and its path.
pub(in crate::store) fn load_tls(settings: &ClientTls, advice: &TlsAdvice) -> Result<Client, Vec<String>> {
    let mut client = tls::load(settings, &advice.tls)?;
    // Connections are long-lived, so resumption saves little; and a memcached that requires client certificates
    // rejects resumed sessions, because it sets no session id context.
    client.config.resumption = Resumption::disabled();
    Ok(client)
}

/// The host to connect to; an empty one is this machine, as in Go.
pub(in crate::store) fn host(address: &HostPort) -> &str {
    if address.host.is_empty() { "localhost" } else { &address.host }
}

/// A host's addresses, IPv4 first: a listener may have no IPv6 address.
async fn resolve(address: &HostPort) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<_> = lookup_host((host(address), address.port)).await?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    if addresses.is_empty() { Err(io::Error::other("no addresses")) } else { Ok(addresses) }
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
