//! One connection to one server, and what waits for it.
//!
//! While a pipeline is on its way, what is asked meanwhile gathers into the next one; when nothing is on
//! its way, nothing waits. A server that does not answer in time is not asked any more: the lane is shut,
//! and callers hear so within microseconds, until a probe is answered in time. Here is what callers meet;
//! `run` keeps the connection.

mod run;

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tracing::info;

use super::{
    bundle::{Answered, Bundle},
    failure::{Failure, Kind},
    pool::Shared,
};
use crate::{
    settings::redis::RedisAddress,
    store::{FailureReason, StoreError},
};

/// A server that owes answers for so long is left: the network may have forgotten the connection.
const SILENCE: Duration = Duration::from_millis(500);

/// A connection to a server, made again whenever it is lost.
pub(super) struct Lane {
    address: RedisAddress,
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// There is something to do.
    work: Notify,
}

#[derive(Default)]
struct State {
    /// What waits, and since when.
    pending: Bundle,
    since: Option<Instant>,
    /// Why nothing is asked now.
    shut: Option<StoreError>,
    connected: bool,
    /// Nobody looks at what waits unless woken.
    idle: bool,
    /// The server is not to be asked any more.
    ended: bool,
}

impl Lane {
    pub(super) fn new(address: RedisAddress, shared: Arc<Shared>) -> Self {
        Self { address, shared, state: Mutex::default(), work: Notify::new() }
    }

    /// Where it leads.
    pub(super) fn address(&self) -> &RedisAddress {
        &self.address
    }

    /// Asks `checks` checks, which `fill` adds. The answer comes by the moment that is told with it.
    ///
    /// # Errors
    /// When nothing is asked now, or too much waits already.
    pub(super) fn ask(
        &self,
        checks: usize,
        fill: impl FnOnce(&mut Bundle),
    ) -> Result<(oneshot::Receiver<Answered>, Instant), StoreError> {
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
        Ok((answered, since + self.shared.bounds.timeout))
    }

    /// Checks that wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().pending.checks()
    }

    /// True when there is a connection that answers in time.
    pub(super) fn is_open(&self) -> bool {
        let state = self.lock();
        state.connected && state.shut.is_none()
    }

    /// True when nothing is asked now.
    pub(super) fn is_shut(&self) -> bool {
        self.lock().shut.is_some()
    }

    /// The server is not to be asked any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        drop(state);
        self.work.notify_one();
    }

    /// Nothing is asked any more until the server is back.
    fn shut(&self, reason: FailureReason, failure: &Failure) {
        self.shared.meters.failed(failure);
        let mut state = self.lock();
        state.shut = Some(store_error(FailureReason::Unavailable, failure));
        state.since = None;
        let mut pending = mem::take(&mut state.pending);
        drop(state);
        pending.fail(&store_error(reason, failure));
    }

    fn reopen(&self) {
        let was_shut = self.lock().shut.take().is_some();
        if was_shut {
            info!("redis {}: it answers in time, and is asked again", self.address);
        }
    }

    fn overdue(&self) -> Failure {
        let timeout = self.shared.bounds.timeout;
        let message = format!("redis {}: no answer within {timeout:?} (REDIS_TIMEOUT)", self.address);
        Failure::new(Kind::Timeout, message)
    }

    fn silent(&self, owed: usize) -> Failure {
        let message =
            format!("redis {}: {owed} answers are owed for {SILENCE:?}, so it is dialled anew", self.address);
        Failure::new(Kind::Timeout, message)
    }

    fn answered_with(&self, kind: Kind, error: &str) -> Failure {
        let error: String = error.chars().take(200).collect();
        Failure::new(kind, format!("redis {}: it answered \"{error}\"{}", self.address, kind.hint()))
    }

    fn queue_full(&self) -> StoreError {
        let most = self.shared.bounds.max_queued;
        let message = format!("redis {}: {most} checks wait already (REDIS_MAX_QUEUED)", self.address);
        StoreError { reason: FailureReason::QueueFull, message: message.into() }
    }

    fn shut_for_good(&self, error: &StoreError) {
        let mut state = self.lock();
        state.shut = Some(error.clone());
        state.connected = false;
        let mut pending = mem::take(&mut state.pending);
        drop(state);
        pending.fail(error);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shuts the lane when nobody runs it any more, so that no caller waits for ever.
struct Ending<'a>(&'a Lane);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let message = format!("redis {}: it is not asked any more", self.0.address);
        self.0.shut_for_good(&StoreError { reason: FailureReason::Unavailable, message: message.into() });
    }
}

fn store_error(reason: FailureReason, failure: &Failure) -> StoreError {
    StoreError { reason, message: failure.message.as_str().into() }
}
