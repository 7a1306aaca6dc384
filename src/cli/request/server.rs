//! The server that is asked: its address and TLS to it as they are typed, and the way to it.

use std::{fmt, io, path::PathBuf, str::FromStr, sync::Arc};

use clap::Args;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tonic::transport::Channel;

use super::failure::Failure;
use crate::{
    net::{
        channel::{self, Duplex, Socket},
        tls::{self, Trusted, Wanted, Words},
    },
    settings::{ServerAddress, address},
};

/// What is said of TLS to the server.
const WORDS: Words = Words {
    ca: "--ca",
    certificate: "--cert",
    key: "--key",
    other_host: "--server-name sets the name that its certificate must hold",
    plain_text: "if its port speaks plain text, leave the options of TLS out",
};

/// An address as it is typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    at: ServerAddress,
    /// Whether TLS is spoken there, if the address says so.
    says_tls: Option<bool>,
}

/// How TLS is asked for.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Speak TLS; https:// in --addr and each of the options below mean it too.
    #[arg(long)]
    pub tls: bool,
    /// PEM file of the certificates to trust, in place of those of the system.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// PEM file of a certificate to show to the server.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// PEM file of its key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must hold; without it, the host of --addr.
    #[arg(long, value_name = "NAME", value_parser = tls::server_name)]
    pub server_name: Option<ServerName<'static>>,
}

/// A server that can be asked.
pub(super) struct Server {
    at: ServerAddress,
    tls: Option<Tls>,
}

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    shows_certificate: bool,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err("a path follows unix:".to_owned());
            }
            return Ok(Self { at: ServerAddress::Unix(path.into()), says_tls: None });
        }
        let accepted = "accepted are http://host:port, https://host:port, host:port and unix:/path";
        let (says_tls, authority) = match text.split_once("://") {
            None => (None, text),
            Some((scheme @ ("http" | "https"), rest)) => {
                (Some(scheme == "https"), rest.strip_suffix('/').unwrap_or(rest))
            }
            Some(_) => return Err(accepted.to_owned()),
        };
        let mut at = address::host_port(authority).map_err(|_| accepted.to_owned())?;
        if at.host.is_empty() {
            "127.0.0.1".clone_into(&mut at.host);
        }
        Ok(Self { at: ServerAddress::Tcp(at), says_tls })
    }
}

impl TlsArgs {
    /// Reads the files, if TLS is asked for.
    fn read(&self, addr: &Address) -> Result<Option<Tls>, Failure> {
        match (addr.says_tls, *self != Self::default()) {
            (Some(false), true) => return Err(Failure::torn()),
            (Some(false) | None, false) => return Ok(None),
            (Some(true), _) | (None, true) => {}
        }
        let wanted = Wanted {
            trusted: self.ca.as_deref().map_or(Trusted::System, Trusted::Only),
            identity: self.cert.as_deref().zip(self.key.as_deref()),
            any_host: false,
        };
        let mut config = tls::load(&wanted, &WORDS).map_err(|faults| Failure::files(&faults))?.config;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let host = match &addr.at {
            ServerAddress::Tcp(at) => &at.host,
            ServerAddress::Unix(_) => "localhost",
        };
        let name = self.server_name.clone().map_or_else(|| tls::server_name(host), Ok);
        let name = name.map_err(|why| Failure::files(&[format!("{why}; {}", WORDS.other_host)]))?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Some(Tls { connector, name, shows_certificate: self.cert.is_some() }))
    }
}

impl Server {
    /// Reads the files of TLS.
    pub(super) fn new(addr: &Address, tls: &TlsArgs) -> Result<Self, Failure> {
        Ok(Self { at: addr.at.clone(), tls: tls.read(addr)? })
    }

    /// Connects, and says why not.
    pub(super) async fn connect(&self) -> Result<Channel, Failure> {
        let unreachable = |error: io::Error| Failure::unreachable(self, &error);
        let socket = match &self.at {
            ServerAddress::Tcp(at) => {
                let socket = TcpStream::connect((&*at.host, at.port)).await.map_err(unreachable)?;
                // Without it the answer may come later; it comes all the same.
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
        let secured = tls.connector.connect(tls.name.clone(), socket).await.map_err(|error| {
            let why = tls::explain(&error, &WORDS);
            Failure::insecure(self, why.unwrap_or_else(|| format!("{error}; {}", WORDS.plain_text)))
        });
        Ok(Box::new(secured?))
    }

    /// Whom the request names as its server.
    fn origin(&self) -> String {
        match (&self.tls, &self.at) {
            (Some(Tls { name: ServerName::DnsName(name), .. }), ServerAddress::Tcp(at)) => {
                format!("https://{}:{}", name.as_ref(), at.port)
            }
            (_, ServerAddress::Tcp(_)) => self.to_string(),
            (_, ServerAddress::Unix(_)) => "http://localhost".to_owned(),
        }
    }

    /// What to do about a connection that breaks before an answer: one side may not speak as the other does.
    pub(super) fn advice(&self) -> &'static str {
        match &self.tls {
            None => {
                "is that the gRPC port? HTTP and the debug pages have ports of their own; one that speaks TLS \
                 is asked with --tls"
            }
            Some(tls) if tls.shows_certificate => {
                "it may not take our certificate, of which its log tells more; see --cert and --key"
            }
            Some(_) => "if it wants a certificate, --cert and --key name it",
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
    fn addresses_are_read_in_every_usual_form() {
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
    fn tls_is_spoken_when_it_is_asked_for_in_any_way() {
        for (typed, read) in [
            ("a:1", "https://a:1"),
            ("https://a:1", "https://a:1"),
            ("unix:/run/rl.sock", "unix:/run/rl.sock"),
        ] {
            assert_eq!(server(typed, true).as_deref(), Ok(read), "{typed}");
        }
        let told = server("http://a:1", true).unwrap_err();
        assert!(told.contains("http://") && told.contains("https://"), "{told}");
    }
}
