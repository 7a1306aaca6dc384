//! What a networked store implements: its protocol, its pipelines, and what its replies mean.
//!
//! [`Connection`] handles sockets, queues and time, and knows neither Redis nor memcached.

use tokio::sync::oneshot;

use super::Connection;
use crate::{
    settings::ServerAddress,
    store::{
        StoreError,
        remote::{
            callers::{Answered, Callers},
            failure::{Failure, Kind},
            framed::{Codec, FramedStream},
        },
    },
};

/// A kind of server. All connections of a pool share one value.
pub(crate) trait Backend: Sized + Send + Sync + 'static {
    /// The protocol.
    type Codec: Codec;
    /// Commands that are sent together.
    type Pipeline: Pipeline;

    /// The store's name in errors.
    const NAME: &'static str;
    /// The variable that bounds the time of an operation.
    const TIMEOUT: &'static str;
    /// The variable that bounds the queued checks.
    const MAX_QUEUED: &'static str;
    /// A command without effects: a server that replies to it has recovered.
    const PROBE: &'static [u8];

    /// Opens a connection that is ready for commands. If `was_replica`, the server must be a master now.
    fn dial(
        &self,
        to: &ServerAddress,
        was_replica: bool,
    ) -> impl Future<Output = Result<FramedStream<Self::Codec>, Failure>> + Send;

    /// Writes a pipeline; returns the number of expected replies.
    fn write(pipeline: &Self::Pipeline, into: &mut Vec<u8>) -> usize;

    /// Writes the commands that must be sent again after these replies; returns the number of expected replies, 0
    /// if there are none.
    fn write_again(pipeline: &Self::Pipeline, replies: &[Reply<Self>], into: &mut Vec<u8>) -> usize;

    /// Replaces replies by those to the commands that were sent again.
    fn merge(pipeline: &Self::Pipeline, replies: &mut [Reply<Self>], again: Vec<Reply<Self>>);

    /// Answers the callers from the replies, and updates what is known about the server.
    fn complete(
        &self,
        connection: &Connection<Self>,
        pipeline: &mut Self::Pipeline,
        replies: Vec<Reply<Self>>,
    ) -> Result<(), Failure>;

    /// Called when a connection is ready, before its first pipeline.
    fn connected(&self, _connection: &Connection<Self>) {}

    /// The error in a reply, if it is one.
    fn error(reply: Reply<Self>) -> Option<(Kind, String)>;

    /// Advice on an error of this kind, appended to its message; may be empty.
    fn hint(kind: Kind) -> &'static str;

    /// Called when a connection was closed: the server may have lost its keys.
    fn forget_keys(&self) {}

    /// Called when a server failed: the list of servers may be out of date.
    fn request_refresh(&self) {}
}

/// A server's reply.
pub(crate) type Reply<B> = <<B as Backend>::Codec as Codec>::Reply;

/// The outcome of one check.
pub(crate) type Outcome<B> = <<B as Backend>::Pipeline as Pipeline>::Outcome;

/// Commands that are written together, and the callers that wait for their outcomes.
pub(crate) trait Pipeline: Default + Send + 'static {
    /// What finds a check's outcome among the replies.
    type Check: Send;
    /// The outcome of one check.
    type Outcome: Send;

    /// The checks and their callers.
    fn callers(&self) -> &Callers<Self::Check, Self::Outcome>;

    /// The checks and their callers.
    fn callers_mut(&mut self) -> &mut Callers<Self::Check, Self::Outcome>;

    /// Removes everything, and keeps the memory.
    fn clear(&mut self);

    /// The number of checks.
    fn checks(&self) -> usize {
        self.callers().checks()
    }

    /// Adds a caller: `fill` adds its checks, and their outcomes come in that order.
    fn add_caller(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered<Self::Outcome>> {
        let first = self.checks();
        fill(self);
        self.callers_mut().add(first)
    }

    /// Answers every waiting caller with an error. The commands stay.
    fn fail(&mut self, error: &StoreError) {
        self.callers_mut().fail(error);
    }
}
