//! The task of a connection's connection: dials, sends what waits, completes what is answered, and probes a server that
//! was taken for lost.

use std::{convert::Infallible, future::poll_fn, mem, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::deadline::{after, part};
use super::{
    Backend, Connection, Pipeline, Shared,
    backend::Reply,
    flight::{Flight, Sent},
    limit::Bound,
    queue::Queued,
    store_error,
};
use crate::{
    net::backoff::Backoff,
    panics::{self, Boundary, Panicked, caught},
    store::{
        FailureReason, StoreError,
        remote::{
            client_metrics::ClientMetrics,
            failure::{Failure, Kind},
            framed::FramedStream,
        },
    },
};

/// A server that answers nothing in time for so much longer than an answer may take is taken for lost, or for half
/// as long as an answer may take if that is more. Redis stalls for some tens of milliseconds when it forks or a
/// command is slow.
const STALL: Duration = Duration::from_millis(90);

/// How often deadlines are looked at: every tenth of the time that an answer may take, within these bounds.
const MIN_TICK: Duration = Duration::from_millis(1);
const MAX_TICK: Duration = Duration::from_millis(20);

/// A server that owes answers for so long is left: the network may have forgotten the connection.
const SILENCE: Duration = Duration::from_millis(500);

/// A connection that ends sooner than this was not worth opening at once again.
const BRIEF: Duration = Duration::from_millis(500);

/// Why a connection was left.
enum Left {
    /// It failed, and is to be opened again.
    Failed(Failure),
    /// The connection has ended.
    Ended,
}

/// The server answers nothing in time any more.
struct Lost;

impl Left {
    fn is_lost(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.kind == Kind::Lost)
    }
}

impl From<Failure> for Left {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<B: Backend> Connection<B> {
    /// Runs until the connection ends, whatever panics meanwhile.
    pub(super) async fn keep_running(self: Arc<Self>) {
        while let Err(Panicked) = caught(Boundary::StoreConnection, self.run()).await {
            panics::pause().await;
        }
    }

    /// Keeps a connection, and sends what waits; until the connection ends.
    async fn run(&self) {
        let _end = Ending(self);
        let Shared { backend, metrics, bounds } = &*self.shared;
        let (mut pace, mut again, mut was_replica) = (bounds.at_start.clone(), false, false);
        loop {
            let (left, served) = match self.dial(was_replica).await {
                Ok(line) => {
                    metrics.connected(again);
                    if !mem::replace(&mut again, true) {
                        pace = Backoff::again();
                    }
                    let begun = Instant::now();
                    let mut open = OpenConnection { metrics, lost: false };
                    let Err(left) = self.serve(line, &mut pace).await;
                    self.lock().connected = false;
                    backend.forget_keys();
                    open.lost = left.is_lost();
                    (left, begun.elapsed())
                }
                Err(left) => (left, Duration::ZERO),
            };
            let is_lost = left.is_lost();
            let Left::Failed(failure) = left else { return };
            backend.request_refresh();
            if is_lost && served > BRIEF && !self.is_breaker_open() {
                // What waits may still be answered in time on a new connection.
                metrics.failed(&failure);
                continue;
            }
            was_replica |= failure.kind == Kind::ReadOnly;
            self.shut(FailureReason::Unavailable, &failure);
            if self.ended_within(pace.pause()).await {
                return;
            }
        }
    }

    async fn dial(&self, was_replica: bool) -> Result<FramedStream<B::Codec>, Left> {
        let dialled = async { Ok(self.shared.backend.dial(&self.address, was_replica).await?) };
        tokio::select! {
            dialled = dialled => dialled,
            // While nobody can be asked, what waits must not wait beyond its time.
            never = self.fail_overdue() => match never {},
            () = self.ended() => Err(Left::Ended),
        }
    }

