//! How lanes ask a Redis: what is said to it, and what they learn from its answers.

use super::{
    bundle::{Bundle, Shown},
    failure::{Failure, Kind},
    resp::{Line, Reply, Resp},
    seen::Seen,
    topology::Topology,
    wire::Dialer,
};
use crate::{
    clock::{Clock, SystemClock},
    settings::ServerAddress,
    store::lane::{self, Backend},
};

/// What all lanes to the servers of a Redis share.
pub(super) struct RedisBackend {
    pub(super) dialer: Dialer,
    pub(super) topology: Topology,
    pub(super) seen: Seen,
    /// A server that says it is a replica is not asked.
    pub(super) only_masters: bool,
}

/// A connection to one server, and what waits for it.
pub(super) type Lane = lane::Lane<RedisBackend>;

/// What was asked of one lane and is not answered yet.
pub(super) type Awaited = lane::Awaited<RedisBackend>;

impl Backend for RedisBackend {
    type Language = Resp;
    type Pipeline = Bundle;

    const NAME: &'static str = "redis";
    const TIMEOUT: &'static str = "REDIS_TIMEOUT";
    const MAX_QUEUED: &'static str = "REDIS_MAX_QUEUED";
    const PROBE: &'static [u8] = b"*1\r\n$4\r\nPING\r\n";

    async fn dial(&self, to: &ServerAddress, was_replica: bool) -> Result<Line, Failure> {
        let wire = self.dialer.dial(to, was_replica || self.only_masters).await?;
        Ok(Line::new(wire, format!("redis {to}")))
    }

    fn write(bundle: &Bundle, into: &mut Vec<u8>) -> usize {
        bundle.write(into);
        bundle.answers()
    }

    /// Scripts that the server does not know are sent again, in full.
    fn write_again(bundle: &Bundle, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        let unknown = bundle.unknown_scripts(replies);
        bundle.write_with_scripts(&unknown, into);
        unknown.iter().map(|unknown| unknown.answers().len()).sum()
    }

    fn merge(bundle: &Bundle, replies: &mut [Reply], again: Vec<Reply>) {
        let unknown = bundle.unknown_scripts(replies);
        let places = unknown.iter().flat_map(|unknown| unknown.answers());
        for (place, reply) in places.zip(again) {
            if let Some(known) = replies.get_mut(place) {
                *known = reply;
            }
        }
    }

    fn deal(&self, lane: &Lane, bundle: &mut Bundle, replies: Vec<Reply>) -> Result<(), Failure> {
        self.learn(lane, bundle.deal(replies, |kind, error| lane.answered_with(kind, error)))
    }

    fn error(reply: Reply) -> Option<(Kind, String)> {
        match reply {
            Reply::Error(error) => Some((Kind::of_answer(&error), error)),
            _ => None,
        }
    }

    fn hint(kind: Kind) -> &'static str {
        kind.hint()
    }

    fn forget_keys(&self) {
        self.seen.forget_all();
    }

    fn doubt_servers(&self) {
        self.topology.doubt();
    }
}

impl RedisBackend {
    /// Takes to heart what the answers have shown.
    fn learn(&self, lane: &Lane, shown: Shown) -> Result<(), Failure> {
        let now = SystemClock.now();
        for (id, end) in shown.expiring {
            self.seen.learn(id, now, end);
        }
        if !shown.immortal.is_empty() {
            // The server had lost keys that this process had told it. Whatever else it knows is doubtful then.
            self.seen.forget_all();
            lane.send_along(|next| {
                for (key, seconds) in &shown.immortal {
                    next.expire(key, *seconds);
                }
            });
        }
        let mut left = Ok(());
        for failure in shown.failures {
            match failure.kind {
                Kind::Moved | Kind::ClusterDown => self.topology.doubt(),
                Kind::ReadOnly | Kind::Loading | Kind::Auth => left = Err((*failure).clone()),
                _ => {}
            }
            match failure.kind {
                // In a cluster whose slots wander this is nobody's fault.
                Kind::Moved => lane.meters().count(failure.kind),
                _ => lane.meters().failed(&failure),
            }
        }
        left
    }
}
