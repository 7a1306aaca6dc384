//! One connection to one server, and what waits for it.
//!
//! While a pipeline is on its way, what is asked meanwhile gathers into the next one; when nothing is on
//! its way, nothing waits. A server that does not answer in time is not asked any more: the lane is shut,
//! and callers hear so within microseconds, until a probe is answered in time.
//!
//! Here is what callers meet; `run` keeps the connection, `fleet` has the lanes to all servers, and `backend`
//! is what a store has to tell of its servers: a lane itself knows neither Redis nor memcached.

mod backend;
mod fleet;
mod run;

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};
use tracing::info;

use self::backend::Outcome;
pub(super) use self::{
    backend::{Answered, Backend, Pipeline},
    fleet::{Fleet, Seats},
};
use super::{
    FailureReason, StoreError,
    failure::{Failure, Kind},
    meters::Meters,
    pace::Pace,
};
use crate::settings::ServerAddress;

/// A connection to a server, made again whenever it is lost.
pub(super) struct Lane<B: Backend> {
    address: ServerAddress,
    shared: Arc<Shared<B>>,
    state: Mutex<State<B::Pipeline>>,
    /// There is something to do.
    work: Notify,
}

/// What all lanes of a fleet share.
pub(super) struct Shared<B> {
    pub(super) backend: B,
    pub(super) meters: Meters,
    pub(super) bounds: Bounds,
}

/// How long and how much.
pub(super) struct Bounds {
    pub(super) timeout: Duration,
    /// What is asked waits so long for more.
    pub(super) pipeline_window: Duration,
    pub(super) max_queued: usize,
    /// Between attempts to reach a server that was never reached.
    pub(super) at_start: Pace,
}

#[derive(Default)]
struct State<Q> {
    /// What waits, and since when.
    pending: Q,
    since: Option<Instant>,
    /// Why nothing is asked now.
    shut: Option<StoreError>,
    connected: bool,
    /// Nobody looks at what waits unless woken.
    idle: bool,
    /// The server is not to be asked any more.
    ended: bool,
}

/// What was asked and is not answered yet.
pub(super) struct Awaited<B: Backend> {
    answered: oneshot::Receiver<Answered<Outcome<B>>>,
    /// When the answer is there at the latest.
    by: Instant,
}

impl<B: Backend> Awaited<B> {
    /// The answer. A lane answers in its own time; the caller's may be shorter.
    pub(super) async fn within(&mut self, until: Option<std::time::Instant>) -> Answered<Outcome<B>> {
        let failed = |reason, what| {
            let message = format!("{}: {what}", B::NAME).into();
            Err(StoreError { reason, message })
        };
        let heard = match until {
            Some(until) if until < self.by.into_std() => {
                // On the heap: a timer is larger than all else that waits here, and seldom made.
                let Ok(heard) = Box::pin(timeout_at(until.into(), &mut self.answered)).await else {
                    return failed(FailureReason::Timeout, "no answer within the caller's own time");
                };
                heard
            }
            _ => (&mut self.answered).await,
        };
        heard.unwrap_or_else(|_| {
            failed(FailureReason::Unavailable, "the service ends, and nothing is asked any more")
        })
    }
}

impl<B: Backend> Lane<B> {
    fn new(address: ServerAddress, shared: Arc<Shared<B>>) -> Self {
        Self { address, shared, state: Mutex::default(), work: Notify::new() }
    }

    /// Where it leads.
    pub(super) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Asks `checks` checks, which `fill` adds.
    ///
    /// # Errors
    /// When nothing is asked now, or too much waits already.
    pub(super) fn ask(
        &self,
        checks: usize,
        fill: impl FnOnce(&mut B::Pipeline),
    ) -> Result<Awaited<B>, StoreError> {
        let mut state = self.lock();
        if let Some(error) = &state.shut {
            return Err(error.clone());
        }
        let waiting = state.pending.checks();
        if waiting > 0 && waiting + checks > self.shared.bounds.max_queued {
            drop(state);
            return Err(self.queue_full());
        }
        let since = *state.since.get_or_insert_with(Instant::now);
        let answered = state.pending.ask(fill);
        let wake = mem::take(&mut state.idle);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(Awaited { answered, by: since + self.shared.bounds.timeout })
    }

    /// Sends along with the next pipeline what `fill` adds, for which nobody waits. For [`Backend::deal`]: the
    /// next pipeline is looked for then anyway.
    pub(super) fn send_along(&self, fill: impl FnOnce(&mut B::Pipeline)) {
        let mut state = self.lock();
        fill(&mut state.pending);
        state.since.get_or_insert_with(Instant::now);
    }

    /// Checks that wait.
    fn waiting(&self) -> usize {
        self.lock().pending.checks()
    }

    /// True when there is a connection that answers in time.
    fn is_open(&self) -> bool {
        let state = self.lock();
        state.connected && state.shut.is_none()
    }

    /// True when nothing is asked now.
    fn is_shut(&self) -> bool {
        self.lock().shut.is_some()
    }

    /// The server is not to be asked any more.
    fn end(&self) {
        self.lock().ended = true;
        self.work.notify_one();
    }

    /// Nothing is asked any more until the server is back.
    fn shut(&self, reason: FailureReason, failure: &Failure) {
        self.shared.meters.failed(failure);
        self.close(store_error(FailureReason::Unavailable, failure), &store_error(reason, failure));
    }

    /// From now on callers hear `later`; those who wait hear `now`.
    fn close(&self, later: StoreError, now: &StoreError) {
        let mut state = self.lock();
        state.shut = Some(later);
        state.since = None;
        let mut pending = mem::take(&mut state.pending);
        drop(state);
        pending.fail(now);
    }

    fn reopen(&self) {
        let was_shut = self.lock().shut.take().is_some();
        if was_shut {
            info!("{}", self.told("it answers in time, and is asked again"));
        }
    }

    /// The figures of its fleet.
    pub(super) fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// What became of a check, or of a probe, that the server answered with an error.
    pub(super) fn answered_with(&self, kind: Kind, error: &str) -> Failure {
        let error: String = error.chars().take(200).collect();
        self.failure(kind, format_args!("it answered \"{error}\"{}", B::hint(kind)))
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
        let message = self.told(format_args!("{most} checks wait already ({})", B::MAX_QUEUED));
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
