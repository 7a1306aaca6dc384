//! Opens connections to memcached: connect, TLS handshake, and a `version` command.
//!
//! Every failure names the address, the step and the variable to check.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::reply::{self, FramedStream, Reply};
use crate::store::remote::after;
use crate::{
    net::tls::Words as Names,
    settings::{
        ServerAddress,
        memcached::{Memcached, MemcachedServers},
    },
    store::remote::{
        failure::{Failure, Kind},
        transport::{Connector, TlsAdvice, Transport, load_tls},
    },
};

static TLS_ADVICE: TlsAdvice = TlsAdvice {
    tls: Names {
        ca: "MEMCACHE_TLS_CACERT",
        certificate: "MEMCACHE_TLS_CLIENT_CERT",
        key: "MEMCACHE_TLS_CLIENT_KEY",
        other_host: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true accepts a certificate for another host",
        plain_text: "if the server does not use TLS, unset MEMCACHE_TLS",
    },
    use_tls: "if the server uses TLS, set MEMCACHE_TLS=true",
};

/// The first command and the probe: it has no effect, and every server answers it.
pub(super) const VERSION: &[u8] = b"version\r\n";

/// Opens connections.
pub(super) struct Dialer {
    connector: Connector,
}

impl Dialer {
    /// Loads certificates if TLS is enabled.
    ///
    /// # Errors
    /// Every problem with the files.
    pub(super) fn new(settings: &Memcached) -> Result<Self, Vec<String>> {
        let tls = settings.tls.as_ref().map(|tls| load_tls(tls, &TLS_ADVICE)).transpose()?;
        let connector = Connector {
            tls: tls.map(|tls| TlsConnector::from(Arc::new(tls.config))),
            advice: &TLS_ADVICE,
            timeout: settings.connect_timeout,
            origin: match settings.servers {
                MemcachedServers::Named(_) => "see MEMCACHE_HOST_PORT",
                MemcachedServers::Srv { .. } => "the address comes from MEMCACHE_SRV",
            },
        };
        Ok(Self { connector })
    }

    /// Opens a connection to a server that answers like memcached.
    ///
    /// # Errors
    /// When a step fails or takes too long.
    pub(super) async fn dial(&self, to: &ServerAddress) -> Result<FramedStream, Failure> {
        let named =
            |failure: Failure| Failure::new(failure.kind, format!("memcached {to}: {}", failure.message));
        let until = after(Instant::now(), self.connector.timeout);
        let transport = self.connector.connect(to, until).await.map_err(named)?;
        let is_plain_text = !matches!(transport, Transport::Tls(_));
        let mut stream = FramedStream::new(transport, format!("memcached {to}"));
        match timeout_at(until, version(&mut stream)).await {
            Ok(Ok(Reply::Version)) => Ok(stream),
            Ok(Ok(Reply::Error(error))) => {
                let kind = reply::kind(&error);
                let hint = reply::hint(kind);
                Err(named(Failure::new(kind, format!("error reply to version: \"{error}\"{hint}"))))
            }
            Ok(Ok(_)) => {
                let message = "unexpected reply to version; see MEMCACHE_HOST_PORT";
                Err(named(Failure::new(Kind::ProtocolError, message)))
            }
            // A server that requires TLS closes plain text connections.
            Ok(Err(failure)) if is_plain_text => {
                let message = format!("{}; {}", failure.message, TLS_ADVICE.use_tls);
                Err(Failure::new(failure.kind, message))
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(named(self.connector.handshake_timed_out(&"version"))),
        }
    }
}

async fn version(stream: &mut FramedStream) -> Result<Reply, Failure> {
    stream.send(1, |into| into.extend_from_slice(VERSION)).await?;
    stream.receive().await
}
