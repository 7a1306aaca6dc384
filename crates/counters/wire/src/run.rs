//! The task of a connection: dials, sends queued pipelines, completes them, and probes a failed server.

use std::{
    convert::Infallible,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use clock::timer::{Timer, after};
use futures_util::FutureExt as _;
use tokio::task::yield_now;
use tracing::info;

use super::{
    Backend, Connection, Pipeline, Shared,
    backend::{Reply, Stream},
    flight::{Flight, Sent},
    limit::Bound,
    part,
    queue::Queued,
};
use crate::{
    client_metrics::ClientMetrics,
    failure::{Failure, FailureKind},
};
use counters::StoreError;
use faults::panics::{self, Boundary, Panicked, caught};
use metrics::FailureReason;
use net::backoff::Backoff;

/// A server that has not replied in time for this long beyond the timeout (or half the timeout, if longer) has failed.
/// Redis stalls for tens of milliseconds when it forks or a command is slow.
const STALL: Duration = Duration::from_millis(90);

/// Deadlines are checked every tenth of the timeout, within these bounds.
const MIN_TICK: Duration = Duration::from_millis(1);
pub(super) const MAX_TICK: Duration = Duration::from_millis(20);

/// If pending replies take longer, the connection is reopened: the network may have dropped it silently.
const MAX_SILENCE: Duration = Duration::from_millis(500);

/// A connection that was lost sooner is reopened after a pause.
const MIN_LIFETIME: Duration = Duration::from_millis(500);

/// Why a connection ended: its failure, after which it must be reopened; `None` if the server was removed from the pool.
type Exit = Option<Failure>;

impl<B: Backend> Connection<B> {
    /// Runs until the server is removed; restarts after a panic.
    pub(super) async fn keep_running(self: Arc<Self>) {
        while let Err(Panicked) = caught(Boundary::StoreConnection, self.run()).await {
            net::restart::pause().await;
        }
    }

    /// Keeps the connection open and serves callers, until the server is removed.
    async fn run(&self) {
        let _guard = RejectOnDrop(self);
        let Shared { backend, metrics, bounds, .. } = &*self.shared;
        let (mut backoff, mut is_reconnect, mut was_replica) = (bounds.startup_backoff.clone(), false, false);
        loop {
            let (exit, served) = match self.dial(was_replica).await {
                Ok(stream) => {
                    metrics.connected(is_reconnect);
                    if !mem::replace(&mut is_reconnect, true) {
                        backoff = Backoff::reconnect();
                    }
                    let start = self.now();
                    let mut open = OpenConnection { metrics, lost: false };
                    let Err(exit) = self.serve(stream, &mut backoff).await;
                    self.lock().connected = false;
                    backend.forget_keys();
                    open.lost = is_lost(&exit);
                    (exit, self.now().duration_since(start))
                }
                Err(exit) => (exit, Duration::ZERO),
            };
            let is_lost = is_lost(&exit);
            let Some(failure) = exit else { return };
            backend.request_refresh();
            if is_lost && served > MIN_LIFETIME && !self.is_breaker_open() {
                // Queued checks may still be answered in time on a new connection.
                metrics.failed(&failure);
                continue;
            }
            was_replica |= failure.kind == FailureKind::ReadOnly;
            self.open_breaker(FailureReason::Unavailable, &failure);
            if self.ended_within(backoff.pause(self.shared.edges.random.fraction())).await {
                return;
            }
        }
    }

    async fn dial(&self, was_replica: bool) -> Result<Stream<B>, Exit> {
        let dialled = async { Ok(self.shared.backend.dial(self, was_replica).await?) };
        tokio::select! {
            biased;
            dialled = dialled => dialled,
            // Queued callers must not wait beyond their timeout.
            never = self.fail_late() => match never {},
            () = self.ended() => Err(None),
        }
    }

    /// Serves callers on a connection until it fails. While the breaker is open, probes the server on it first.
    async fn serve(&self, mut stream: Stream<B>, backoff: &mut Backoff) -> Result<Infallible, Exit> {
        let mut flight = Flight::new(self.shared.bounds.timeout, self.now());
        let Err(exit) = self.serve_flight(&mut stream, &mut flight, backoff).await;
        if let Some(failure) = &exit {
            flight.fail(&failure.to_error(FailureReason::ConnectionLost));
        }
        Err(exit)
    }

    async fn serve_flight(
        &self,
        stream: &mut Stream<B>,
        flight: &mut Flight<B>,
        backoff: &mut Backoff,
    ) -> Result<Infallible, Exit> {
        loop {
            if self.is_breaker_open() {
                self.probe(stream, flight, backoff).await?;
                *flight = Flight::new(self.shared.bounds.timeout, self.now());
            }
            backoff.reset();
            self.lock().connected = true;
            self.shared.backend.connected(self);
            let exit = self.pump(stream, flight).await;
            {
                let mut state = self.lock();
                (state.queue.in_flight, state.queue.bound) = (0, Bound::UNKNOWN);
            }
            exit?;
            let failure = self.timed_out();
            flight.time_out(&failure.to_error(FailureReason::Timeout));
            self.open_breaker(FailureReason::Timeout, &failure);
        }
    }

    /// Sends and completes pipelines until the server is unresponsive.
    async fn pump(&self, stream: &mut Stream<B>, flight: &mut Flight<B>) -> Result<(), Exit> {
        let timeout = self.shared.bounds.timeout;
        let tick = part(timeout, 10).clamp(MIN_TICK, MAX_TICK);
        let mut next = self.timer().sleep_until(self.now());
        loop {
            if flight.is_empty() {
                self.wait(stream).await?;
            }
            let now = self.now();
            if flight.is_empty() {
                next.as_mut().reset(after(now, tick));
            }
            self.send(stream, flight, now);
            if flight.is_empty() {
                continue;
            }
            let complete = tokio::select! {
                biased;
                complete = flight.next_complete(stream) => Some(complete?),
                () = &mut next => None,
            };
            if let Some((sent, replies)) = complete {
                self.complete(flight, sent, replies)?;
                continue;
            }
            // This process may have been late for lack of CPU: replies that have arrived meanwhile count. A yielded task
            // is polled again after the sockets.
            yield_now().await;
            while !flight.is_empty()
                && let Some(complete) = flight.next_complete(stream).now_or_never()
            {
                let (sent, replies) = complete?;
                self.complete(flight, sent, replies)?;
            }
            let now = self.now();
            next.as_mut().reset(after(now, tick));
            self.expire(flight, now);
            if !flight.is_empty()
                && now >= after(after(flight.last_in_time, timeout), STALL.max(part(timeout, 2)))
            {
                return Ok(());
            }
        }
    }

    /// Waits for callers while nothing is in flight, and for more of them within the pipeline window.
    async fn wait(&self, stream: &mut Stream<B>) -> Result<(), Exit> {
        let window = self.shared.bounds.pipeline_window;
        loop {
            let since = {
                let mut state = self.lock();
                if state.ended {
                    return Err(None);
                }
                state.idle = state.queue.is_empty();
                state.queue.since()
            };
            match since {
                Some(since) if !window.is_zero() => {
                    self.timer().sleep_until(after(since, window)).await;
                    return Ok(());
                }
                Some(_) => {
                    // Other tasks of this thread that are ready may add checks.
                    yield_now().await;
                    return Ok(());
                }
                None => tokio::select! {
                    biased;
                    () = self.work.notified() => {}
                    failure = stream.idle() => return Err(failure.into()),
                },
            }
        }
    }

    /// Writes the pipelines that may be sent, and drops those that would be late.
    fn send(&self, stream: &mut Stream<B>, flight: &mut Flight<B>, now: Instant) {
        panics::point("store_exchange");
        let mut state = self.lock();
        let late = state.queue.take_late(now, self.shared.bounds.timeout);
        while !state.ended
            && let Some(queued) = state.queue.take(now)
        {
            flight.push(stream, queued, now);
        }
        drop(state);
        self.drop_late(late);
    }

    /// Answers the callers of a complete pipeline.
    fn complete(
        &self,
        flight: &mut Flight<B>,
        mut sent: Sent<B>,
        replies: Vec<Reply<B>>,
    ) -> Result<(), Failure> {
        let Shared { backend, metrics, .. } = &*self.shared;
        let now = self.now();
        if sent.pipeline.checks() > 0 {
            metrics.answered(sent.pipeline.checks(), now.duration_since(sent.at));
        }
        let completed = backend.complete(self, &mut sent.pipeline, replies);
        let mut state = self.lock();
        let shed = mem::take(&mut state.queue.shed);
        flight.record(&sent, now, shed > 0 || state.queue.is_blocked());
        state.queue.bound = flight.capacity.bound;
        state.queue.complete(sent.pipeline);
        drop(state);
        if shed > 0 {
            metrics.overloaded(shed, &Failure::new(FailureKind::Timeout, &*self.overloaded.message));
        }
        completed
    }

    fn expire(&self, flight: &mut Flight<B>, now: Instant) {
        let timeout = self.shared.bounds.timeout;
        let error = || self.timed_out().to_error(FailureReason::Timeout);
        if flight.expire(now, timeout, error) {
            self.shared.metrics.failed(&self.timed_out());
        }
        let late = self.lock().queue.take_late(now, timeout);
        self.drop_late(late);
    }

    /// Fails callers whose checks were not sent because the replies would be too late.
    fn drop_late(&self, late: Vec<Queued<B::Pipeline>>) {
        if late.is_empty() {
            return;
        }
        let failure =
            self.failure(FailureKind::Timeout, format_args!("not sent: the reply would be too late"));
        let error = failure.to_error(FailureReason::Timeout);
        for mut queued in late {
            self.shared.metrics.dropped(queued.pipeline.checks());
            queued.pipeline.fail(&error);
        }
    }

    /// Waits for all pending replies. Callers that wait for late ones receive them.
    async fn finish(&self, stream: &mut Stream<B>, flight: &mut Flight<B>) -> Result<(), Failure> {
        while !flight.is_empty() {
            let (mut sent, replies) = flight.next_complete(stream).await?;
            self.shared.backend.complete(self, &mut sent.pipeline, replies)?;
        }
        stream.drain().await
    }

    /// Probes the server until it replies in time.
    async fn probe(
        &self,
        stream: &mut Stream<B>,
        flight: &mut Flight<B>,
        backoff: &mut Backoff,
    ) -> Result<(), Exit> {
        loop {
            let finished = self.timer().timeout(MAX_SILENCE, self.finish(stream, flight)).await;
            finished.unwrap_or_else(|| {
                let pending = stream.pending;
                let what = format_args!("{pending} replies pending for {MAX_SILENCE:?}, reconnecting");
                Err(self.failure(FailureKind::Timeout, what))
            })?;
            let probe = stream.request(|into| into.extend_from_slice(B::PROBE));
            if let Some(reply) = self.timer().timeout(self.shared.bounds.timeout, probe).await {
                if let Some((kind, error)) = B::error(reply?) {
                    return Err(self.error_reply(kind, &error).into());
                }
                if self.lock().breaker.take().is_some() {
                    info!("{}", self.describe("recovered, breaker closed"));
                }
                return Ok(());
            }
            self.shared.metrics.failed(&self.timed_out());
            if self.ended_within(backoff.pause(self.shared.edges.random.fraction())).await {
                return Err(None);
            }
        }
    }

    /// Fails queued callers that time out while there is no connection.
    async fn fail_late(&self) -> Infallible {
        loop {
            let since = {
                let mut state = self.lock();
                state.idle = state.queue.is_empty();
                state.queue.since()
            };
            match since {
                None => self.work.notified().await,
                Some(since) => {
                    self.timer().sleep_until(after(since, self.shared.bounds.timeout)).await;
                    self.open_breaker(FailureReason::Timeout, &self.timed_out());
                }
            }
        }
    }

    fn timer(&self) -> &dyn Timer {
        &*self.shared.edges.timer
    }

    fn now(&self) -> Instant {
        self.timer().now()
    }

    async fn ended(&self) {
        while !self.lock().ended {
            self.timer().sleep(MAX_SILENCE).await;
        }
    }

    async fn ended_within(&self, pause: Duration) -> bool {
        self.timer().sleep(pause).await;
        self.lock().ended
    }
}

fn is_lost(exit: &Exit) -> bool {
    exit.as_ref().is_some_and(|failure| failure.kind == FailureKind::Lost)
}

/// Counts the end of a connection, also when its task panics.
struct OpenConnection<'a> {
    metrics: &'a ClientMetrics,
    lost: bool,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.metrics.disconnected(!self.lost);
    }
}

/// Rejects callers when the task ends, so that none waits forever.
struct RejectOnDrop<'a, B: Backend>(&'a Connection<B>);

impl<B: Backend> Drop for RejectOnDrop<'_, B> {
    fn drop(&mut self) {
        let message = self.0.describe("connection closed");
        let error = StoreError { reason: FailureReason::Unavailable, message: message.into() };
        self.0.lock().connected = false;
        self.0.reject(error.clone(), &error);
    }
}
