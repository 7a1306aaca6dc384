//! The common part of the networked stores: connections to servers, their queues, and pools of them.
//!
//! While a pipeline is in flight, new checks join the next one; with nothing in flight nothing waits. If a server is known
//! to be slow, a window bounds what is in flight, and callers that it holds back for too long are rejected. A server that
//! answers nothing for clearly longer than a stall has failed: the breaker opens, and every caller is rejected until a
//! probe is answered in time. Nothing of this happens because this process is late.
//!
//! This file has the callers' side. `queue` holds the waiting pipelines, `flight` those in flight, `callers` the
//! callers of one, `indexes` its lists, `window` the bound on checks in flight. `run` is a connection's task,
//! `server_pool` the connections to all servers. `transport` connects, `handshake` sends the first commands, `framed`
//! reads and writes. A store implements `backend`.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

pub mod client_metrics;
pub mod failure;
pub mod framed;
pub mod handshake;
pub mod transport;

mod backend;
mod callers;
mod flight;
mod indexes;
mod queue;
mod run;
mod server_pool;
mod window;

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use ring::digest::{SHA256, digest};
use tokio::sync::{Notify, oneshot};

use self::{backend::CheckResult, queue::Queue};
pub use self::{
    backend::{Backend, Pipeline},
    callers::{Answered, Callers, Patience},
    indexes::{Keys, at, at_mut, index},
    server_pool::{ServerPool, WorkerIndexes},
};
use crate::{
    client_metrics::ClientMetrics,
    failure::{Failure, FailureKind},
};
use counters::{Lowered, StoreError};
use faults::mutex::lock;
use metrics::FailureReason;
use net::ServerAddress;
use net::backoff::Backoff;
use net::edges::Edges;
use text::{cut, hex};

/// A connection to a server, reopened whenever it is lost.
pub struct Connection<B: Backend> {
    pub address: ServerAddress,
    pub shared: Arc<Shared<B>>,
    pub session: B::Session,
    state: Mutex<ConnectionState<B::Pipeline>>,
    work: Notify,
}

/// State that all connections of a pool share.
pub struct Shared<B> {
    pub backend: B,
    pub metrics: Arc<ClientMetrics>,
    pub bounds: Bounds,
    pub edges: Edges,
}

pub struct Bounds {
    pub timeout: Duration,
    /// How long checks wait for more before they are sent.
    pub pipeline_window: Duration,
    pub max_queued: usize,
    /// The backoff until the first connection succeeds.
    pub startup_backoff: Backoff,
}

struct ConnectionState<P> {
    queue: Queue<P>,
    /// Set while the breaker is open: the error for every caller.
    breaker: Option<StoreError>,
    connected: bool,
    /// The connection's task waits for callers.
    idle: bool,
    ended: bool,
}

pub struct PendingReply<B: Backend>(oneshot::Receiver<Answered<CheckResult<B>>>);

impl<B: Backend> PendingReply<B> {
    /// Waits for the reply. The connection knows the caller's deadline.
    pub async fn wait(&mut self) -> Answered<CheckResult<B>> {
        (&mut self.0).await.unwrap_or_else(|_| {
            let message = format!("{}: the service is shutting down", B::NAME);
            Err(StoreError::new(FailureReason::Unavailable, message))
        })
    }
}

impl<B: Backend> Connection<B> {
    fn new(address: ServerAddress, shared: Arc<Shared<B>>) -> Self {
        let queue = Queue::new(shared.bounds.timeout);
        let state = ConnectionState { queue, breaker: None, connected: false, idle: false, ended: false };
        Self {
            address,
            shared,
            session: B::Session::default(),
            state: Mutex::new(state),
            work: Notify::new(),
        }
    }

