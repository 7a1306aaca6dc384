//! How connections ask a Redis: what is said to it, and what they learn from its answers.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use super::{
    failure::{Failure, Kind},
    permissions::{self, Needs},
    pipeline::{Expire, Expiry, Learned, RedisPipeline},
    resp::{FramedStream, Reply, Resp},
    topology::Topology,
    ttl_cache::TtlCache,
    wire::Dialer,
};
use crate::{
    clock::{Clock, SystemClock, Time},
    rules::Limit,
    settings::ServerAddress,
    store::{
        remote::{self, Backend},
        table::Key,
    },
};

/// What all connections to the servers of a Redis share.
pub(super) struct RedisBackend {
    pub(super) dialer: Dialer,
    pub(super) topology: Topology,
    pub(super) seen: TtlCache,
    /// A server that says it is a replica is not asked.
    pub(super) only_masters: bool,
    /// Who we are to it; none is `default`.
    pub(super) user: Option<String>,
    /// The bits of what the rules in force need.
    pub(super) needs: AtomicU8,
    /// The user may not run scripts: an expiry is set without a look at the one that is there.
    pub(super) cannot_extend: AtomicBool,
}

/// A connection to one server, and what waits for it.
pub(super) type Connection = remote::Connection<RedisBackend>;

/// What was asked of one connection and is not answered yet.
pub(super) type PendingReply = remote::PendingReply<RedisBackend>;

impl Backend for RedisBackend {
    type Codec = Resp;
    type Pipeline = RedisPipeline;

    const NAME: &'static str = "redis";
    const TIMEOUT: &'static str = "REDIS_TIMEOUT";
    const MAX_QUEUED: &'static str = "REDIS_MAX_QUEUED";
    const PROBE: &'static [u8] = b"*1\r\n$4\r\nPING\r\n";

    async fn dial(&self, to: &ServerAddress, was_replica: bool) -> Result<FramedStream, Failure> {
        let wire = self.dialer.dial(to, was_replica || self.only_masters).await?;
        Ok(FramedStream::new(wire, format!("redis {to}")))
    }

    fn write(pipeline: &RedisPipeline, into: &mut Vec<u8>) -> usize {
        pipeline.write(into);
        pipeline.answers()
    }

    /// Scripts that the server does not know are sent again, in full.
    fn write_again(pipeline: &RedisPipeline, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        let unknown = pipeline.unknown_scripts(replies);
        pipeline.write_with_scripts(&unknown, into);
        unknown.iter().map(|unknown| unknown.answers().len()).sum()
    }

    fn merge(pipeline: &RedisPipeline, replies: &mut [Reply], again: Vec<Reply>) {
        let unknown = pipeline.unknown_scripts(replies);
        let places = unknown.iter().flat_map(|unknown| unknown.answers());
        for (place, reply) in places.zip(again) {
            if let Some(known) = replies.get_mut(place) {
                *known = reply;
            }
        }
    }

    fn complete(
        &self,
        connection: &Connection,
        pipeline: &mut RedisPipeline,
        replies: Vec<Reply>,
    ) -> Result<(), Failure> {
        self.learn(
            connection,
            pipeline.complete(replies, |kind, error| connection.answered_with(kind, error)),
        )
    }

    fn connected(&self, connection: &Connection) {
        // Permissions may have changed meanwhile.
        self.cannot_extend.store(false, Relaxed);
        let needs = Needs::from_bits(self.needs.load(Relaxed));
        connection.send_along(|first| first.check(needs));
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

    fn request_refresh(&self) {
        self.topology.request_refresh();
    }
}

impl RedisBackend {
    /// How long a counter lives, and whether the server has to set that.
    pub(super) fn expiry(&self, id: Key, limit: &Limit, now: Time) -> Expiry {
        let expiry = self.seen.expiry(id, limit, now);
        match expiry.set {
            Expire::Extend if self.cannot_extend.load(Relaxed) => Expiry { set: Expire::Set, ..expiry },
            _ => expiry,
        }
    }

    /// Takes to heart what the answers have shown.
    fn learn(&self, connection: &Connection, shown: Learned) -> Result<(), Failure> {
        let now = SystemClock.now();
        for (id, end) in shown.expiring {
            self.seen.learn(id, now, end);
        }
        if !shown.missing_ttl.is_empty() {
            // The server had lost keys that this process had told it. Whatever else it knows is doubtful then.
            self.seen.forget_all();
            connection.send_along(|next| {
                for (key, seconds) in &shown.missing_ttl {
                    next.expire(key, *seconds, Expire::Set);
                }
            });
        }
        self.learn_of_expiries(connection, &shown.not_expiring);
        shown.denied.iter().chain(&shown.missing).for_each(|command| connection.metrics().denied(command));
        if !shown.missing.is_empty() {
            let user = self.user.as_deref().unwrap_or("default");
            connection
                .metrics()
                .found(&connection.failure(Kind::Denied, permissions::denial(user, &shown.missing)));
        }
        let mut left = Ok(());
        for failure in shown.failures {
            match failure.kind {
                Kind::Moved | Kind::ClusterDown => self.topology.request_refresh(),
                Kind::ReadOnly | Kind::Loading | Kind::Auth | Kind::ProtocolError => {
                    left = Err((*failure).clone());
                }
                _ => {}
            }
            match failure.kind {
                // In a cluster whose slots wander this is nobody's fault.
                Kind::Moved => connection.metrics().count(failure.kind),
                _ => connection.metrics().failed(&failure),
            }
        }
        left
    }

    /// Keys that were counted have got no expiry: where a script was denied an ordinary command may do.
    fn learn_of_expiries(&self, connection: &Connection, not_expiring: &[(Box<str>, u32, bool)]) {
        let (again, lost): (Vec<_>, Vec<_>) = not_expiring.iter().partition(|(.., again)| *again);
        connection.metrics().without_expiry(lost.len());
        if !again.is_empty() {
            self.cannot_extend.store(true, Relaxed);
            connection.send_along(|next| {
                for (key, seconds, _) in again {
                    next.expire(key, *seconds, Expire::Set);
                }
            });
        }
    }
}
