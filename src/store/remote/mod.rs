//! One connection to one server, and what waits for it.
//!
//! While a pipeline is on its way, the checks that come meanwhile gather into the next one; when nothing is on
//! its way, nothing waits. A server that is slower than its callers is measured, and callers beyond what it
//! answers in time are refused at once. A server that answers nothing for clearly longer than a stall is taken
//! for lost: the breaker opens, and every caller is refused until a probe is answered in time.
//!
//! Here is what callers meet. `queue` holds what waits, `flight` what was sent, `limit` says how much may wait;
//! `run` keeps the connection, `pool` has the connections to all servers, and `backend` is what a store brings along:
//! a connection itself knows neither Redis nor memcached.

pub(crate) mod client_metrics;
pub(crate) mod failure;
pub(crate) mod framed;
pub(crate) mod hashed;
pub(crate) mod tls;
pub(crate) mod transport;

mod backend;
mod flight;
mod limit;
mod queue;
mod run;
mod server_pool;

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
    time::{Instant, timeout_at},
};
use tracing::info;

use self::{
    backend::Outcome,
    queue::{Full, Queue},
};
pub(super) use self::{
    backend::{Answered, Backend, Pipeline},
    server_pool::{ServerPool, WorkerIndexes},
};
use super::{FailureReason, StoreError};
use crate::{
    net::backoff::Backoff,
    store::remote::{
        client_metrics::ClientMetrics,
        failure::{Failure, Kind},
    },
};
use crate::{settings::ServerAddress, text::cut};

/// A connection to a server, opened again whenever it is lost.
pub(super) struct Connection<B: Backend> {
    address: ServerAddress,
    shared: Arc<Shared<B>>,
    state: Mutex<State<B::Pipeline>>,
    /// There is something to do.
    work: Notify,
    /// What callers get that are refused because the server is overloaded.
    overloaded: StoreError,
}

/// What all connections of a pool share.
pub(super) struct Shared<B> {
    pub(super) backend: B,
    pub(super) metrics: ClientMetrics,
    pub(super) bounds: Bounds,
}

/// How long and how much.
pub(super) struct Bounds {
    pub(super) timeout: Duration,
    /// Checks wait so long for more.
    pub(super) pipeline_window: Duration,
    pub(super) max_queued: usize,
    /// Between attempts to reach a server that was never reached.
    pub(super) at_start: Backoff,
}

struct State<P> {
    queue: Queue<P>,
    /// Why every caller is refused: the breaker is open.
    shut: Option<StoreError>,
    connected: bool,
    /// The task of the connection waits for callers, and has to be woken.
    idle: bool,
    /// The server is not used any more.
    ended: bool,
}

/// The answer to come.
pub(super) struct PendingReply<B: Backend> {
    answered: oneshot::Receiver<Answered<Outcome<B>>>,
    /// When the answer is there at the latest.
    by: Instant,
}

impl<B: Backend> PendingReply<B> {
    /// Waits for the answer. A connection answers in its own time; the caller's may be shorter.
    pub(super) async fn within(&mut self, until: Option<std::time::Instant>) -> Answered<Outcome<B>> {
        let failed = |reason, what| {
            let message = format!("{}: {what}", B::NAME).into();
            Err(StoreError { reason, message })
        };
        let heard = match until {
            Some(until) if until < self.by.into_std() => {
                // On the heap: a timer is larger than all else that waits here, and seldom made.
                if let Ok(heard) = Box::pin(timeout_at(until.into(), &mut self.answered)).await {
                    heard
                } else {
                    // It may be this process that was late: an answer that has come meanwhile counts.
                    yield_now().await;
                    let Ok(heard) = self.answered.try_recv() else {
                        return failed(FailureReason::Timeout, "no answer within the caller's timeout");
                    };
                    Ok(heard)
                }
            }
            _ => (&mut self.answered).await,
        };
        heard.unwrap_or_else(|_| failed(FailureReason::Unavailable, "the service is shutting down"))
    }
}

impl<B: Backend> Connection<B> {
    fn new(address: ServerAddress, shared: Arc<Shared<B>>) -> Self {
        let state = Mutex::new(State {
            queue: Queue::default(),
            shut: None,
            connected: false,
            idle: false,
            ended: false,
        });
        let timeout = shared.bounds.timeout;
        let message = format!(
            "{} {address}: overloaded: more checks wait than it answers within {timeout:?} ({})",
            B::NAME,
            B::TIMEOUT
        );
        let overloaded = StoreError { reason: FailureReason::Overloaded, message: message.into() };
        Self { address, shared, state, work: Notify::new(), overloaded }
    }