    /// Queues a caller; `fill` adds its `checks` checks. Fails if the breaker is open or the queue is full.
    pub fn submit(
        &self,
        checks: usize,
        patience: Patience,
        lowered: Option<Lowered>,
        fill: impl FnOnce(&mut B::Pipeline),
    ) -> Result<PendingReply<B>, StoreError> {
        let mut state = self.lock();
        if let Some(error) = &state.breaker {
            return Err(error.clone());
        }
        let max = self.shared.bounds.max_queued;
        if !state.queue.admits(checks, max) {
            drop(state);
            let message = self.describe(format_args!("queue full: {max} checks ({})", B::MAX_QUEUED));
            return Err(StoreError::new(FailureReason::QueueFull, message));
        }
        let reply = state.queue.add_caller(patience, lowered, fill, &*self.shared.edges.timer);
        let wake = mem::take(&mut state.idle);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(PendingReply(reply))
    }

    /// Adds commands without a caller to the next pipeline. Does not wake the task: for [`Backend::complete`], after
    /// which the queue is checked anyway.
    pub fn piggyback(&self, fill: impl FnOnce(&mut B::Pipeline)) {
        fill(&mut self.lock().queue.last(&*self.shared.edges.timer).pipeline);
    }

    /// Asks a server that nobody asks, so that its silence is known before a caller waits for it.
    fn probe_idle(&self) {
        let mut state = self.lock();
        if !state.connected || state.breaker.is_some() || !mem::take(&mut state.idle) {
            return;
        }
        // A pipeline without commands is a probe.
        state.queue.last(&*self.shared.edges.timer);
        drop(state);
        self.work.notify_one();
    }

    /// True when connected and the breaker is closed.
    fn is_open(&self) -> bool {
        let state = self.lock();
        state.connected && state.breaker.is_none()
    }

    fn is_breaker_open(&self) -> bool {
        self.lock().breaker.is_some()
    }

    /// Ends the connection: the server was removed from the pool.
    fn end(&self) {
        self.lock().ended = true;
        self.work.notify_one();
    }

    /// Rejects callers until the server has recovered.
    fn open_breaker(&self, reason: FailureReason, failure: &Failure) {
        self.shared.metrics.failed(failure);
        self.reject(failure.to_error(FailureReason::Unavailable), &failure.to_error(reason));
    }

    /// Fails waiting callers with `now`, and later ones with `later`.
    fn reject(&self, later: StoreError, now: &StoreError) {
        let mut state = self.lock();
        state.breaker = Some(later);
        let queued = state.queue.drain();
        drop(state);
        for mut queued in queued {
            queued.pipeline.callers_mut().fail(now);
        }
    }

    pub fn error_reply(&self, kind: FailureKind, error: &str) -> Failure {
        self.failure(kind, format_args!("error reply \"{}\"{}", cut(error), B::hint(kind)))
    }

    fn timed_out(&self) -> Failure {
        let timeout = self.shared.bounds.timeout;
        self.failure(FailureKind::Timeout, format_args!("no reply within {timeout:?} ({})", B::TIMEOUT))
    }

    fn overloaded(&self) -> Failure {
        let timeout = self.shared.bounds.timeout;
        let what = format_args!("overloaded: it answers too few checks within {timeout:?} ({})", B::TIMEOUT);
        self.failure(FailureKind::Timeout, what)
    }

    pub fn failure(&self, kind: FailureKind, what: impl fmt::Display) -> Failure {
        Failure::new(kind, self.describe(what))
    }

    /// A message that begins with the store and the address.
    fn describe(&self, what: impl fmt::Display) -> String {
        format!("{} {}: {what}", B::NAME, self.address)
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState<B::Pipeline>> {
        lock(&self.state)
    }
}

/// The name of a key that is too long or invalid for a server: `tollgate:` and the key's SHA-256, in every version. No key
/// equals such a name, because keys contain a `_` after their domain.
pub fn hashed(key: &str) -> String {
    format!("tollgate:{}", hex(digest(&SHA256, key.as_bytes()).as_ref().iter()))
}

pub fn part(timeout: Duration, parts: u32) -> Duration {
    timeout.checked_div(parts).unwrap_or(timeout)
}
