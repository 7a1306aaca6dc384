//! Connections of the [`CommandPool`](super::CommandPool): `deadpool` pools them, the `redis` crate runs commands on them, and
//! the [`Dialer`] opens them, as it opens those that count.
//!
//! The `redis` crate bounds neither the bytes of a reply nor what they become in memory. So a stream below it counts both
//! and ends.

use std::{
    future::ready,
    io, mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cmd, pipe,
};
use tokio::io::{AsyncRead, ReadBuf, ReadHalf, join, split};

use super::{
    dialer::Dialer,
    failure::{Failure, FailureKind},
};
use net::{
    ServerAddress,
    edges::{Edges, Transport},
};

/// Connections per server. Each runs one command at a time, so with two a slow command does not block all others.
const CONNECTIONS: usize = 2;

/// The maximum size of the replies to a command, in memory. The largest are a thousand changes, of 7 kB at most.
const MAX_REPLY: usize = 8 << 20;

/// The memory that each line of a reply may take: an element has one, or two with its length.
const LINE: usize = 64;

pub(super) type Links = Pool<Opener>;

/// A connection that is returned when it is dropped.
pub(super) type Taken = Object<Opener>;

pub(super) fn links(dialer: Dialer, to: ServerAddress, edges: &Edges) -> Result<Links, String> {
    let opener = Opener { dialer, to, edges: edges.clone() };
    Pool::builder(opener).max_size(CONNECTIONS).build().map_err(|error| error.to_string())
}

/// A connection of the pool.
pub(super) async fn take(links: &Links) -> Result<Taken, String> {
    links.get().await.map_err(|error| match error {
        PoolError::Backend(failure) => failure.message,
        other => other.to_string(),
    })
}

/// Opens connections to a server.
pub(super) struct Opener {
    dialer: Dialer,
    to: ServerAddress,
    edges: Edges,
}

impl Manager for Opener {
    type Type = Link;
    type Error = Failure;

    async fn create(&self) -> Result<Link, Failure> {
        let transport = self.dialer.dial(&self.to, false).await?.into_transport();
        let received = Arc::<AtomicUsize>::default();
        let (read, write) = split(transport);
        let stream = join(Bounded { read, received: received.clone() }, write);
        // The caller has the timeouts.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let opened = MultiplexedConnection::new_with_config(&login, stream, config).await;
        let (connection, driver) = opened.map_err(|error| self.failure(&error))?;
        self.edges.start(driver);
        Ok(Link { connection, received, is_asking: false })
    }

    /// Replaces a connection that was lost since its last command.
    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<Failure> {
        link.received.store(0, Relaxed);
        let answered = cmd("PING").query_async::<()>(&mut link.connection).await;
        link.received.store(0, Relaxed);
        answered.map_err(|error| RecycleError::Backend(self.failure(&error)))
    }
}

impl Opener {
    fn failure(&self, error: &RedisError) -> Failure {
        Failure::new(FailureKind::Lost, format!("redis {}: {error}", self.to))
    }
}

/// A connection that one caller uses at a time.
pub(super) struct Link {
    connection: MultiplexedConnection,
    received: Arc<AtomicUsize>,
    /// The server imports the slot of a command, which must follow `ASKING`.
    pub(super) is_asking: bool,
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        if !self.is_asking {
            return self.connection.req_packed_command(command);
        }
        Box::pin(async move {
            let mut commands = pipe();
            commands.cmd("ASKING").add_command(command.clone());
            let mut replies = self.connection.req_packed_commands(&commands, 1, 1).await?;
            Ok(replies.pop().unwrap_or(Value::Nil))
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

/// Replies that were received before.
pub(super) struct Received(pub(super) Vec<Value>);

impl ConnectionLike for Received {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(ready(Ok(self.0.pop().unwrap_or(Value::Nil))))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(ready(Ok(mem::take(&mut self.0))))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Fails when a reply takes more than [`MAX_REPLY`].
struct Bounded {
    read: ReadHalf<Transport>,
    /// What has been received for the current command.
    received: Arc<AtomicUsize>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.read).poll_read(context, into))?;
        let new = into.filled().get(before..).unwrap_or_default();
        let size = new.len() + new.split(|byte| *byte == b'\n').skip(1).count() * LINE;
        if self.received.fetch_add(size, Relaxed) + size > MAX_REPLY {
            let message = format!("sent more than {MAX_REPLY} bytes in reply to a command, the maximum");
            return Poll::Ready(Err(io::Error::other(message)));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_reply_is_bounded_in_bytes_and_in_lines() {
        for (block, most) in [(b"x".repeat(1 << 14), MAX_REPLY), (b":1\r\n".repeat(1 << 12), MAX_REPLY / 17)]
        {
            let (near, mut far) = duplex(1 << 14);
            let received = Arc::<AtomicUsize>::default();
            let (read, _write) = split(Box::new(near) as Transport);
            let mut stream = Bounded { read, received: received.clone() };
            tokio::spawn(async move { while far.write_all(&block).await.is_ok() {} });
            for _ in 0..2 {
                let (mut bytes, mut buffer) = (0, vec![0; 1 << 14]);
                let error = loop {
                    match stream.read(&mut buffer).await {
                        Ok(read) => bytes += read,
                        Err(error) => break error.to_string(),
                    }
                };
                assert!(error.contains("the maximum"), "{error}");
                assert!((most - (1 << 15)..=most).contains(&bytes), "{bytes} of {most}");
                // The next command.
                received.store(0, Relaxed);
            }
        }
    }
}
