//! The running service that a command connects to: its address, TLS, and the connection.
//!
//! `request` speaks gRPC over it, and the commands of the admin API and `health` speak HTTP/1.1.

use std::{error::Error, fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use clap::Args;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{serve::Environment, terminal::Failure};
use limit::MAX_LIMIT;
use net::{
    HostPort, ServerAddress, channel,
    edges::Transport,
    tls::{self, ClientTls, Hints},
};
use settings::{address, vars::Var};

/// The options that errors of TLS refer to.
const HINTS: Hints = Hints {
    ca: "--ca",
    certificate: "--cert",
    key: "--key",
    other_host: "--server-name sets the name that its certificate must have",
    plain_text: "if its port speaks plain text, omit the TLS options",
};

/// The address of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Address {
    at: ServerAddress,
    /// The scheme: true for https, false for http.
    tls: Option<bool>,
}

/// The TLS options.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// Use TLS, as do an https:// address and each of the options below.
    #[arg(long)]
    pub(super) tls: bool,
    /// PEM file of certificate authorities to trust instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// PEM file of the client certificate.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(super) cert: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(super) key: Option<PathBuf>,
    /// The name that the server's certificate must have; by default the host of the address.
    #[arg(long, value_name = "NAME", value_parser = tls::server_name)]
    pub(super) server_name: Option<ServerName<'static>>,
}

/// The kind of a server, for its errors and its handshake.
pub(super) struct Service {
    /// Precedes the address in errors.
    pub(super) name: &'static str,
    pub(super) advice: &'static str,
    pub(super) protocol: &'static str,
}

pub(super) struct Endpoint {
    at: ServerAddress,
    tls: Option<Tls>,
    service: &'static Service,
}

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    has_client_certificate: bool,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err("expected a path after unix:".to_owned());
            }
            return Ok(Self { at: ServerAddress::Unix(path.into()), tls: None });
        }
        let expected = "expected http://host:port, https://host:port, host:port or unix:/path";
        let (tls, authority) = match text.split_once("://") {
            None => (None, text),
            Some((scheme @ ("http" | "https"), rest)) => {
                (Some(scheme == "https"), rest.strip_suffix('/').unwrap_or(rest))
            }
            Some(_) => return Err(expected.to_owned()),
        };
        let mut at = address::host_port(authority).map_err(|_| expected.to_owned())?;
        if at.host.is_empty() {
            "127.0.0.1".clone_into(&mut at.host);
        }
        Ok(Self { at: ServerAddress::Tcp(at), tls })
    }
}

impl Address {
    /// The address of the service on this machine: the socket of a variable, if it is set, else a host and a port.
    pub(super) fn local(environment: &Environment, socket: &Var, tcp: Option<HostPort>) -> Option<Self> {
        let path = environment.value(socket);
        if !path.is_empty() {
            return Some(Self { at: ServerAddress::Unix(path.into()), tls: None });
        }
        let mut at = tcp.filter(|at| at.port != 0)?;
        if at.is_every_address() {
            "127.0.0.1".clone_into(&mut at.host);
        }
        Some(Self { at: ServerAddress::Tcp(at), tls: None })
    }

    /// The same address, with https for a host and a port if `tls` is true.
    pub(super) fn with_tls(self, tls: bool) -> Self {
        let tls = tls && matches!(self.at, ServerAddress::Tcp(_));
        Self { tls: tls.then_some(true), ..self }
    }
}

impl TlsArgs {
    fn read(&self, address: &Address, protocol: &str) -> Result<Option<Tls>, Failure> {
        match (address.tls, *self != Self::default()) {
            (Some(false), true) => {
                return Err(Failure::new(
                    "an address with http:// contradicts the TLS options",
                    "write https:// for TLS, or omit the TLS options",
                ));
            }
            (Some(false) | None, false) => return Ok(None),
            (Some(true), _) | (None, true) => {}
        }
        let invalid = |advice| Failure::new("invalid TLS options", advice);
        let files = ClientTls {
            ca: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
            ..ClientTls::default()
        };
        let mut config = tls::load(&files, &HINTS).map_err(|errors| invalid(errors.join("\n  ")))?;
        config.alpn_protocols = vec![protocol.into()];
        let host = match &address.at {
            ServerAddress::Tcp(at) => &at.host,
            ServerAddress::Unix(_) => "localhost",
        };
        let name = self.server_name.clone().map_or_else(|| tls::server_name(host), Ok);
        let name = name.map_err(|why| invalid(format!("{why}; {}", HINTS.other_host)))?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Some(Tls { connector, name, has_client_certificate: self.cert.is_some() }))
    }
}

impl Endpoint {
    pub(super) fn new(address: &Address, tls: &TlsArgs, service: &'static Service) -> Result<Self, Failure> {
        Ok(Self { at: address.at.clone(), tls: tls.read(address, service.protocol)?, service })
    }