    /// Serves callers on a connection until it fails. A server that is taken for lost is probed on it first.
    async fn serve(&self, mut line: FramedStream<B::Codec>, pace: &mut Backoff) -> Result<Infallible, Left> {
        loop {
            if self.is_breaker_open() {
                self.probe(&mut line, pace).await?;
            }
            pace.reset();
            self.lock().connected = true;
            self.shared.backend.connected(self);
            let mut flight = Flight::new(self.shared.bounds.timeout);
            let left = self.pump(&mut line, &mut flight).await;
            {
                let mut state = self.lock();
                (state.queue.in_flight, state.queue.bound) = (0, Bound::UNKNOWN);
            }
            match left {
                Ok(Lost) => {
                    let failure = self.overdue();
                    flight.fail(&store_error(FailureReason::Timeout, &failure));
                    self.shut(FailureReason::Timeout, &failure);
                }
                Err(Left::Failed(failure)) => {
                    flight.fail(&store_error(FailureReason::ConnectionLost, &failure));
                    return Err(Left::Failed(failure));
                }
                Err(Left::Ended) => return Err(Left::Ended),
            }
        }
    }

    /// Sends what waits and completes what is answered, until the server is taken for lost.
    async fn pump(&self, line: &mut FramedStream<B::Codec>, flight: &mut Flight<B>) -> Result<Lost, Left> {
        let timeout = self.shared.bounds.timeout;
        let tick = part(timeout, 10).clamp(MIN_TICK, MAX_TICK);
        let mut next = Instant::now();
        loop {
            if flight.is_empty() {
                self.wait(line).await?;
            }
            let now = Instant::now();
            if flight.is_empty() {
                next = after(now, tick);
            }
            self.send(line, flight, now);
            if flight.is_empty() {
                continue;
            }
            let answered = tokio::select! {
                biased;
                answered = flight.answered(line) => Some(answered?),
                () = sleep_until(next) => None,
            };
            if let Some((sent, replies)) = answered {
                self.complete(flight, sent, replies)?;
                continue;
            }
            // It may be this process that was late, because it had no CPU: what has come meanwhile counts. Who
            // yields is called again after the sockets were looked at.
            yield_now().await;
            while !flight.is_empty()
                && let Some(answered) = now_or_never(flight.answered(line)).await
            {
                let (sent, replies) = answered?;
                self.complete(flight, sent, replies)?;
            }
            let now = Instant::now();
            next = after(now, tick);
            self.expire(flight, now);
            if !flight.is_empty()
                && now >= after(flight.well, timeout.saturating_add(STALL.max(part(timeout, 2))))
            {
                return Ok(Lost);
            }
        }
    }

    /// Waits for callers while nothing is on its way, and for more of them as long as the settings say.
    async fn wait(&self, line: &mut FramedStream<B::Codec>) -> Result<(), Left> {
        let window = self.shared.bounds.pipeline_window;
        loop {
            let since = {
                let mut state = self.lock();
                if state.ended {
                    return Err(Left::Ended);
                }
                state.idle = state.queue.is_empty();
                state.queue.since()
            };
            match since {
                Some(since) if !window.is_zero() => {
                    sleep_until(after(since, window)).await;
                    return Ok(());
                }
                Some(_) => {
                    // What is ready on other connections of this core goes along.
                    yield_now().await;
                    return Ok(());
                }
                None => tokio::select! {
                    biased;
                    () = self.work.notified() => {}
                    failure = line.idle() => return Err(failure.into()),
                },
            }
        }
    }

    /// Sends what may be sent, and drops what would be late.
    fn send(&self, line: &mut FramedStream<B::Codec>, flight: &mut Flight<B>, now: Instant) {
        panics::point("store_exchange");
        let mut late = Vec::new();
        {
            let mut state = self.lock();
            while let Some(queued) = state.queue.take_late(now, self.shared.bounds.timeout) {
                late.push(queued);
            }
            while !state.ended
                && let Some(queued) = state.queue.take(now)
            {
                flight.push(line, queued, now);
            }
        }
        self.drop_late(late);
    }

