//! What a store across a network brings along, so that lanes can ask its servers.
//!
//! A lane knows connections, queues and time. What goes over a connection, and what it means, is known here.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Lane;
use crate::{
    settings::ServerAddress,
    store::{
        StoreError,
        failure::{Failure, Kind},
        line::{Language, Line},
    },
};

/// A kind of server. All lanes of a fleet share one value.
pub(in crate::store) trait Backend: Sized + Send + Sync + 'static {
    /// What it speaks.
    type Language: Language;
    /// What waits for one connection.
    type Pipeline: Pipeline;

    /// As failures call it.
    const NAME: &'static str;
    /// The variable that says how long an answer may take.
    const TIMEOUT: &'static str;
    /// The variable that says how many checks may wait.
    const MAX_QUEUED: &'static str;
    /// A question that changes nothing: whoever answers it is back.
    const PROBE: &'static [u8];

    /// Opens a connection that is ready to be asked. One that `was_replica` must not be one any more.
    fn dial(
        &self,
        to: &ServerAddress,
        was_replica: bool,
    ) -> impl Future<Output = Result<Line<Self::Language>, Failure>> + Send;

    /// Sends a pipeline and waits for its answers; also a second time, for what the server did not have.
    fn exchange(
        line: &mut Line<Self::Language>,
        pipeline: &Self::Pipeline,
    ) -> impl Future<Output = Result<Vec<Reply<Self>>, Failure>> + Send;

    /// Deals the answers out to the callers, and takes to heart what they have shown.
    ///
    /// # Errors
    /// When they have shown that this connection is to be left.
    fn deal(
        &self,
        lane: &Lane<Self>,
        pipeline: &mut Self::Pipeline,
        replies: Vec<Reply<Self>>,
    ) -> Result<(), Failure>;

    /// A connection is ready, and its first pipeline is not sent yet.
    fn connected(&self, _lane: &Lane<Self>) {}

    /// The error that was answered, if it was one.
    fn error(reply: Reply<Self>) -> Option<(Kind, String)>;

    /// What to do about an error of this kind, where that helps.
    fn hint(kind: Kind) -> &'static str;

    /// A connection has ended: the server may come back without its keys.
    fn forget_keys(&self) {}

    /// A server failed: it may be that another is to be asked.
    fn doubt_servers(&self) {}
}

/// An answer of a server.
pub(in crate::store) type Reply<B> = <<B as Backend>::Language as Language>::Reply;

/// What became of one check.
pub(in crate::store) type Outcome<B> = <<B as Backend>::Pipeline as Pipeline>::Outcome;

/// What a caller hears: an outcome for each of its checks, in its order.
pub(in crate::store) type Answered<O> = Result<SmallVec<[O; 2]>, StoreError>;

/// What waits for one connection, made into one pipeline.
pub(in crate::store) trait Pipeline: Default + Send + 'static {
    /// What became of one check.
    type Outcome: Send;

    /// How many checks were asked.
    fn checks(&self) -> usize;

    /// Lets one caller ask: `fill` adds its checks, and the outcomes come in their order.
    fn ask(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered<Self::Outcome>>;

    /// Tells every caller that nothing came of it.
    fn fail(&mut self, error: &StoreError);

    /// Empties it and keeps its room.
    fn clear(&mut self);
}