    /// The server's address.
    pub(super) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Queues `checks` checks, which `fill` adds, for a caller that waits `until` then.
    ///
    /// # Errors
    /// When the breaker is open, or more waits than is answered in time.
    pub(super) fn ask(
        &self,
        checks: usize,
        until: Option<std::time::Instant>,
        fill: impl FnOnce(&mut B::Pipeline),
    ) -> Result<PendingReply<B>, StoreError> {
        let mut state = self.lock();
        if let Some(error) = &state.shut {
            return Err(error.clone());
        }
        let most = self.shared.bounds.max_queued;
        match state.queue.admit(checks, until.map(Instant::from_std), most) {
            Ok(()) => {}
            Err(Full::Overloaded) => return Err(self.overloaded.clone()),
            Err(Full::Queue) => {
                drop(state);
                return Err(self.queue_full());
            }
        }
        let (answered, since) = state.queue.add_caller(fill);
        let wake = mem::take(&mut state.idle);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(PendingReply { answered, by: since + self.shared.bounds.timeout })
    }

    /// Sends along with the next pipeline what `fill` adds, for which nobody waits. For [`Backend::complete`]: the
    /// queue is looked at afterwards anyway.
    pub(super) fn send_along(&self, fill: impl FnOnce(&mut B::Pipeline)) {
        fill(&mut self.lock().queue.last().pipeline);
    }

    /// Checks that are queued, and the bound on those that are outstanding.
    fn load(&self) -> (usize, usize) {
        let state = self.lock();
        let queue = &state.queue;
        (queue.checks(), queue.bound.outstanding.min(self.shared.bounds.max_queued))
    }

    /// True when there is a connection and the breaker is closed.
    fn is_open(&self) -> bool {
        let state = self.lock();
        state.connected && state.shut.is_none()
    }

    /// True when the breaker is open.
    fn is_breaker_open(&self) -> bool {
        self.lock().shut.is_some()
    }

    /// The server is not used any more.
    fn end(&self) {
        self.lock().ended = true;
        self.work.notify_one();
    }

    /// Opens the breaker: callers are refused until the server is back.
    fn shut(&self, reason: FailureReason, failure: &Failure) {
        self.shared.metrics.failed(failure);
        self.close(store_error(FailureReason::Unavailable, failure), &store_error(reason, failure));
    }

    /// From now on callers get `later`; those who wait get `now`.
    fn close(&self, later: StoreError, now: &StoreError) {
        let mut state = self.lock();
        state.shut = Some(later);
        let queued = state.queue.drain();
        drop(state);
        for mut queued in queued {
            queued.pipeline.fail(now);
        }
    }

    fn reopen(&self) {
        let was_shut = self.lock().shut.take().is_some();
        if was_shut {
            info!("{}", self.told("recovered, breaker closed"));
        }
    }

    /// The figures of its pool.
    pub(super) fn metrics(&self) -> &ClientMetrics {
        &self.shared.metrics
    }

    /// What became of a check, or of a probe, that the server answered with an error.
    pub(super) fn answered_with(&self, kind: Kind, error: &str) -> Failure {
        self.failure(kind, format_args!("it answered \"{}\"{}", cut(error), B::hint(kind)))
    }

    fn overdue(&self) -> Failure {
        let timeout = self.shared.bounds.timeout;
        self.failure(Kind::Timeout, format_args!("no answer within {timeout:?} ({})", B::TIMEOUT))
    }

    /// A failure of the server.
    pub(super) fn failure(&self, kind: Kind, what: impl fmt::Display) -> Failure {
        Failure::new(kind, self.told(what))
    }

    fn queue_full(&self) -> StoreError {
        let most = self.shared.bounds.max_queued;
        let message = self.told(format_args!("queue full: {most} checks ({})", B::MAX_QUEUED));
        StoreError { reason: FailureReason::QueueFull, message: message.into() }
    }

    /// Says something of the server.
    fn told(&self, what: impl fmt::Display) -> String {
        format!("{} {}: {what}", B::NAME, self.address)
    }

    fn lock(&self) -> MutexGuard<'_, State<B::Pipeline>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn store_error(reason: FailureReason, failure: &Failure) -> StoreError {
    StoreError { reason, message: failure.message.as_str().into() }
}
