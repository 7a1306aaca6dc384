//! Commands to Redis other than counting: overrides, resets of counters, and the list of replicas.
//!
//! They have connections separate from those that count, so that a large or slow command delays no request. `deadpool`
//! opens them; a simulation passes its own [`Connect`]. The connections belong to the runtime that opens them: each thread
//! has its own [`CommandPool`].

use std::{future::Future, io, ops::DerefMut, pin::Pin, sync::Arc, time::Duration};

use deadpool_redis::redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, ScriptInvocation, aio::MultiplexedConnection,
};
use futures_util::Stream;

use super::{
    dialer::{REDIS_AUTH, TLS_ADVICE},
    topology::Topology,
};
use net::{ServerAddress, edges::Edges};

/// The timeout of connecting and of a command. Some commands handle thousands of keys.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a process that starts waits for its sentinels or its cluster to name the masters.
const DISCOVERY: Duration = Duration::from_secs(1);

/// Opens connections to servers.
pub trait Connect: Send + Sync {
    /// The same with connections of its own, for another thread.
    fn separate(&self) -> Arc<dyn Connect>;

    /// A connection to one of the `current` servers. Connections to others can be closed.
    fn connection<'a>(&'a self, to: &'a ServerAddress, current: &'a [ServerAddress]) -> Pending<'a, Link>;

    /// The messages of a channel, until the connection ends.
    fn subscribe<'a>(&'a self, to: &'a ServerAddress, channel: &'a str) -> Pending<'a, Messages>;
}

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, RedisError>> + Send + 'a>>;

pub type Link = Box<dyn Connected>;

/// A connection that is returned when it is dropped.
pub trait Connected: DerefMut<Target = MultiplexedConnection> + Send {
    /// Closes the connection.
    fn discard(self: Box<Self>);
}

pub type Messages = Pin<Box<dyn Stream<Item = String> + Send>>;

/// Connections to one Redis for everything but counting.
pub struct CommandPool {
    connect: Arc<dyn Connect>,
    topology: Topology,
    edges: Edges,
    prefix: Box<str>,
    has_tls: bool,
}

impl CommandPool {
    pub(super) fn new(
        connect: Arc<dyn Connect>,
        topology: &Topology,
        prefix: &str,
        has_tls: bool,
        edges: &Edges,
    ) -> Self {
        Self { connect, topology: topology.clone(), edges: edges.clone(), prefix: prefix.into(), has_tls }
    }

    /// The same with connections of its own, for another thread.
    pub(super) fn separate(&self) -> Self {
        Self::new(self.connect.separate(), &self.topology, &self.prefix, self.has_tls, &self.edges)
    }

    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// The name of a key that is not a counter. All of them are on one server of a cluster.
    pub fn key(&self, name: &str) -> String {
        format!("{}{{tollgate}}:{name}", self.prefix)
    }

    /// Runs a command on the server that owns `key`.
    ///
    /// # Errors
    /// When the server cannot be reached or rejects the command: the address, the cause and advice.
    pub async fn command<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, String> {
        let (address, mut link) = self.connection(key).await?;
        let result = self.in_time(command.query_async(&mut **link)).await;
        self.finish(&address, link, result)
    }

    /// Runs commands in one pipeline on the server that owns `key`.
    pub async fn pipeline<T: FromRedisValue>(&self, key: &str, commands: &Pipeline) -> Result<T, String> {
        let (address, mut link) = self.connection(key).await?;
        let result = self.in_time(commands.query_async(&mut **link)).await;
        self.finish(&address, link, result)
    }

