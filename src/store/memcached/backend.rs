//! memcached as a [`Backend`]: what connections send to it, and what its replies mean.

use super::{
    dialer::{Dialer, VERSION},
    pipeline::MemcachedPipeline,
    reply::{self, FramedStream, Reply, Text},
};
use crate::{
    settings::ServerAddress,
    store::remote::{
        self, Backend,
        failure::{Failure, Kind},
    },
};

/// State that all connections share.
pub(super) struct MemcachedBackend {
    pub(super) dialer: Dialer,
}

/// A connection to one server.
pub(super) type Connection = remote::Connection<MemcachedBackend>;

/// A reply to come from one connection.
pub(super) type PendingReply = remote::PendingReply<MemcachedBackend>;

impl Backend for MemcachedBackend {
    type Codec = Text;
    type Pipeline = MemcachedPipeline;

    const NAME: &'static str = "memcached";
    const TIMEOUT: &'static str = "MEMCACHE_TIMEOUT";
    const MAX_QUEUED: &'static str = "MEMCACHE_MAX_QUEUED";
    const PROBE: &'static [u8] = VERSION;

    async fn dial(&self, to: &ServerAddress, _: bool) -> Result<FramedStream, Failure> {
        self.dialer.dial(to).await
    }

    fn write(pipeline: &MemcachedPipeline, into: &mut Vec<u8>) -> usize {
        pipeline.write(into);
        pipeline.commands()
    }

    /// Missing counters are created, and their commands sent again.
    fn write_again(pipeline: &MemcachedPipeline, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        let missing = pipeline.missing(replies);
        pipeline.write_again(&missing, into);
        let made = missing.iter().filter(|index| pipeline.creates(**index)).count();
        missing.len().saturating_add(made)
    }

    fn merge(pipeline: &MemcachedPipeline, replies: &mut [Reply], again: Vec<Reply>) {
        let mut again = again.into_iter();
        for index in pipeline.missing(replies) {
            let added = if pipeline.creates(index) { again.next() } else { None };
            let reply = again.next();
            // The error of the `add` says why there is still no counter.
            let added = added.filter(|added| matches!(added, Reply::Error(_)));
            if let (Some(first), Some(reply)) = (replies.get_mut(index), added.or(reply)) {
                *first = reply;
            }
        }
    }

    fn complete(
        &self,
        connection: &Connection,
        pipeline: &mut MemcachedPipeline,
        replies: Vec<Reply>,
    ) -> Result<(), Failure> {
        let failures = pipeline.complete(replies, |kind, error| connection.error_reply(kind, error));
        for failure in &failures {
            connection.metrics().failed(failure);
        }
        // A server that rejected a command may take the bytes after it for the next one, which would shift all
        // replies.
        let unknown = failures.iter().find(|failure| failure.kind == Kind::ProtocolError);
        unknown.map_or(Ok(()), |failure| Err((**failure).clone()))
    }

    fn error(reply: Reply) -> Option<(Kind, String)> {
        match reply {
            Reply::Error(error) => Some((reply::kind(&error), error)),
            _ => None,
        }
    }

    fn hint(kind: Kind) -> &'static str {
        reply::hint(kind)
    }
}
