//! How lanes ask a memcached: what is said to it, and what they learn from its answers.

use super::{
    bundle::Bundle,
    dialer::{Dialer, GREETING},
    reply::{self, Line, Reply, Text},
};
use crate::{
    settings::ServerAddress,
    store::remote::{
        self, Backend,
        failure::{Failure, Kind},
    },
};

/// What all lanes share.
pub(super) struct MemcachedBackend {
    pub(super) dialer: Dialer,
}

/// A connection to one server, and what waits for it.
pub(super) type Lane = remote::Lane<MemcachedBackend>;

/// What was asked of one lane and is not answered yet.
pub(super) type Awaited = remote::Awaited<MemcachedBackend>;

impl Backend for MemcachedBackend {
    type Language = Text;
    type Pipeline = Bundle;

    const NAME: &'static str = "memcached";
    const TIMEOUT: &'static str = "MEMCACHE_TIMEOUT";
    const MAX_QUEUED: &'static str = "MEMCACHE_MAX_QUEUED";
    const PROBE: &'static [u8] = GREETING;

    async fn dial(&self, to: &ServerAddress, _: bool) -> Result<Line, Failure> {
        self.dialer.dial(to).await
    }

    fn write(bundle: &Bundle, into: &mut Vec<u8>) -> usize {
        bundle.write(into);
        bundle.commands()
    }

    /// Counters that were not there are made, and counted in again.
    fn write_again(bundle: &Bundle, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        let missing = bundle.missing(replies);
        bundle.write_again(&missing, into);
        missing.len() + missing.iter().filter(|place| bundle.makes(**place)).count()
    }

    fn merge(bundle: &Bundle, replies: &mut [Reply], again: Vec<Reply>) {
        let mut again = again.into_iter();
        for place in bundle.missing(replies) {
            let made = if bundle.makes(place) { again.next() } else { None };
            let answer = again.next();
            // What was to make the counter knows why there is still none.
            let made = made.filter(|made| matches!(made, Reply::Error(_)));
            if let (Some(known), Some(reply)) = (replies.get_mut(place), made.or(answer)) {
                *known = reply;
            }
        }
    }

    fn deal(&self, lane: &Lane, bundle: &mut Bundle, replies: Vec<Reply>) -> Result<(), Failure> {
        let failures = bundle.deal(replies, |kind, error| lane.answered_with(kind, error));
        for failure in &failures {
            lane.meters().failed(failure);
        }
        // A server that did not understand a command may take what follows it for the next one: from then on
        // its answers would be dealt out wrongly.
        let strange = failures.iter().find(|failure| failure.kind == Kind::Garbage);
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
