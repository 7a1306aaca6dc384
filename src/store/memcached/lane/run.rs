//! Keeps a lane's connection, and sends what waits.
//!
//! A server that does not answer in time is not asked any more: the lane is shut, and callers hear so within
//! microseconds, until a probe is answered in time. One task a lane runs this, on the thread that has the seat.

use std::{convert::Infallible, future::poll_fn, mem, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{Lane, store_error};
use crate::store::{
    FailureReason, StoreError,
    failure::{Failure, Kind},
    memcached::{
        bundle::Bundle,
        reply::{self, Line, Reply},
    },
    pace::Pace,
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

impl From<Failure> for Left {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Lane {
    /// Keeps a connection, and sends what waits; until the lane ends.
    pub(in crate::store::memcached) async fn run(self: Arc<Self>) {
        let _end = Ending(&self);
        let (mut pace, mut again) = (Pace::again(), false);
        loop {
            let failure = match self.dial().await {
                Ok(line) => {
                    self.shared.meters.connected(mem::replace(&mut again, true));
                    let begun = Instant::now();
                    let left = match self.serve(line, &mut pace).await {
                        Ok(never) => match never {},
                        Err(left) => left,
                    };
                    self.lock().connected = false;
                    let Left::Failed(failure) = left else {
                        self.shared.meters.disconnected(true);
                        return;
                    };
                    self.shared.meters.disconnected(failure.kind != Kind::Lost);
                    if failure.kind == Kind::Lost && begun.elapsed() > BRIEF && !self.is_shut() {
                        // What waits may still be answered in time on a new connection.
                        self.shared.meters.failed(&failure);
                        continue;
                    }
                    failure
                }
                Err(Left::Failed(failure)) => failure,
                Err(Left::Ended) => return,
            };
            self.shut(FailureReason::Unavailable, &failure);
            if self.ended_within(pace.pause()).await {
                return;
            }
        }
    }

    async fn dial(&self) -> Result<Line, Left> {
        let dialled = async { Ok(self.shared.dialer.dial(&self.address).await?) };
        tokio::select! {
            dialled = dialled => dialled,
            // While nobody can be asked, what waits must not wait beyond its time.
            never = self.fail_overdue() => match never {},
            () = self.ended() => Err(Left::Ended),
        }
    }

    /// Sends what waits, as long as it is answered.
    async fn serve(&self, mut line: Line, pace: &mut Pace) -> Result<Infallible, Left> {
        if self.is_shut() {
            self.probe(&mut line, pace).await?;
        }
        pace.reset();
        self.lock().connected = true;
        let mut bundle = Bundle::default();
        loop {
            let since = self.next(&mut line, &mut bundle).await?;
            let begun = Instant::now();
            match in_time(since + self.shared.timeout, exchange(&mut line, &bundle)).await {
                Some(Ok(replies)) => {
                    self.shared.meters.answered(bundle.checks(), begun.elapsed());
                    let failures = bundle.deal(replies, |kind, error| self.answered_with(kind, error));
                    self.learn(&failures)?;
                }
                Some(Err(failure)) => {
                    bundle.fail(&store_error(FailureReason::ConnectionLost, &failure));
                    return Err(failure.into());
                }
                None => {
                    let failure = self.overdue();
                    bundle.fail(&store_error(FailureReason::Timeout, &failure));
                    self.shut(FailureReason::Timeout, &failure);
                    self.probe(&mut line, pace).await?;
                    pace.reset();
                }
            }
            bundle.clear();
        }
    }

    /// Waits until something waits, and takes it.
    async fn next(&self, line: &mut Line, bundle: &mut Bundle) -> Result<Instant, Left> {
        loop {
            {
                let mut state = self.lock();
                if state.ended {
                    return Err(Left::Ended);
                }
                if let Some(since) = state.since.take() {
                    mem::swap(&mut state.pending, bundle);
                    return Ok(since);
                }
                state.idle = true;
            }
            tokio::select! {
                biased;
                () = self.work.notified() => {}
                failure = line.idle() => return Err(failure.into()),
            }
        }
    }

    /// Asks whether the server answers in time, until it does.
    async fn probe(&self, line: &mut Line, pace: &mut Pace) -> Result<(), Left> {
        loop {
            match timeout(SILENCE, line.settle()).await {
                Ok(settled) => settled?,
                Err(_) => return Err(self.silent(line.owed()).into()),
            }
            let asked = timeout(self.shared.timeout, async {
                line.send(1, |into| into.extend_from_slice(b"version\r\n")).await?;
                line.receive().await
            });
            match asked.await {
                Ok(Ok(Reply::Error(error))) => {
                    return Err(self.answered_with(reply::kind(&error), &error).into());
                }
                Ok(answer) => {
                    answer?;
                    self.reopen();
                    return Ok(());
                }
                Err(_) => {
                    self.shared.meters.failed(&self.overdue());
                    if self.ended_within(pace.pause()).await {
                        return Err(Left::Ended);
                    }
                }
            }
        }
    }

    /// Takes to heart what the answers have shown.
    fn learn(&self, failures: &[Arc<Failure>]) -> Result<(), Failure> {
        for failure in failures {
            self.shared.meters.failed(failure);
        }
        // A server that did not understand a command may take what follows it for the next one: from then on
        // its answers would be dealt out wrongly.
        let strange = failures.iter().find(|failure| failure.kind == Kind::Garbage);
        strange.map_or(Ok(()), |failure| Err((**failure).clone()))
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
                    sleep_until(since + self.shared.timeout).await;
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

    fn overdue(&self) -> Failure {
        let timeout = self.shared.timeout;
        let message = format!("memcached {}: no answer within {timeout:?} (MEMCACHE_TIMEOUT)", self.address);
        Failure::new(Kind::Timeout, message)
    }

    fn silent(&self, owed: usize) -> Failure {
        let address = &self.address;
        let message =
            format!("memcached {address}: {owed} answers are owed for {SILENCE:?}, so it is dialled anew");
        Failure::new(Kind::Timeout, message)
    }

    fn answered_with(&self, kind: Kind, error: &str) -> Failure {
        let error: String = error.chars().take(200).collect();
        let (address, hint) = (&self.address, reply::hint(kind));
        Failure::new(kind, format!("memcached {address}: it answered \"{error}\"{hint}"))
    }
}

/// Shuts the lane when nobody runs it any more, so that no caller waits for ever.
struct Ending<'a>(&'a Lane);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let message = format!("memcached {}: it is not asked any more", self.0.address);
        let error = StoreError { reason: FailureReason::Unavailable, message: message.into() };
        self.0.lock().connected = false;
        self.0.close(error.clone(), &error);
    }
}

/// Sends a bundle and waits for its answers; then makes the counters that were not there.
async fn exchange(line: &mut Line, bundle: &Bundle) -> Result<Vec<Reply>, Failure> {
    line.send(bundle.commands(), |into| bundle.write(into)).await?;
    let mut replies = Vec::with_capacity(bundle.commands());
    for _ in 0..bundle.commands() {
        replies.push(line.receive().await?);
    }
    let missing = bundle.missing(&replies);
    if missing.is_empty() {
        return Ok(replies);
    }
    let making = missing.iter().filter(|place| bundle.makes(**place)).count();
    line.send(missing.len() + making, |into| bundle.write_again(&missing, into)).await?;
    for place in missing {
        let made = if bundle.makes(place) { line.receive().await? } else { Reply::Added };
        let answer = line.receive().await?;
        // Why there is still no counter is told by what was to make it.
        replies[place] = if matches!(made, Reply::Error(_)) { made } else { answer };
    }
    Ok(replies)
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
