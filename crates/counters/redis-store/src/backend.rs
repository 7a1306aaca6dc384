//! Redis as a [`Backend`].

use std::sync::Arc;

use super::{
    dialer::Dialer,
    failure::{self, Failure, FailureKind},
    login::{CurrentLogin, Session},
    pipeline::{Learned, RedisPipeline},
    resp::{FramedStream, Reply, Resp},
    topology::Topology,
    ttl_cache::TtlCache,
    write_check::WriteCheck,
};
use wire as remote;
use wire::Backend;

/// State that all connections to the servers of a Redis share.
pub(super) struct RedisBackend {
    pub(super) dialer: Dialer,
    pub(super) topology: Topology,
    pub(super) ttl_cache: TtlCache,
    pub(super) only_masters: bool,
    pub(super) write_check: Option<WriteCheck>,
}

pub(super) type Connection = remote::Connection<RedisBackend>;

pub(super) type PendingReply = remote::PendingReply<RedisBackend>;

impl Backend for RedisBackend {
    type Codec = Resp;
    type Pipeline = RedisPipeline;
    type Session = Session;

    const NAME: &'static str = "redis";
    const TIMEOUT: &'static str = "REDIS_TIMEOUT";
    const MAX_QUEUED: &'static str = "REDIS_MAX_QUEUED";
    const PROBE: &'static [u8] = b"*1\r\n$4\r\nPING\r\n";

    async fn dial(&self, connection: &Connection, was_replica: bool) -> Result<FramedStream, Failure> {
        let must_be_master = was_replica || self.only_masters;
        let (stream, login) = self.dialer.dial_and_log_in(&connection.address, must_be_master).await?;
        connection.session.logged_in(login);
        Ok(stream)
    }

    fn write(pipeline: &RedisPipeline, into: &mut Vec<u8>) -> usize {
        pipeline.write(into);
        pipeline.replies()
    }

    /// Scripts that the server does not know are sent again with their source.
    fn write_again(pipeline: &RedisPipeline, replies: &[Reply], into: &mut Vec<u8>) -> usize {
        let unknown = pipeline.unknown_scripts(replies);
        pipeline.write_with_scripts(&unknown, into);
        unknown.iter().map(|unknown| unknown.replies.len()).sum()
    }

    fn merge(pipeline: &RedisPipeline, replies: &mut [Reply], again: Vec<Reply>) {
        let indexes = pipeline.unknown_scripts(replies).into_iter().flat_map(|unknown| unknown.replies);
        for (index, reply) in indexes.zip(again) {
            if let Some(first) = replies.get_mut(index) {
                *first = reply;
            }
        }
    }

    fn complete(
        &self,
        connection: &Connection,
        pipeline: &mut RedisPipeline,
        replies: Vec<Reply>,
    ) -> Result<(), Failure> {
        self.learn(connection, pipeline.complete(replies, |kind, error| connection.error_reply(kind, error)))
    }

    fn connected(&self, connection: &Connection) {
        if let Some(check) = &self.write_check {
            let keys = WriteCheck::keys(&self.topology.servers());
            check.probe(&connection.address, &keys, |key| {
                connection.piggyback(|first| first.probe_writes(key));
            });
        }
    }

    fn error(reply: Reply) -> Option<(FailureKind, String)> {
        match reply {
            Reply::Error(error) => Some((failure::kind_of_reply(&error), error)),
            _ => None,
        }
    }

    fn hint(kind: FailureKind) -> &'static str {
        failure::hint(kind)
    }

    fn forget_keys(&self) {
        self.ttl_cache.clear();
    }

    fn request_refresh(&self) {
        self.topology.request_refresh();
    }
}

impl RedisBackend {
    fn learn(&self, connection: &Connection, learned: Learned) -> Result<(), Failure> {
        let now = connection.shared.edges.clock.now();
        let metrics = &connection.shared.metrics;
        if let (Some(check), Some(accepts)) = (&self.write_check, learned.accepts_writes) {
            check.record(&connection.address, accepts);
        }
        for (id, end) in learned.expiring {
            self.ttl_cache.learn(id, now, end);
        }
        metrics.without_expiry(learned.without_expiry);
        if !learned.missing_ttl.is_empty() {
            // The server has lost keys, so other cached keys may be missing too.
            self.ttl_cache.clear();
            connection.piggyback(|next| {
                learned.missing_ttl.iter().for_each(|(key, seconds)| next.expire(key, *seconds));
            });
        }
        let mut result = self.learn_login(connection, learned.login);
        for failure in learned.failures {
            match failure.kind {
                FailureKind::Moved | FailureKind::ClusterDown => self.topology.request_refresh(),
                FailureKind::ReadOnly
                | FailureKind::Loading
                | FailureKind::Auth
                | FailureKind::ProtocolError => {
                    result = Err((*failure).clone());
                }
                _ => {}
            }
            match failure.kind {
                // Expected while slots of a cluster move.
                FailureKind::Moved => metrics.count(failure.kind),
                _ => metrics.failed(&failure),
            }
        }
        result
    }

    /// A connection whose new login is refused keeps the previous one.
    fn learn_login(
        &self,
        connection: &Connection,
        login: Option<(Arc<CurrentLogin>, Result<(), String>)>,
    ) -> Result<(), Failure> {
        let Some((login, replied)) = login else { return Ok(()) };
        let Err(error) = replied else {
            connection.session.logged_in(login.generation);
            return Ok(());
        };
        let (kind, what) = self.dialer.rejected("AUTH", Some(&login), &error);
        let failure =
            connection.failure(kind, format_args!("{what}; its connections keep the previous login"));
        connection.shared.metrics.failed(&failure);
        if kind == FailureKind::ProtocolError { Err(failure) } else { Ok(()) }
    }
}
