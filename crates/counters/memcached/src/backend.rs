//! memcached as a [`Backend`].

use super::{
    pipeline::MemcachedPipeline,
    reply::{self, FramedStream, Reply, Text},
};
use crate::settings::{Memcached, MemcachedServers};
use net::{ServerAddress, edges::Edges, tls::Hints};
use wire as remote;
use wire::{
    Backend, at_mut,
    failure::{Failure, FailureKind},
    handshake::Handshake,
    transport::{Connector, TlsAdvice},
};

static TLS_ADVICE: TlsAdvice = TlsAdvice {
    tls: Hints {
        ca: "MEMCACHE_TLS_CACERT",
        certificate: "MEMCACHE_TLS_CLIENT_CERT",
        key: "MEMCACHE_TLS_CLIENT_KEY",
        other_host: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true accepts a certificate for another host",
        plain_text: "if the server does not use TLS, unset MEMCACHE_TLS",
    },
    use_tls: "if the server uses TLS, set MEMCACHE_TLS=true",
};

pub(super) struct MemcachedBackend(Connector);

pub(super) type Connection = remote::Connection<MemcachedBackend>;

pub(super) type PendingReply = remote::PendingReply<MemcachedBackend>;

impl MemcachedBackend {
    /// Loads certificates if TLS is enabled. Returns every problem with the files.
    pub(super) fn new(settings: &Memcached, edges: &Edges) -> Result<Self, Vec<String>> {
        let origin = match settings.servers {
            MemcachedServers::Named(_) => "see MEMCACHE_HOST_PORT",
            MemcachedServers::Srv { .. } => "the address comes from MEMCACHE_SRV",
        };
        let tls = settings.tls.as_ref();
        let timeout = settings.connect_timeout;
        Connector::new(Self::NAME, tls, &TLS_ADVICE, timeout, origin, edges).map(Self)
    }

    /// Opens a connection to a server that tells its version.
    pub(super) async fn open(&self, to: &ServerAddress) -> Result<FramedStream, Failure> {
        let mut handshake = Handshake::begin(&self.0, to).await?;
        handshake.send(1, Self::PROBE).await;
        match handshake.receive("version").await? {
            Reply::Version => Ok(handshake.stream),
            Reply::Error(error) => {
                let kind = reply::kind(&error);
                let what = format!("error reply to version: \"{error}\"{}", reply::hint(kind));
                Err(handshake.stream.failure(kind, what))
            }
            _ => {
                let what = "unexpected reply to version; see MEMCACHE_HOST_PORT";
                Err(handshake.stream.failure(FailureKind::ProtocolError, what))
            }
        }
    }
}

impl Backend for MemcachedBackend {
    type Codec = Text;
    type Pipeline = MemcachedPipeline;
    type Session = ();

    const NAME: &'static str = "memcached";
    const TIMEOUT: &'static str = "MEMCACHE_TIMEOUT";
    const MAX_QUEUED: &'static str = "MEMCACHE_MAX_QUEUED";
    const PROBE: &'static [u8] = b"version\r\n";

    async fn dial(&self, connection: &Connection, _: bool) -> Result<FramedStream, Failure> {
        self.open(&connection.address).await
    }

    fn write(pipeline: &MemcachedPipeline, into: &mut Vec<u8>) -> usize {
        pipeline.write(into)
    }

    /// Missing counters are created, and their commands sent again.
    fn write_again(pipeline: &MemcachedPipeline, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        pipeline.write_again(&pipeline.missing(replies), into)
    }

    #[expect(clippy::expect_used, reason = "asserts that all replies were read")]
    fn merge(pipeline: &MemcachedPipeline, replies: &mut [Reply], again: Vec<Reply>) {
        let mut again = again.into_iter();
        for index in pipeline.missing(replies) {
            let added = if pipeline.creates(index) { again.next() } else { None };
            let reply = again.next();
            // An error of the `add` is the reason that there is still no counter.
            let added = added.filter(|added| matches!(added, Reply::Error(_)));
            *at_mut(replies, index) = added.or(reply).expect("a connection waits for every reply");
        }
    }

    fn complete(
        &self,
        connection: &Connection,
        pipeline: &mut MemcachedPipeline,
        replies: Vec<Reply>,
    ) -> Result<(), Failure> {
        let too_large = pipeline.too_large(&replies).map(|key| String::from_utf8_lossy(key).into_owned());
        let too_large: Vec<String> = too_large.collect();
        if !too_large.is_empty() {
            connection.piggyback(|next| too_large.iter().for_each(|key| next.reduce(key)));
        }
        let failures = pipeline.complete(replies, |kind, error| connection.error_reply(kind, error));
        for failure in &failures {
            connection.shared.metrics.failed(failure);
        }
        // A server that rejected a command may parse the bytes after it as the next one, which would shift all replies.
        let unknown = failures.iter().find(|failure| failure.kind == FailureKind::ProtocolError);
        unknown.map_or(Ok(()), |failure| Err((**failure).clone()))
    }

    fn error(reply: Reply) -> Option<(FailureKind, String)> {
        match reply {
            Reply::Error(error) => Some((reply::kind(&error), error)),
            _ => None,
        }
    }

    fn hint(kind: FailureKind) -> &'static str {
        reply::hint(kind)
    }
}