    /// Completes the callers of a pipeline that was answered.
    fn complete(
        &self,
        flight: &mut Flight<B>,
        mut sent: Sent<B>,
        replies: Vec<Reply<B>>,
    ) -> Result<(), Failure> {
        let Shared { backend, metrics, .. } = &*self.shared;
        let now = Instant::now();
        metrics.answered(sent.checks, now.saturating_duration_since(sent.at));
        let dealt = backend.complete(self, &mut sent.pipeline, replies);
        let mut state = self.lock();
        let shed = mem::take(&mut state.queue.shed);
        flight.note(&sent, now, shed > 0);
        state.queue.bound = flight.capacity.bound();
        state.queue.in_flight = state.queue.in_flight.saturating_sub(sent.checks);
        state.queue.recycle(sent.pipeline);
        drop(state);
        if shed > 0 {
            metrics.overloaded(shed, &Failure::new(Kind::Timeout, &*self.overloaded.message));
        }
        dealt
    }

    /// Fails the callers whose time is over.
    fn expire(&self, flight: &mut Flight<B>, now: Instant) {
        let timeout = self.shared.bounds.timeout;
        let error = || store_error(FailureReason::Timeout, &self.overdue());
        if flight.expire(now, timeout, error) {
            self.shared.metrics.failed(&self.overdue());
        }
        let mut late = Vec::new();
        let mut state = self.lock();
        while let Some(queued) = state.queue.take_late(now, timeout) {
            late.push(queued);
        }
        drop(state);
        self.drop_late(late);
    }

    /// Fails callers whose checks were not sent, because no answer would come in time.
    fn drop_late(&self, late: Vec<Queued<B::Pipeline>>) {
        if late.is_empty() {
            return;
        }
        let failure = self.failure(Kind::Timeout, format_args!("not sent: no answer would come in time"));
        let error = store_error(FailureReason::Timeout, &failure);
        for mut queued in late {
            self.shared.metrics.dropped(queued.pipeline.checks());
            queued.pipeline.fail(&error);
        }
    }

    /// Asks whether the server answers in time, until it does.
    async fn probe(&self, line: &mut FramedStream<B::Codec>, pace: &mut Backoff) -> Result<(), Left> {
        loop {
            match timeout(SILENCE, line.settle()).await {
                Ok(settled) => settled?,
                Err(_) => return Err(self.silent(line.owed()).into()),
            }
            let asked = timeout(self.shared.bounds.timeout, async {
                line.send(1, |into| into.extend_from_slice(B::PROBE)).await?;
                line.receive().await
            });
            if let Ok(answer) = asked.await {
                if let Some((kind, error)) = B::error(answer?) {
                    return Err(self.answered_with(kind, &error).into());
                }
                self.reopen();
                return Ok(());
            }
            self.shared.metrics.failed(&self.overdue());
            if self.ended_within(pace.pause()).await {
                return Err(Left::Ended);
            }
        }
    }

    /// Fails what waits when its time is over. For as long as nobody is there to be asked.
    async fn fail_overdue(&self) -> Infallible {
        loop {
            let since = {
                let mut state = self.lock();
                state.idle = state.queue.is_empty();
                state.queue.since()
            };
            match since {
                None => self.work.notified().await,
                Some(since) => {
                    sleep_until(after(since, self.shared.bounds.timeout)).await;
                    self.shut(FailureReason::Timeout, &self.overdue());
                }
            }
        }
    }

    /// Completes when the connection has ended.
    async fn ended(&self) {
        while !self.lock().ended {
            sleep(SILENCE).await;
        }
    }

    async fn ended_within(&self, pause: Duration) -> bool {
        sleep(pause).await;
        self.lock().ended
    }

    fn silent(&self, owed: usize) -> Failure {
        let what = format_args!("{owed} answers are owed for {SILENCE:?}, so it is dialled anew");
        self.failure(Kind::Timeout, what)
    }
}

/// Counts the end of a connection, also of one whose task panics.
struct OpenConnection<'a> {
    metrics: &'a ClientMetrics,
    /// The server ended it.
    lost: bool,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.metrics.disconnected(!self.lost);
    }
}

/// Shuts the connection when nobody runs it any more, so that no caller waits for ever.
struct Ending<'a, B: Backend>(&'a Connection<B>);

impl<B: Backend> Drop for Ending<'_, B> {
    fn drop(&mut self) {
        let message = self.0.told("connection closed");
        let error = StoreError { reason: FailureReason::Unavailable, message: message.into() };
        self.0.lock().connected = false;
        self.0.close(error.clone(), &error);
    }
}

/// What a future gives without waiting.
async fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
}