    pub(super) async fn connect(&self) -> Result<Transport, Failure> {
        let socket = channel::connect(&self.at).await.map_err(|error| self.unreachable(error))?;
        let Some(tls) = &self.tls else { return Ok(socket) };
        match tls.connector.connect(tls.name.clone(), socket).await {
            Ok(secured) => Ok(Box::new(secured)),
            Err(error) => {
                let why = tls::explain(&error, &HINTS);
                let why = why.unwrap_or_else(|| format!("{error}; {}", HINTS.plain_text));
                let what = format!("cannot reach {}{self}: the TLS handshake failed", self.service.name);
                Err(Failure::new(what, why))
            }
        }
    }

    /// The connection failed.
    pub(super) fn unreachable(&self, why: impl fmt::Display) -> Failure {
        Failure::new(format!("cannot reach {}{self}: {why}", self.service.name), self.service.advice)
    }

    pub(super) fn host(&self) -> String {
        match &self.at {
            ServerAddress::Tcp(at) => at.to_string(),
            ServerAddress::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The scheme and the `:authority` of requests: with TLS, the name of the certificate.
    pub(super) fn origin(&self) -> String {
        match (&self.tls, &self.at) {
            (Some(Tls { name: ServerName::DnsName(name), .. }), ServerAddress::Tcp(at)) => {
                format!("https://{}:{}", name.as_ref(), at.port)
            }
            (_, ServerAddress::Tcp(_)) => self.to_string(),
            (_, ServerAddress::Unix(_)) => "http://localhost".to_owned(),
        }
    }

    /// What to do if the connection breaks before a response of gRPC.
    pub(super) fn broken(&self) -> &'static str {
        match &self.tls {
            None => {
                "is that the gRPC port? HTTP and the debug pages have other ports; use --tls for a port \
                 with TLS"
            }
            Some(tls) if tls.has_client_certificate => {
                "the service may reject the client certificate, see its log, --cert and --key"
            }
            Some(_) => "if the service requires a client certificate, set --cert and --key",
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (&self.at, &self.tls) {
            (ServerAddress::Unix(_), _) => "unix:",
            (ServerAddress::Tcp(_), Some(_)) => "https://",
            (ServerAddress::Tcp(_), None) => "http://",
        };
        write!(f, "{scheme}{}", self.at)
    }
}

pub(super) fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread().enable_all().build().map_err(|error| {
        let what = format!("cannot prepare the call: {error}");
        Failure::new(what, "are file descriptors left? `ulimit -n` prints the limit")
    })
}

/// The last error of the chain, which is the most specific.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

pub(super) fn hits(text: &str) -> Result<u64, String> {
    let hits = text.parse().ok().filter(|hits| *hits <= MAX_LIMIT);
    hits.ok_or_else(|| format!("expected an integer from 0 to {MAX_LIMIT}"))
}

/// A number of rows that the admin API returns.
pub(super) fn rows(text: &str) -> Result<u16, String> {
    let rows = text.parse().ok().filter(|rows| (1..=1000).contains(rows));
    rows.ok_or_else(|| "expected an integer from 1 to 1000".to_owned())
}

/// A timeout, in the notation of the settings.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match text::duration::parse(text) {
        Ok(duration) if duration.is_zero() => Err("expected a duration above 0".to_owned()),
        Ok(duration) => Ok(duration),
        Err(invalid) => Err(invalid.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Service = Service { name: "", advice: "", protocol: "h2" };

    fn server(typed: &str, tls: bool) -> Result<String, String> {
        let args = TlsArgs { tls, ..TlsArgs::default() };
        let server =
            Endpoint::new(&typed.parse()?, &args, &SERVICE).map_err(|failure| failure.to_string())?;
        Ok(server.to_string())
    }

    #[test]
    fn reads_addresses_in_every_usual_form() {
        for (typed, read) in [
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
            ("http://[::1]:8081/", "http://[::1]:8081"),
            ("localhost:8081", "http://localhost:8081"),
            (":8081", "http://127.0.0.1:8081"),
            ("unix:/run/rl.sock", "unix:/run/rl.sock"),
            ("unix:///run/rl.sock", "unix:/run/rl.sock"),
            ("https://a:1/", "https://a:1"),
        ] {
            assert_eq!(server(typed, false).as_deref(), Ok(read), "{typed}");
        }
        for typed in
            ["", "8081", "localhost", "ftp://a:1", "http://a", "http://a:1/b", "http://a b:1", "unix:", "a:x"]
        {
            assert!(typed.parse::<Address>().is_err(), "{typed:?}");
        }
    }

    #[test]
    fn any_tls_option_enables_tls() {
        for (typed, read) in [
            ("a:1", "https://a:1"),
            ("https://a:1", "https://a:1"),
            ("unix:/run/rl.sock", "unix:/run/rl.sock"),
        ] {
            assert_eq!(server(typed, true).as_deref(), Ok(read), "{typed}");
        }
        let error = server("http://a:1", true).unwrap_err();
        assert!(error.contains("http://") && error.contains("https://"), "{error}");
    }

    #[test]
    fn rejects_a_timeout_of_zero() {
        assert_eq!(timeout("20ms"), Ok(Duration::from_millis(20)));
        for typed in ["0", "0s", "1", "-1s", "soon", ""] {
            assert!(timeout(typed).is_err(), "{typed:?}");
        }
    }
}
