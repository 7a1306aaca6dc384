//! Connections of the [`CommandPool`](super::CommandPool): `deadpool` pools them, and the [`Dialer`] opens them, as it opens
//! those that count.

use std::{future::ready, mem};

use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use deadpool_redis::redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};

use super::{
    dialer::Dialer,
    failure::Failure,
    resp::{self, FramedStream, Reply},
};
use net::ServerAddress;

/// Connections per server. Each runs one command at a time, so with two a slow command does not block all others.
const CONNECTIONS: usize = 2;

/// The maximum size of the replies to a command. The largest are a thousand changes, of 7 kB at most.
const MAX_REPLY: usize = 8 << 20;

pub(super) type Links = Pool<Opener>;

/// A connection that is returned when it is dropped.
pub(super) type Link = Object<Opener>;

pub(super) fn links(dialer: Dialer, to: ServerAddress) -> Result<Links, String> {
    let opener = Opener { dialer, to };
    Pool::builder(opener).max_size(CONNECTIONS).build().map_err(|error| error.to_string())
}

/// A connection of the pool.
pub(super) async fn take(links: &Links) -> Result<Link, String> {
    links.get().await.map_err(|error| match error {
        PoolError::Backend(failure) => failure.message,
        other => other.to_string(),
    })
}

/// Opens connections to a server.
pub(super) struct Opener {
    dialer: Dialer,
    to: ServerAddress,
}

impl Manager for Opener {
    type Type = FramedStream;
    type Error = Failure;

    async fn create(&self) -> Result<FramedStream, Failure> {
        self.dialer.dial(&self.to, false).await
    }

    /// Replaces a connection that was lost since its last command, whose caller may have left before the reply.
    async fn recycle(&self, stream: &mut FramedStream, _: &Metrics) -> RecycleResult<Failure> {
        let answered = async {
            stream.drain().await?;
            stream.request(|into| resp::write_command(into, &[b"PING"])).await
        };
        answered.await.map(drop).map_err(RecycleError::Backend)
    }
}

/// Sends commands, and waits for their replies. `is_asking`: the server imports the slot of the only command.
pub(super) async fn exchange(
    stream: &mut FramedStream,
    commands: &[u8],
    count: usize,
    is_asking: bool,
) -> Result<Vec<Reply>, Failure> {
    stream.write(|into| {
        if is_asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        into.extend_from_slice(commands);
        count + usize::from(is_asking)
    });
    stream.allow(MAX_REPLY);
    stream.flush().await?;
    if is_asking {
        stream.receive().await?;
    }
    let mut replies = Vec::with_capacity(count);
    while replies.len() < count {
        replies.push(stream.receive().await?);
    }
    Ok(replies)
}

/// A reply without errors, for what the `redis` crate reads from it.
pub(super) fn value(reply: Reply) -> Value {
    match reply {
        Reply::Integer(number) => Value::Int(number),
        Reply::Text(text) => Value::BulkString(text),
        Reply::List(list) => Value::Array(list.into_iter().map(value).collect()),
        Reply::Nil | Reply::Error(_) => Value::Nil,
    }
}

/// The replies of a pipeline, which then leaves out those that are ignored.
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
