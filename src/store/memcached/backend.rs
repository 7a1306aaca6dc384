//! How lanes ask a memcached: what is said to it, and what they learn from its answers.

use super::{
    bundle::Bundle,
    dialer::{Dialer, GREETING},
    reply::{self, Line, Reply, Text},
};
use crate::{
    settings::ServerAddress,
    store::{
        failure::{Failure, Kind},
        lane::{self, Backend},
    },
};

/// What all lanes share.
pub(super) struct MemcachedBackend {
    pub(super) dialer: Dialer,
}

/// A connection to one server, and what waits for it.
pub(super) type Lane = lane::Lane<MemcachedBackend>;

/// What was asked of one lane and is not answered yet.
pub(super) type Awaited = lane::Awaited<MemcachedBackend>;

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

    /// Counters that were not there are made, and asked again.
    async fn exchange(line: &mut Line, bundle: &Bundle) -> Result<Vec<Reply>, Failure> {
        let mut replies = line.ask(bundle.commands(), |into| bundle.write(into)).await?;
        let missing = bundle.missing(&replies);
        if missing.is_empty() {
            return Ok(replies);
        }
        let making = missing.iter().filter(|place| bundle.makes(**place)).count();
        line.send(missing.len() + making, |into| bundle.write_again(&missing, into)).await?;
        for place in missing {
            let made = if bundle.makes(place) { line.receive().await? } else { Reply::Added };
            let answer = line.receive().await?;
            // Why there is still no counter is told by what was to make it.
            replies[place] = if matches!(made, Reply::Error(_)) { made } else { answer };
        }
        Ok(replies)
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
