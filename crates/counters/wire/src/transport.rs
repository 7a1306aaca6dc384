//! A socket to a store's server: resolves its name, connects, and performs the TLS handshake.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, client::Resumption},
};

use super::{
    failure::{Failure, FailureKind},
    index, part,
};
use net::{
    HostPort, ServerAddress,
    edges::{Edges, Transport},
    tls,
    tls::ClientTls,
};

/// Connects to servers. Its failures name the step and the variable to check, but not the server.
#[derive(Clone)]
pub struct Connector {
    pub store: &'static str,
    pub tls: Option<TlsConnector>,
    pub advice: &'static TlsAdvice,
    /// The timeout for everything up to the end of the store's first commands.
    pub timeout: Duration,
    /// Where the address comes from, as advice.
    pub origin: &'static str,
    pub edges: Edges,
    /// A server has replied, so it is not for TLS that one does not.
    pub has_worked: Arc<AtomicBool>,
}

/// The step in progress and advice, for failures.
type ConnectStep = (&'static str, &'static str);

const RESOLVE: ConnectStep = ("name resolution", "check the name server");
const CONNECT: ConnectStep = ("connect", "check the address and the network");

impl Connector {
    /// Loads certificates if TLS is enabled. Returns every problem with the files.
    pub fn new(
        store: &'static str,
        tls: Option<&ClientTls>,
        advice: &'static TlsAdvice,
        timeout: Duration,
        origin: &'static str,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let tls = tls.map(|tls| load_tls(tls, advice)).transpose()?;
        let tls = tls.map(|tls| TlsConnector::from(Arc::new(tls)));
        Ok(Self { store, tls, advice, timeout, origin, edges: edges.clone(), has_worked: Arc::default() })
    }

    pub fn may_need_tls(&self) -> bool {
        self.tls.is_none() && !self.has_worked.load(Relaxed)
    }

    pub async fn connect(&self, to: &ServerAddress, until: Instant) -> Result<Transport, Failure> {
        let mut step = CONNECT;
        let connected = self.edges.timer.timeout_at(until, self.attempt(to, until, &mut step)).await;
        connected.unwrap_or_else(|| Err(self.timed_out(step.0, step.1)))
    }

    async fn attempt(
        &self,
        to: &ServerAddress,
        until: Instant,
        step: &mut ConnectStep,
    ) -> Result<Transport, Failure> {
        let address = match to {
            ServerAddress::Tcp(address) => address,
            ServerAddress::Unix(path) => {
                let connected = self.edges.dial.connect_unix(path).await;
                return connected.map_err(|error| self.unreachable(&error));
            }
        };
        *step = RESOLVE;
        let found = self.resolve(address).await.map_err(|error| {
            let host = &address.host;
            let origin = self.origin;
            Failure::new(FailureKind::Resolve, format!("cannot resolve {host:?}: {error}; {origin}"))
        })?;
        *step = CONNECT;
        let socket = self.connect_any(&found, until).await?;
        let Some(tls) = &self.tls else { return Ok(socket) };
        *step = ("TLS handshake", self.advice.tls.plain_text);
        let name = tls::server_name(host(address)).map_err(|why| Failure::new(FailureKind::Tls, why))?;
        match tls.connect(name, socket).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(Failure { kind: FailureKind::Tls, ..self.lost(&error, step.0, step.1) }),
        }
    }

    /// A host's addresses, IPv4 first: a listener may have no IPv6 address.
    async fn resolve(&self, address: &HostPort) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = self.edges.dial.resolve(host(address), address.port).await?;
        addresses.sort_by_key(SocketAddr::is_ipv6);
        if addresses.is_empty() { Err(io::Error::other("no addresses")) } else { Ok(addresses) }
    }

    /// Connects to the first address that accepts. Each gets its share of the time.
    async fn connect_any(&self, addresses: &[SocketAddr], until: Instant) -> Result<Transport, Failure> {
        let Edges { timer, dial, .. } = &self.edges;
        let all = until.duration_since(timer.now());
        let share = part(all, index(addresses.len()));
        let mut failure = self.timed_out(CONNECT.0, CONNECT.1);
        for address in addresses {
            match timer.timeout(share, dial.connect(*address)).await {
                Some(Ok(socket)) => return Ok(socket),
                Some(Err(error)) => failure = self.unreachable(&error),
                None => failure = self.timed_out(CONNECT.0, CONNECT.1),
            }
        }
        Err(failure)
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let seen = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::NotFound => "no such socket".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(FailureKind::Connect, format!("{seen}; {}", self.origin))
    }

    pub fn timed_out(&self, step: &str, advice: &str) -> Failure {
        let timeout = self.timeout;
        Failure::new(FailureKind::Timeout, format!("no reply within {timeout:?} ({step}); {advice}"))
    }

    pub fn lost(&self, error: &io::Error, step: &str, advice: &str) -> Failure {
        if let Some(why) = tls::explain(error, &self.advice.tls) {
            return Failure::new(FailureKind::Tls, format!("TLS failed: {why}"));
        }
        let message = match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("connection closed by the server ({step}); {advice}"),
            _ => format!("connection lost ({step}): {error}; {advice}"),
        };
        Failure::new(FailureKind::Lost, message)
    }
}

/// Names of variables and advice in errors about TLS.
pub struct TlsAdvice {
    /// Names of the file variables, and advice for certificates and plaintext servers.
    pub tls: tls::Hints,
    /// Advice if the server uses TLS and we do not.
    pub use_tls: &'static str,
}

/// Loads the TLS files of a store. Returns every problem with them, with its variable and its path.
fn load_tls(settings: &ClientTls, advice: &TlsAdvice) -> Result<ClientConfig, Vec<String>> {
    let mut config = tls::load(settings, &advice.tls)?;
    // Connections are long-lived, so resumption saves little; and a memcached that requires client certificates
    // rejects resumed sessions, because it sets no session id context.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The host to connect to; an empty one is this machine, as in Go.
pub fn host(address: &HostPort) -> &str {
    if address.host.is_empty() { "localhost" } else { &address.host }
}
