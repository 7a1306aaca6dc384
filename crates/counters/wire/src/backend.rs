//! What a networked store implements: its protocol, its pipelines, and the meaning of replies. [`Connection`] handles
//! sockets, queues and time, and knows neither Redis nor memcached.

use tokio::sync::oneshot;

use super::Connection;
use crate::{
    callers::{Answered, Callers, Patience},
    failure::{Failure, FailureKind},
    framed::{Codec, FramedStream},
};
use counters::Lowered;

pub trait Backend: Sized + Send + Sync + 'static {
    type Codec: Codec;
    type Pipeline: Pipeline;
    /// What the store keeps of an open connection.
    type Session: Default + Send + Sync;

    const NAME: &'static str;
    /// The variable that bounds the time of an operation.
    const TIMEOUT: &'static str;
    /// The variable that bounds the queued checks.
    const MAX_QUEUED: &'static str;
    /// A command without effects, for finding out whether the server has recovered.
    const PROBE: &'static [u8];

    /// Opens a connection that is ready for commands. If `was_replica`, the server must be a master now.
    fn dial(
        &self,
        connection: &Connection<Self>,
        was_replica: bool,
    ) -> impl Future<Output = Result<Stream<Self>, Failure>> + Send;

    /// Writes a pipeline; returns the number of expected replies.
    fn write(pipeline: &Self::Pipeline, into: &mut Vec<u8>) -> usize;

    /// Writes the commands that must be sent again after these replies; returns the number of expected replies.
    fn write_again(pipeline: &Self::Pipeline, replies: &[Reply<Self>], into: &mut Vec<u8>) -> usize;

    /// Replaces replies with those to the commands that were sent again.
    fn merge(pipeline: &Self::Pipeline, replies: &mut [Reply<Self>], again: Vec<Reply<Self>>);

    /// Answers the callers from the replies, and updates the state of the backend. Fails if the connection must be
    /// closed.
    fn complete(
        &self,
        connection: &Connection<Self>,
        pipeline: &mut Self::Pipeline,
        replies: Vec<Reply<Self>>,
    ) -> Result<(), Failure>;

    /// Called when a connection is ready, before its first pipeline.
    fn connected(&self, _connection: &Connection<Self>) {}

    fn error(reply: Reply<Self>) -> Option<(FailureKind, String)>;

    /// Advice on an error of this kind, appended to its message; may be empty.
    fn hint(kind: FailureKind) -> &'static str;

    /// Called when a connection was closed: the server may have lost its keys.
    fn forget_keys(&self) {}

    /// Called when a server failed: the list of servers may be out of date.
    fn request_refresh(&self) {}
}

pub(crate) type Stream<B> = FramedStream<<B as Backend>::Codec>;

pub(crate) type Reply<B> = <<B as Backend>::Codec as Codec>::Reply;

pub(crate) type CheckResult<B> = <<B as Backend>::Pipeline as Pipeline>::CheckResult;

/// Commands that are written together, and the callers that wait for their outcomes.
pub trait Pipeline: Default + Send + 'static {
    /// Finds a check's outcome among the replies.
    type Check: Send;
    type CheckResult: Send;

    fn callers(&self) -> &Callers<Self::Check, Self::CheckResult>;

    fn callers_mut(&mut self) -> &mut Callers<Self::Check, Self::CheckResult>;

    /// Removes everything, and keeps the memory.
    fn clear(&mut self);

    fn checks(&self) -> usize {
        self.callers().checks()
    }

    /// Adds a caller: `fill` adds its checks, and their outcomes come in that order.
    fn add_caller(
        &mut self,
        patience: Patience,
        lowered: Option<Lowered>,
        fill: impl FnOnce(&mut Self),
    ) -> oneshot::Receiver<Answered<Self::CheckResult>> {
        let first = self.checks();
        fill(self);
        self.callers_mut().add(first, patience, lowered)
    }
}
