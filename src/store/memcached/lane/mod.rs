//! One connection to one server, and what waits for it.
//!
//! Callers ask here, under a lock that is never held for longer than it takes to write a request down; `run`
//! keeps the connection and sends what waits. While a pipeline is on its way, what is asked meanwhile gathers
//! into the next one; when nothing is on its way, nothing waits.

mod run;

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tracing::info;

use super::{
    bundle::{Answered, Bundle},
    servers::Shared,
};
use crate::{
    settings::ServerAddress,
    store::{FailureReason, StoreError, failure::Failure},
};

/// A connection to a server, made again whenever it is lost.
pub(super) struct Lane {
    address: ServerAddress,
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
    pub(super) fn new(address: ServerAddress, shared: Arc<Shared>) -> Self {
        Self { address, shared, state: Mutex::default(), work: Notify::new() }
    }

    /// Asks `checks` checks, which `fill` adds. The answer comes within the operation's time-out.
    ///
    /// # Errors
    /// When nothing is asked now, or too much waits already.
    pub(super) fn ask(
        &self,
        checks: usize,
        fill: impl FnOnce(&mut Bundle),
    ) -> Result<oneshot::Receiver<Answered>, StoreError> {
        let mut state = self.lock();
        if let Some(error) = &state.shut {
            return Err(error.clone());
        }
        let waiting = state.pending.checks();
        if waiting > 0 && waiting + checks > self.shared.max_queued {
            drop(state);
            return Err(self.queue_full());
        }
        state.since.get_or_insert_with(Instant::now);
        let answered = state.pending.ask(fill);
        let wake = mem::take(&mut state.idle);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(answered)
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
            info!("memcached {}: it answers in time, and is asked again", self.address);
        }
    }

    fn queue_full(&self) -> StoreError {
        let most = self.shared.max_queued;
        let message = format!("memcached {}: {most} checks wait already (MEMCACHE_MAX_QUEUED)", self.address);
        StoreError { reason: FailureReason::QueueFull, message: message.into() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn store_error(reason: FailureReason, failure: &Failure) -> StoreError {
    StoreError { reason, message: failure.message.as_str().into() }
}
