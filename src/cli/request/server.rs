//! The service that a request is sent to: its address, TLS, and the connection.

use std::{fmt, io, path::PathBuf, str::FromStr, sync::Arc};

use clap::Args;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tonic::transport::Channel;

use super::failure::Failure;
use crate::{
    cli::serve::Environment,
    net::{
        channel::{self, Duplex, Socket},
        tls::{self, Words},
    },
    settings::{ClientTls, HostPort, ServerAddress, address, vars},
};

/// The options that errors of TLS refer to.
const WORDS: Words = Words {
    ca: "--ca",
    certificate: "--cert",
    key: "--key",
    other_host: "--server-name sets the name that its certificate must have",
    plain_text: "if its port speaks plain text, omit the TLS options",
};

/// The address of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    pub(in crate::cli) at: ServerAddress,
    /// The scheme: true for https, false for http.
    pub(in crate::cli) tls: Option<bool>,
}

/// The TLS options.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Use TLS, as do https:// in --addr and each of the options below.
    #[arg(long)]
    pub tls: bool,
    /// PEM file of certificate authorities to trust instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// PEM file of the client certificate.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// PEM file of the client certificate's private key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have; by default the host of --addr.
    #[arg(long, value_name = "NAME", value_parser = tls::server_name)]
    pub server_name: Option<ServerName<'static>>,
}

/// A service to connect to.
pub(super) struct Server {
    at: ServerAddress,
    tls: Option<Tls>,
}

/// TLS to a service.
pub(in crate::cli) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    has_client_certificate: bool,
}

impl Tls {
    /// The socket with TLS; else why there is none.
    pub(in crate::cli) async fn secure(&self, socket: impl Duplex + 'static) -> Result<Socket, String> {
        match self.connector.connect(self.name.clone(), socket).await {
            Ok(secured) => Ok(Box::new(secured)),
            Err(error) => {
                let why = tls::explain(&error, &WORDS);
                Err(why.unwrap_or_else(|| format!("{error}; {}", WORDS.plain_text)))
            }
        }
    }
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
    /// The gRPC address that the environment gives the service on this machine.
    pub(super) fn of_service(environment: &Environment) -> Result<Self, String> {
        let socket = environment.value(&vars::GRPC_UDS);
        if !socket.is_empty() {
            return Ok(Self { at: ServerAddress::Unix(socket.into()), tls: None });
        }
        let (host, port) = (environment.value(&vars::GRPC_HOST), environment.value(&vars::GRPC_PORT));
        let read = address::host(&host).ok().zip(port.parse().ok().filter(|port| *port != 0));
        let (host, port) = read.ok_or_else(|| format!("GRPC_HOST={host:?} and GRPC_PORT={port:?}"))?;
        let mut at = HostPort { host, port };
        if at.is_every_address() {
            "127.0.0.1".clone_into(&mut at.host);
        }
        Ok(Self { at: ServerAddress::Tcp(at), tls: None })
    }
}

impl TlsArgs {
    /// Reads the files, if TLS is wanted. `protocol` is what is spoken over it.
    pub(in crate::cli) fn read(&self, addr: &Address, protocol: &[u8]) -> Result<Option<Tls>, Failure> {
        match (addr.tls, *self != Self::default()) {
            (Some(false), true) => return Err(Failure::torn()),
            (Some(false) | None, false) => return Ok(None),
            (Some(true), _) | (None, true) => {}
        }
        let files = ClientTls {
            ca: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
            ..ClientTls::default()
        };
        let mut config = tls::load(&files, &WORDS).map_err(|faults| Failure::files(&faults))?.config;
        config.alpn_protocols = vec![protocol.to_vec()];
        let host = match &addr.at {
            ServerAddress::Tcp(at) => &at.host,
            ServerAddress::Unix(_) => "localhost",
        };
        let name = self.server_name.clone().map_or_else(|| tls::server_name(host), Ok);
        let name = name.map_err(|why| Failure::files(&[format!("{why}; {}", WORDS.other_host)]))?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Some(Tls { connector, name, has_client_certificate: self.cert.is_some() }))
    }
}

