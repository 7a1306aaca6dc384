//! The one who keeps a lane's connection: dials, sends what waits, hands out what comes, and asks a server that
//! was late whether it is back.

use std::{convert::Infallible, future::poll_fn, mem, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{Backend, Lane, Pipeline, Shared, store_error};
use crate::{
    panics::{self, Boundary, Panicked, caught},
    store::{
        FailureReason, StoreError,
        failure::{Failure, Kind},
        line::Line,
        meters::Meters,
        pace::Pace,
    },
};

/// A server that owes answers for so long is left: the network may have forgotten the connection.
const SILENCE: Duration = Duration::from_millis(500);

/// A connection that ends sooner than this was not worth opening at once again.
const BRIEF: Duration = Duration::from_millis(500);

/// Why a connection was left.
enum Left {
    /// It failed, and is to be opened again.
    Failed(Failure),
    /// The lane has ended.
    Ended,
}

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

impl<B: Backend> Lane<B> {
    /// Runs until the lane ends, whatever panics meanwhile.
    pub(super) async fn keep_running(self: Arc<Self>) {
        while let Err(Panicked) = caught(Boundary::StoreConnection, self.run()).await {
            panics::pause().await;
        }
    }

    /// Keeps a connection, and sends what waits; until the lane ends.
    async fn run(&self) {
        let _end = Ending(self);
        let Shared { backend, meters, bounds } = &*self.shared;
        let (mut pace, mut again, mut was_replica) = (bounds.at_start.clone(), false, false);
        loop {
            let (left, served) = match self.dial(was_replica).await {
                Ok(line) => {
                    meters.connected(again);
                    if !mem::replace(&mut again, true) {
                        pace = Pace::again();
                    }
                    let begun = Instant::now();
                    let mut open = OpenConnection { meters, lost: false };
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
            backend.doubt_servers();
            if is_lost && served > BRIEF && !self.is_shut() {
                // What waits may still be answered in time on a new connection.
                meters.failed(&failure);
                continue;
            }
            was_replica |= failure.kind == Kind::ReadOnly;
            self.shut(FailureReason::Unavailable, &failure);
            if self.ended_within(pace.pause()).await {
                return;
            }
        }
    }

    async fn dial(&self, was_replica: bool) -> Result<Line<B::Language>, Left> {
        let dialled = async { Ok(self.shared.backend.dial(&self.address, was_replica).await?) };
        tokio::select! {
            dialled = dialled => dialled,
            // While nobody can be asked, what waits must not wait beyond its time.
            never = self.fail_overdue() => match never {},
            () = self.ended() => Err(Left::Ended),
        }
    }

    /// Sends what waits, as long as it is answered.
    async fn serve(&self, mut line: Line<B::Language>, pace: &mut Pace) -> Result<Infallible, Left> {
        if self.is_shut() {
            self.probe(&mut line, pace).await?;
        }
        pace.reset();
        self.lock().connected = true;
        self.shared.backend.connected(self);
        let mut pipeline = B::Pipeline::default();
        loop {
            let since = self.next(&mut line, &mut pipeline).await?;
            let deadline = since + self.shared.bounds.timeout;
            panics::point("store_exchange");
            let begun = Instant::now();
            match in_time(deadline, B::exchange(&mut line, &pipeline)).await {
                Some(Ok(replies)) => {
                    self.shared.meters.answered(pipeline.checks(), begun.elapsed());
                    self.shared.backend.deal(self, &mut pipeline, replies)?;
                }
                Some(Err(failure)) => {
                    pipeline.fail(&store_error(FailureReason::ConnectionLost, &failure));
                    return Err(failure.into());
                }
                None => {
                    let failure = self.overdue();
                    pipeline.fail(&store_error(FailureReason::Timeout, &failure));
                    self.shut(FailureReason::Timeout, &failure);
                    self.probe(&mut line, pace).await?;
                    pace.reset();
                }
            }
            pipeline.clear();
        }
    }

    /// Waits until something waits, and takes it.
    async fn next(&self, line: &mut Line<B::Language>, pipeline: &mut B::Pipeline) -> Result<Instant, Left> {
        let window = self.shared.bounds.pipeline_window;
        loop {
            let since = {
                let mut state = self.lock();
                if state.ended {
                    return Err(Left::Ended);
                }
                state.idle = state.since.is_none();
                state.since
            };
            if let Some(since) = since {
                if window.is_zero() {
                    // What is ready on other connections of this core is asked first, and goes along.
                    yield_now().await;
                } else {
                    sleep_until(since + window).await;
                }
                let mut state = self.lock();
                mem::swap(&mut state.pending, pipeline);
                // While waiting for the window nobody else takes what waits.
                return Ok(state.since.take().unwrap_or(since));
            }
            tokio::select! {
                biased;
                () = self.work.notified() => {}
                failure = line.idle() => return Err(failure.into()),
            }
        }
    }

    /// Asks whether the server answers in time, until it does.
    async fn probe(&self, line: &mut Line<B::Language>, pace: &mut Pace) -> Result<(), Left> {
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
            self.shared.meters.failed(&self.overdue());
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
                state.idle = state.since.is_none();
                state.since
            };
            match since {
                None => self.work.notified().await,
                Some(since) => {
                    sleep_until(since + self.shared.bounds.timeout).await;
                    self.shut(FailureReason::Timeout, &self.overdue());
                }
            }
        }
    }

    /// Completes when the lane has ended.
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
    meters: &'a Meters,
    /// The server ended it.
    lost: bool,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.meters.disconnected(!self.lost);
    }
}

/// Shuts the lane when nobody runs it any more, so that no caller waits for ever.
struct Ending<'a, B: Backend>(&'a Lane<B>);

impl<B: Backend> Drop for Ending<'_, B> {
    fn drop(&mut self) {
        let message = self.0.told("it is not asked any more");
        let error = StoreError { reason: FailureReason::Unavailable, message: message.into() };
        self.0.lock().connected = false;
        self.0.close(error.clone(), &error);
    }
}

/// What a future gives by its deadline. It may be this process that was late, because it was not given a
/// core: what has come meanwhile still counts.
async fn in_time<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    if let Ok(value) = timeout_at(deadline, future.as_mut()).await {
        return Some(value);
    }
    // Whoever yields is called again after the sockets were looked at.
    yield_now().await;
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
}
