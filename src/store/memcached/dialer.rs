//! A connection to a memcached that is ready to be asked: connected, secured, and greeted.
//!
//! A connection dials for itself whenever it has no connection. Every failure tells the address, the step, and which
//! variable to look at.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::reply::{self, FramedStream, Reply};
use crate::store::remote::deadline::after;
use crate::{
    net::tls::Words as Names,
    settings::{
        ServerAddress,
        memcached::{Memcached, MemcachedServers},
    },
    store::remote::{
        failure::{Failure, Kind},
        tls::{self, Words},
        transport::{Connector, Transport},
    },
};

/// What is said of TLS to memcached.
static WORDS: Words = Words {
    tls: Names {
        ca: "MEMCACHE_TLS_CACERT",
        certificate: "MEMCACHE_TLS_CLIENT_CERT",
        key: "MEMCACHE_TLS_CLIENT_KEY",
        other_host: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true takes a certificate of another host",
        plain_text: "if its port speaks plain text, unset MEMCACHE_TLS",
    },
    with: "if its port speaks TLS, set MEMCACHE_TLS=true",
};

/// What a server is greeted with: the one question that changes nothing and that every server answers.
pub(super) const GREETING: &[u8] = b"version\r\n";

/// All that is needed to connect to a server but its address.
pub(super) struct Dialer {
    connector: Connector,
}

impl Dialer {
    /// Reads certificates, if TLS is spoken.
    ///
    /// # Errors
    /// All that is wrong with their files, each with its path.
    pub(super) fn new(settings: &Memcached) -> Result<Self, Vec<String>> {
        let tls = settings.tls.as_ref().map(|tls| tls::load(tls, &WORDS)).transpose()?;
        let connector = Connector {
            tls: tls.map(|tls| TlsConnector::from(Arc::new(tls.config))),
            words: &WORDS,
            bound: settings.connect_timeout,
            origin: match settings.servers {
                MemcachedServers::Named(_) => "see MEMCACHE_HOST_PORT",
                MemcachedServers::Srv { .. } => "the name server tells this address for MEMCACHE_SRV",
            },
        };
        Ok(Self { connector })
    }

    /// A connection whose other end has said that it is a memcached.
    ///
    /// # Errors
    /// Whatever kept it from that; so does a server that takes too long.
    pub(super) async fn dial(&self, to: &ServerAddress) -> Result<FramedStream, Failure> {
        let named =
            |failure: Failure| Failure::new(failure.kind, format!("memcached {to}: {}", failure.message));
        let until = after(Instant::now(), self.connector.bound);
        let wire = self.connector.connect(to, until).await.map_err(named)?;
        let in_the_clear = !matches!(wire, Transport::Tls(_));
        let mut line = FramedStream::new(wire, format!("memcached {to}"));
        match timeout_at(until, greet(&mut line)).await {
            Ok(Ok(Reply::Version)) => Ok(line),
            Ok(Ok(Reply::Error(error))) => {
                let kind = reply::kind(&error);
                let hint = reply::hint(kind);
                Err(named(Failure::new(kind, format!("it answered \"{error}\" to the greeting{hint}"))))
            }
            Ok(Ok(_)) => {
                let message = "it answers something else than its version; see MEMCACHE_HOST_PORT";
                Err(named(Failure::new(Kind::ProtocolError, message)))
            }
            // A server that speaks TLS says nothing else to those who do not.
            Ok(Err(failure)) if in_the_clear => {
                let message = format!("{}; {}", failure.message, WORDS.with);
                Err(Failure::new(failure.kind, message))
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(named(self.connector.not_greeted(&"the greeting (version)"))),
        }
    }
}

async fn greet(line: &mut FramedStream) -> Result<Reply, Failure> {
    line.send(1, |into| into.extend_from_slice(GREETING)).await?;
    line.receive().await
}
