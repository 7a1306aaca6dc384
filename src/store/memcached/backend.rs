//! How connections ask a memcached: what is said to it, and what they learn from its answers.

use super::{
    dialer::{Dialer, GREETING},
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

/// What all connections share.
pub(super) struct MemcachedBackend {
    pub(super) dialer: Dialer,
}

/// A connection to one server, and what waits for it.
pub(super) type Connection = remote::Connection<MemcachedBackend>;

/// What was asked of one connection and is not answered yet.
pub(super) type PendingReply = remote::PendingReply<MemcachedBackend>;

impl Backend for MemcachedBackend {
    type Codec = Text;
    type Pipeline = MemcachedPipeline;

    const NAME: &'static str = "memcached";
    const TIMEOUT: &'static str = "MEMCACHE_TIMEOUT";
    const MAX_QUEUED: &'static str = "MEMCACHE_MAX_QUEUED";
    const PROBE: &'static [u8] = GREETING;

    async fn dial(&self, to: &ServerAddress, _: bool) -> Result<FramedStream, Failure> {
        self.dialer.dial(to).await
    }

    fn write(pipeline: &MemcachedPipeline, into: &mut Vec<u8>) -> usize {
        pipeline.write(into);
        pipeline.commands()
    }

    /// Counters that were not there are made, and counted in again.
    fn write_again(pipeline: &MemcachedPipeline, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        let missing = pipeline.missing(replies);
        pipeline.write_again(&missing, into);
        let made = missing.iter().filter(|place| pipeline.makes(**place)).count();
        missing.len().saturating_add(made)
    }

    fn merge(pipeline: &MemcachedPipeline, replies: &mut [Reply], again: Vec<Reply>) {
        let mut again = again.into_iter();
        for place in pipeline.missing(replies) {
            let made = if pipeline.makes(place) { again.next() } else { None };
            let answer = again.next();
            // What was to make the counter knows why there is still none.
            let made = made.filter(|made| matches!(made, Reply::Error(_)));
            if let (Some(known), Some(reply)) = (replies.get_mut(place), made.or(answer)) {
                *known = reply;
            }
        }
    }

    fn complete(
        &self,
        connection: &Connection,
        pipeline: &mut MemcachedPipeline,
        replies: Vec<Reply>,
    ) -> Result<(), Failure> {
        let failures = pipeline.complete(replies, |kind, error| connection.answered_with(kind, error));
        for failure in &failures {
            connection.metrics().failed(failure);
        }
        // A server that did not understand a command may take what follows it for the next one: from then on
        // its answers would be dealt out wrongly.
        let strange = failures.iter().find(|failure| failure.kind == Kind::ProtocolError);
        strange.map_or(Ok(()), |failure| Err((**failure).clone()))
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
