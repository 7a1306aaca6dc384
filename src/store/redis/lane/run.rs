//! The one who keeps a lane's connection: dials, sends what waits, hands out what comes, and asks a server that
//! was late whether it is back.

use std::{convert::Infallible, future::poll_fn, mem, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{Ending, Lane, SILENCE, store_error};
use crate::{
    clock::{Clock, SystemClock},
    store::{
        FailureReason,
        pace::Pace,
        redis::{
            bundle::{Bundle, Shown},
            failure::{Failure, Kind},
            resp::{self, Line, Reply},
            wire::Wire,
        },
    },
};

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
    pub(in crate::store::redis) async fn run(self: Arc<Self>) {
        let _end = Ending(&self);
        let mut pace = Pace::at_start(&self.shared.startup);
        let (mut again, mut must_be_master) = (false, self.shared.only_masters);
        loop {
            let failure = match self.dial(must_be_master).await {
                Ok(wire) => {
                    self.shared.meters.connected(again);
                    if !mem::replace(&mut again, true) {
                        pace = Pace::again();
                    }
                    let begun = Instant::now();
                    let left = match self.serve(wire, &mut pace).await {
                        Ok(never) => match never {},
                        Err(left) => left,
                    };
                    self.lock().connected = false;
                    // The server may come back without its keys.
                    self.shared.seen.forget_all();
                    let Left::Failed(failure) = left else {
                        self.shared.meters.disconnected(true);
                        return;
                    };
                    self.shared.meters.disconnected(failure.kind != Kind::Lost);
                    self.shared.topology.doubt();
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
            must_be_master |= failure.kind == Kind::ReadOnly;
            self.shared.topology.doubt();
            self.shut(FailureReason::Unavailable, &failure);
            if self.ended_within(pace.pause()).await {
                return;
            }
        }
    }

    async fn dial(&self, must_be_master: bool) -> Result<Wire, Left> {
        let dialed = async { Ok(self.shared.dialer.dial(&self.address, must_be_master).await?) };
        tokio::select! {
            dialed = dialed => dialed,
            // While nobody can be asked, what waits must not wait beyond its time.
            never = self.fail_overdue() => match never {},
            () = self.ended() => Err(Left::Ended),
        }
    }

    /// Sends what waits, as long as it is answered.
    async fn serve(&self, wire: Wire, pace: &mut Pace) -> Result<Infallible, Left> {
        let mut line = Line::new(wire, format!("redis {}", self.address));
        if self.is_shut() {
            self.probe(&mut line, pace).await?;
        }
        pace.reset();
        self.lock().connected = true;
        let mut bundle = Bundle::default();
        loop {
            let since = self.next(&mut line, &mut bundle).await?;
            let deadline = since + self.shared.bounds.timeout;
            let begun = Instant::now();
            match in_time(deadline, exchange(&mut line, &bundle)).await {
                Some(Ok(replies)) => {
                    self.shared.meters.answered(bundle.checks(), begun.elapsed());
                    let shown = bundle.deal(replies, |kind, error| self.answered_with(kind, error));
                    self.learn(shown)?;
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
                mem::swap(&mut state.pending, bundle);
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
    async fn probe(&self, line: &mut Line, pace: &mut Pace) -> Result<(), Left> {
        loop {
            match timeout(SILENCE, line.settle()).await {
                Ok(settled) => settled?,
                Err(_) => return Err(self.silent(line.owed()).into()),
            }
            let asked = timeout(self.shared.bounds.timeout, async {
                line.send(1, |into| resp::write_command(into, &[b"PING"])).await?;
                line.receive().await
            });
            match asked.await {
                Ok(Ok(Reply::Error(error))) => {
                    return Err(self.answered_with(Kind::of_answer(&error), &error).into());
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
    fn learn(&self, shown: Shown) -> Result<(), Failure> {
        let now = SystemClock.now();
        for (id, end) in shown.expiring {
            self.shared.seen.learn(id, now, end);
        }
        if !shown.immortal.is_empty() {
            self.make_mortal(shown.immortal);
        }
        let mut left = Ok(());
        for failure in shown.failures {
            match failure.kind {
                Kind::Moved | Kind::ClusterDown => self.shared.topology.doubt(),
                Kind::ReadOnly | Kind::Loading | Kind::Auth => left = Err((*failure).clone()),
                _ => {}
            }
            match failure.kind {
                // In a cluster whose slots wander this is nobody's fault.
                Kind::Moved => self.shared.meters.count(failure.kind),
                _ => self.shared.meters.failed(&failure),
            }
        }
        left
    }

    /// Gives an expiry to keys that were made without one, because the server had lost the keys that
    /// this process had told it. Whatever else it knows is doubtful then.
    fn make_mortal(&self, keys: Vec<(Box<str>, u32)>) {
        self.shared.seen.forget_all();
        let mut state = self.lock();
        for (key, seconds) in keys {
            state.pending.expire(&key, seconds);
        }
        state.since.get_or_insert_with(Instant::now);
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
}

/// Sends a bundle and waits for its answers.
async fn exchange(line: &mut Line, bundle: &Bundle) -> Result<Vec<Reply>, Failure> {
    line.send(bundle.answers(), |into| bundle.write(into)).await?;
    let mut replies = Vec::with_capacity(bundle.answers());
    for _ in 0..bundle.answers() {
        replies.push(line.receive().await?);
    }
    let unknown = bundle.unknown_scripts(&replies);
    if !unknown.is_empty() {
        let answers = || unknown.iter().flat_map(|unknown| unknown.answers());
        line.send(answers().count(), |into| bundle.write_with_scripts(&unknown, into)).await?;
        for place in answers() {
            replies[place] = line.receive().await?;
        }
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