    /// Runs a script on the server that owns `key`.
    pub async fn script<T: FromRedisValue>(
        &self,
        key: &str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, String> {
        let (address, mut link) = self.connection(key).await?;
        let result = self.in_time(script.invoke_async(&mut **link)).await;
        self.finish(&address, link, result)
    }

    /// Subscribes to a channel, on the server that owns a key of this name.
    pub async fn subscribe(&self, channel: &str) -> Result<Messages, String> {
        self.edges.timer.timeout(DISCOVERY, self.wait_for_owner(channel)).await;
        let (address, _) = self.owner(channel)?;
        let subscribed = self.in_time(self.connect.subscribe(&address, channel)).await;
        subscribed.map_err(|error| self.explain(&address, &error))
    }

    /// Waits until a master owns the key.
    async fn wait_for_owner(&self, key: &str) {
        let changed = self.topology.changed();
        loop {
            // No change is missed from here on.
            let next = changed.notified();
            if self.owner(key).is_ok() {
                return;
            }
            next.await;
        }
    }

    async fn connection(&self, key: &str) -> Result<(ServerAddress, Link), String> {
        let (address, current) = self.owner(key)?;
        match self.in_time(self.connect.connection(&address, &current)).await {
            Ok(link) => Ok((address, link)),
            Err(error) => {
                self.topology.request_refresh();
                Err(self.explain(&address, &error))
            }
        }
    }

    async fn in_time<T>(&self, reply: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
        let reply = self.edges.timer.timeout(TIMEOUT, reply).await;
        reply.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// The result of a command. A broken connection is not reused.
    fn finish<T>(
        &self,
        address: &ServerAddress,
        link: Link,
        result: Result<T, RedisError>,
    ) -> Result<T, String> {
        result.map_err(|error| {
            if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() {
                link.discard();
            }
            // A master may have become a replica, and slots may have moved.
            self.topology.request_refresh();
            self.explain(address, &error)
        })
    }

    /// The error with advice. It cannot contain the password: the `redis` crate does not pass on the reply to AUTH.
    fn explain(&self, address: &ServerAddress, error: &RedisError) -> String {
        let text = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let has_tls = self.has_tls;
        let late = format!("no reply within {TIMEOUT:?}");
        let text = match error.code() {
            _ if error.is_timeout() && has_tls => format!("{late}; {}", TLS_ADVICE.tls.plain_text),
            _ if error.is_timeout() => format!("{late}; check the server and the network"),
            _ if error.is_connection_refusal() => "connection refused".to_owned(),
            _ if error.is_io_error() && has_tls => {
                format!("{text}; see REDIS_TLS_CACERT and the other REDIS_TLS variables")
            }
            _ if error.is_connection_dropped() => format!("{text}; {}", TLS_ADVICE.use_tls),
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                format!("authentication failed; see {REDIS_AUTH}")
            }
            Some("NOAUTH" | "WRONGPASS" | "NOPERM") => format!("{text}; see {REDIS_AUTH}"),
            _ => text,
        };
        format!("redis {address}: {text}")
    }

    /// The server that owns a key, and all servers.
    fn owner(&self, key: &str) -> Result<(ServerAddress, Vec<ServerAddress>), String> {
        let servers = self.topology.servers();
        let owner = servers.owner(key.as_bytes()).and_then(|owner| servers.masters.get(owner));
        owner.map(|owner| (owner.clone(), servers.masters.clone())).ok_or_else(|| {
            self.topology.request_refresh();
            "redis: no known master owns the key".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use deadpool_redis::redis::{ServerErrorKind, make_extension_error};

    use super::{super::deadpool::Deadpool, *};
    use crate::redis::settings::{RedisPool, RedisServers};

    #[test]
    fn failures_contain_advice() {
        let address = ServerAddress::Unix("/run/redis.sock".into());
        let pool = RedisPool {
            servers: RedisServers::Single(address.clone()),
            credentials: None,
            database: 0,
            tls: None,
            connections: 1,
            timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
            pipeline_window: Duration::ZERO,
            max_queued: 1,
        };
        let edges = Edges::system();
        let topology = Topology::new(&pool, &edges).map_err(|errors| errors.join("\n")).unwrap();
        let deadpool = Deadpool::new(&pool).map_err(|errors| errors.join("\n")).unwrap();
        let commands = CommandPool::new(Arc::new(deadpool), &topology, "", false, &edges);
        let rejected =
            |text: &str| RedisError::from((ServerErrorKind::ResponseError.into(), "x", text.to_owned()));
        let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        for (error, word) in [
            (io(io::ErrorKind::TimedOut), "no reply within 5s"),
            (io(io::ErrorKind::ConnectionRefused), "connection refused"),
            (io(io::ErrorKind::ConnectionReset), "REDIS_TLS=true"),
            ((ErrorKind::AuthenticationFailed, "x").into(), "see REDIS_AUTH"),
            (
                make_extension_error("NOAUTH".to_owned(), Some("Log in.".to_owned())),
                "NOAUTH Log in.; see REDIS_AUTH",
            ),
            (rejected("odd"), "ERR odd"),
        ] {
            let error = commands.explain(&address, &error);
            assert!(error.starts_with("redis /run/redis.sock: ") && error.contains(word), "{error}");
        }
    }
}
