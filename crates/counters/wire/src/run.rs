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
use tracing::Level;

use super::{
    Backend, Connection, Pipeline, Shared,
    backend::{Reply, Stream},
    flight::{Flight, Sent},
    part,
    queue::Waits,
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

/// Missing replies are looked for as often as timers allow: a caller's deadline leaves 2 ms for the answer.
const TICK: Duration = Duration::from_millis(1);

/// If pending replies take longer, the connection is reopened: the network may have dropped it silently.
const MAX_SILENCE: Duration = Duration::from_millis(500);

/// The shortest time from one connection to the next. Checks that wait are still answered in time, as it is half of the default
/// timeout; and a server that closes at once costs at most 200 connections a second.
const DIAL_INTERVAL: Duration = Duration::from_millis(5);

/// Why a connection ended.
enum Exit {
    /// The server was removed from the pool.
    ServerRemoved,
    /// The connection must be opened again.
    Failed(Failure),
}

impl From<Failure> for Exit {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

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
        let mut backoff = bounds.startup_backoff.clone();
        let mut is_reconnect = false;
        let mut was_replica = false;
        let mut pause = Duration::ZERO;
        loop {
            let (exit, served) = match self.dial(was_replica, pause).await {
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
                    (exit, Some(self.now().duration_since(start)))
                }
                Err(exit) => (exit, None),
            };
            let is_lost = is_lost(&exit);
            let Exit::Failed(failure) = exit else { return };
            backend.request_refresh();
            pause = Duration::ZERO;
            if let Some(served) = served
                && is_lost
                && !self.is_breaker_open()
            {
                // Queued checks may still be answered in time on a new connection.
                metrics.failed(&failure);
                pause = DIAL_INTERVAL.saturating_sub(served);
                continue;
            }
            was_replica |= failure.kind == FailureKind::ReadOnly;
            self.open_breaker(FailureReason::Unavailable, &failure);
            if self.ended_within(backoff.pause(self.shared.edges.random.fraction())).await {
                return;
            }
        }
    }

    async fn dial(&self, was_replica: bool, pause: Duration) -> Result<Stream<B>, Exit> {
        let dialled = async {
            if !pause.is_zero() {
                self.timer().sleep(pause).await;
            }
            Ok(self.shared.backend.dial(self, was_replica).await?)
        };
        tokio::select! {
            biased;
            dialled = dialled => dialled,
            // Queued callers must not wait beyond their timeout.
            never = self.fail_late() => match never {},
            () = self.ended() => Err(Exit::ServerRemoved),
        }
    }

    /// Serves callers on a connection until it fails. While the breaker is open, probes the server on it first.
    async fn serve(&self, mut stream: Stream<B>, backoff: &mut Backoff) -> Result<Infallible, Exit> {
        let mut flight = Flight::new(self.now());
        let Err(exit) = self.serve_flight(&mut stream, &mut flight, backoff).await;
        if let Exit::Failed(failure) = &exit {
            if flight.is_unanswered() {
                // A server that closes in place of the first answer would do so to whoever waits.
                self.reject(
                    failure.to_error(FailureReason::Unavailable),
                    &failure.to_error(FailureReason::ConnectionLost),
                );
            }
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
                *flight = Flight::new(self.now());
            }
            backoff.reset();
            self.lock().connected = true;
            self.shared.backend.connected(self);
            let exit = self.pump(stream, flight).await;
            self.lock().queue.in_flight = 0;
            exit?;
            let failure = self.timed_out();
            flight.time_out(&failure.to_error(FailureReason::Timeout));
            self.open_breaker(FailureReason::Timeout, &failure);
        }
    }

    /// Sends and completes pipelines until the server is unresponsive.
    async fn pump(&self, stream: &mut Stream<B>, flight: &mut Flight<B>) -> Result<(), Exit> {
        let timeout = self.shared.bounds.timeout;
        let timer = self.timer();
        // When the loop should run next. Later runs measure how late this process is.
        let mut due = timer.now();
        let mut next = timer.sleep_until(timer.now());
        loop {
            let was_idle = flight.is_empty();
            if was_idle {
                self.wait(stream).await?;
            }
            let now = timer.now();
            if was_idle {
                due = after(now, TICK);
                next.as_mut().reset(due);
            }
            self.send(stream, flight, now);
            if flight.is_empty() {
                continue;
            }
            let complete = tokio::select! {
                biased;
                complete = flight.next_complete(stream, timer) => Some(complete?),
                () = &mut next => None,
            };
            // The time is noted first, then the sockets are polled: a yielded task is polled again after them. So
            // a reply that is missing then had not arrived by that time, however late this process is.
            let seen = timer.now();
            if due <= seen {
                let late = seen.duration_since(due);
                self.shared.metrics.looked(late);
                flight.pause(late.saturating_sub(part(timeout, 2)));
                due = after(seen, TICK);
            }
            if let Some((sent, replies)) = complete {
                self.complete(flight, sent, replies)?;
                continue;
            }
            yield_now().await;
            while !flight.is_empty()
                && let Some(complete) = flight.next_complete(stream, timer).now_or_never()
            {
                let (sent, replies) = complete?;
                self.complete(flight, sent, replies)?;
            }
            self.look(flight, seen);
            due = after(timer.now(), TICK);
            next.as_mut().reset(due);
            if !flight.is_empty()
                && seen >= after(after(flight.last_in_time, timeout), STALL.max(part(timeout, 2)))
            {
                return Ok(());
            }
        }
    }

    /// Waits for callers while nothing is in flight, and for more of them within the pipeline window.
    async fn wait(&self, stream: &mut Stream<B>) -> Result<(), Exit> {
        let window = self.shared.bounds.pipeline_window;
        loop {
            let waits = {
                let mut state = self.lock();
                if state.ended {
                    return Err(Exit::ServerRemoved);
                }
                state.idle = state.queue.is_empty();
                state.queue.waits()
            };
            match waits {
                Some(waits) if !window.is_zero() => {
                    self.timer().sleep_until(after(waits.since, window)).await;
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

    /// Writes the pipelines that may be sent.
    fn send(&self, stream: &mut Stream<B>, flight: &mut Flight<B>, now: Instant) {
        panics::point("store_exchange");
        let mut state = self.lock();
        while !state.ended
            && let Some(queued) = state.queue.take(now)
        {
            flight.push(stream, queued, now);
        }
    }

    /// Answers the callers of a complete pipeline.
    fn complete(
        &self,
        flight: &mut Flight<B>,
        mut sent: Sent<B>,
        replies: Vec<Reply<B>>,
    ) -> Result<(), Failure> {
        let now = self.now();
        let checks = sent.pipeline.checks();
        if checks > 0 {
            self.shared.metrics.answered(checks, now.duration_since(sent.at));
        }
        let completed = self.receive(&mut sent, replies);
        flight.record(&sent, now);
        let queue = &mut self.lock().queue;
        queue.window.answered(checks, sent.at, now, sent.was_alone);
        queue.complete(sent.pipeline);
        completed
    }

    /// Gives the replies of a complete pipeline to the backend. Fails if the connection must be closed.
    fn receive(&self, sent: &mut Sent<B>, mut replies: Vec<Reply<B>>) -> Result<(), Failure> {
        let probed = if sent.is_probe { replies.pop() } else { None };
        if let Some((kind, error)) = probed.and_then(B::error) {
            return Err(self.error_reply(kind, &error));
        }
        self.shared.backend.complete(self, &mut sent.pipeline, replies)
    }

    /// Notes that what is in flight had not been answered by `seen`, and fails the callers that wait no longer.
    fn look(&self, flight: &mut Flight<B>, seen: Instant) {
        let Shared { metrics, bounds, .. } = &*self.shared;
        let mut state = self.lock();
        if let Some(sent) = flight.oldest() {
            let in_flight = state.queue.in_flight;
            state.queue.window.look(seen, sent, in_flight);
        }
        let error = || self.overloaded().to_error(FailureReason::Overloaded);
        let rejected = state.queue.reject_held(seen, error);
        let abandoned = state.queue.expire(B::NAME, seen);
        drop(state);
        if rejected > 0 {
            metrics.overloaded(rejected, &self.overloaded());
        }
        metrics.abandoned(abandoned);
        if flight.expire(seen, bounds.timeout, || self.timed_out().to_error(FailureReason::Timeout)) {
            metrics.failed(&self.timed_out());
        }
    }

    /// Waits for all pending replies. Callers that wait for late ones receive them.
    async fn finish(&self, stream: &mut Stream<B>, flight: &mut Flight<B>) -> Result<(), Failure> {
        while !flight.is_empty() {
            let (mut sent, replies) = flight.next_complete(stream, self.timer()).await?;
            self.receive(&mut sent, replies)?;
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
                    let recovered = self.describe("recovered, breaker closed");
                    self.shared.metrics.log(Level::INFO, "recovered", recovered);
                }
                return Ok(());
            }
            self.shared.metrics.failed(&self.timed_out());
            if self.ended_within(backoff.pause(self.shared.edges.random.fraction())).await {
                return Err(Exit::ServerRemoved);
            }
        }
    }

    /// Fails queued callers that time out while there is no connection.
    async fn fail_late(&self) -> Infallible {
        loop {
            let waits = {
                let mut state = self.lock();
                state.idle = state.queue.is_empty();
                state.queue.waits()
            };
            let Some(Waits { since, .. }) = waits else {
                self.work.notified().await;
                continue;
            };
            self.timer().sleep(TICK).await;
            let now = self.now();
            // What has arrived by then is read first.
            yield_now().await;
            if now >= after(since, self.shared.bounds.timeout) {
                self.open_breaker(FailureReason::Timeout, &self.timed_out());
            } else {
                let abandoned = self.lock().queue.expire(B::NAME, now);
                self.shared.metrics.abandoned(abandoned);
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
    matches!(exit, Exit::Failed(failure) if failure.kind == FailureKind::Lost)
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
        let error = StoreError::new(FailureReason::Unavailable, message);
        self.0.lock().connected = false;
        self.0.reject(error.clone(), &error);
    }
}
