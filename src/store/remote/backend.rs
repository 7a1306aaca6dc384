//! What a store across a network brings along, so that connections can use its servers.
//!
//! A connection knows connections, queues and time. What goes over a connection, and what it means, is known here.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Connection;
use crate::{
    settings::ServerAddress,
    store::{
        StoreError,
        remote::{
            failure::{Failure, Kind},
            framed::{Codec, FramedStream},
        },
    },
};

/// A kind of server. All connections of a pool share one value.
pub(in crate::store) trait Backend: Sized + Send + Sync + 'static {
    /// What it speaks.
    type Codec: Codec;
    /// The commands that are written together.
    type Pipeline: Pipeline;

    /// Its name in errors.
    const NAME: &'static str;
    /// The variable that bounds the time of an operation.
    const TIMEOUT: &'static str;
    /// The variable that bounds how many checks may be queued.
    const MAX_QUEUED: &'static str;
    /// A command that changes nothing: a server that answers it is back.
    const PROBE: &'static [u8];

    /// Opens a connection that is ready for commands. One that `was_replica` must not be one any more.
    fn dial(
        &self,
        to: &ServerAddress,
        was_replica: bool,
    ) -> impl Future<Output = Result<FramedStream<Self::Codec>, Failure>> + Send;

    /// Writes a pipeline; returns how many replies it gets.
    fn write(pipeline: &Self::Pipeline, into: &mut Vec<u8>) -> usize;

    /// Writes the commands that have to be sent again after these replies, in the form that the server needs;
    /// returns how many replies they get, 0 when nothing is sent again.
    fn write_again(pipeline: &Self::Pipeline, replies: &[Reply<Self>], into: &mut Vec<u8>) -> usize;

    /// Puts the replies to what was sent again where they belong.
    fn merge(pipeline: &Self::Pipeline, replies: &mut [Reply<Self>], again: Vec<Reply<Self>>);

    /// Completes the callers with what was replied, and learns from it.
    ///
    /// # Errors
    /// When the replies have shown that this connection is to be closed.
    fn complete(
        &self,
        connection: &Connection<Self>,
        pipeline: &mut Self::Pipeline,
        replies: Vec<Reply<Self>>,
    ) -> Result<(), Failure>;

    /// A connection is ready, and its first pipeline is not sent yet.
    fn connected(&self, _lane: &Connection<Self>) {}

    /// The error of a reply, if it is one.
    fn error(reply: Reply<Self>) -> Option<(Kind, String)>;

    /// What to do about an error of this kind, where that helps.
    fn hint(kind: Kind) -> &'static str;

    /// A connection was closed: the server may come back without its keys.
    fn forget_keys(&self) {}

    /// A server failed: others may have to be used.
    fn request_refresh(&self) {}
}

/// A reply of a server.
pub(in crate::store) type Reply<B> = <<B as Backend>::Codec as Codec>::Reply;

/// The result of one check.
pub(in crate::store) type Outcome<B> = <<B as Backend>::Pipeline as Pipeline>::Outcome;

/// The results of a caller's checks, in its order.
pub(in crate::store) type Answered<O> = Result<SmallVec<[O; 2]>, StoreError>;

/// Commands that are written together, and the callers that wait for them.
pub(in crate::store) trait Pipeline: Default + Send + 'static {
    /// The result of one check.
    type Outcome: Send;

    /// How many checks it holds.
    fn checks(&self) -> usize;

    /// Adds a caller: `fill` adds its checks, and the outcomes come in their order.
    fn add_caller(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered<Self::Outcome>>;

    /// Completes every caller that still waits with an error. Its commands stay as they are.
    fn fail(&mut self, error: &StoreError);

    /// Empties it and keeps its memory.
    fn clear(&mut self);
}