impl Server {
    /// Reads the TLS files.
    pub(super) fn new(addr: &Address, tls: &TlsArgs) -> Result<Self, Failure> {
        Ok(Self { at: addr.at.clone(), tls: tls.read(addr, b"h2")? })
    }

    /// Connects.
    pub(super) async fn connect(&self) -> Result<Channel, Failure> {
        let unreachable = |error: io::Error| Failure::unreachable(self, &error);
        let socket = match &self.at {
            ServerAddress::Tcp(at) => {
                let socket = TcpStream::connect((&*at.host, at.port)).await.map_err(unreachable)?;
                // Failing to set it costs latency only.
                let _ = socket.set_nodelay(true);
                self.secure(socket).await?
            }
            ServerAddress::Unix(path) => {
                self.secure(UnixStream::connect(path).await.map_err(unreachable)?).await?
            }
        };
        let origin = self.origin().parse().map_err(|error| Failure::unreachable(self, &error))?;
        let channel = channel::over(socket, origin, |endpoint| endpoint).await;
        channel.map_err(|error| Failure::unreachable(self, &error))
    }

    async fn secure(&self, socket: impl Duplex + 'static) -> Result<Socket, Failure> {
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        tls.secure(socket).await.map_err(|why| Failure::insecure(self, why))
    }

    /// The `:authority` of the request.
    fn origin(&self) -> String {
        match (&self.tls, &self.at) {
            (Some(Tls { name: ServerName::DnsName(name), .. }), ServerAddress::Tcp(at)) => {
                format!("https://{}:{}", name.as_ref(), at.port)
            }
            (_, ServerAddress::Tcp(_)) => self.to_string(),
            (_, ServerAddress::Unix(_)) => "http://localhost".to_owned(),
        }
    }

    /// What to do about a connection that breaks before a response: the protocols may differ.
    pub(super) fn advice(&self) -> &'static str {
        match &self.tls {
            None => {
                "is that the gRPC port? HTTP and the debug pages have ports of their own; use --tls for a port \
                 with TLS"
            }
            Some(tls) if tls.has_client_certificate => {
                "the service may reject the client certificate, see its log, --cert and --key"
            }
            Some(_) => "if the service requires a client certificate, set --cert and --key",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begin = match (&self.at, &self.tls) {
            (ServerAddress::Unix(_), _) => "unix:",
            (ServerAddress::Tcp(_), Some(_)) => "https://",
            (ServerAddress::Tcp(_), None) => "http://",
        };
        write!(f, "{begin}{}", self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(typed: &str, tls: bool) -> Result<String, String> {
        let args = TlsArgs { tls, ..TlsArgs::default() };
        let server = Server::new(&typed.parse()?, &args).map_err(|failure| failure.to_string())?;
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
    fn the_environment_gives_the_default_address() {
        for (variables, expected) in [
            (&[][..], Ok("http://127.0.0.1:8081")),
            (&[("GRPC_PORT", "9081")], Ok("http://127.0.0.1:9081")),
            (&[("GRPC_HOST", "::"), ("GRPC_PORT", "9081")], Ok("http://127.0.0.1:9081")),
            (&[("GRPC_HOST", "10.0.0.7")], Ok("http://10.0.0.7:8081")),
            (&[("GRPC_UDS", "/run/rl.sock"), ("GRPC_PORT", "9081")], Ok("unix:/run/rl.sock")),
            (&[("GRPC_PORT", "0")], Err(())),
            (&[("GRPC_PORT", "http")], Err(())),
        ] {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let environment = Environment { variables: variables.collect(), cores: 1 };
            let server =
                Address::of_service(&environment).map(|addr| Server { at: addr.at, tls: None }.to_string());
            assert_eq!(server.as_deref().map_err(|_| ()), expected);
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
}
