//! One connection to one server, and what waits for it.
//!
//! While a pipeline is on its way, what is asked meanwhile gathers into the next one; when nothing is on
//! its way, nothing waits. A server that does not answer in time is not asked any more: the lane is shut,
//! and callers hear so within microseconds, until a probe is answered in time.

use std::{
    convert::Infallible,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tracing::info;

use super::{
    bundle::{Answered, Bundle, Shown},
    failure::{Failure, Kind},
    pace::Pace,
    pool::Shared,
    resp::{self, Line, Reply},
    wire::Wire,
};
use crate::{
    clock::{Clock, SystemClock},
    settings::redis::RedisAddress,
    store::{FailureReason, StoreError},
};

/// A server that owes answers for so long is left: the network may have forgotten the connection.
const SILENCE: Duration = Duration::from_millis(500);

/// A connection that ends sooner than this was not worth opening at once again.
const BRIEF: Duration = Duration::from_millis(500);

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
    pub(super) fn new(address: RedisAddress, shared: Arc<Shared>) -> Self {
        Self { address, shared, state: Mutex::default(), work: Notify::new() }
    }

    /// Where it leads.
    pub(super) fn address(&self) -> &RedisAddress {
        &self.address
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
        if waiting > 0 && waiting + checks > self.shared.bounds.max_queued {
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
        let mut state = self.lock();
        state.ended = true;
        drop(state);
        self.work.notify_one();
    }

    /// Keeps a connection, and sends what waits; until the lane ends.
    pub(super) async fn run(self: Arc<Self>) {
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
            match timeout_at(deadline, exchange(&mut line, &bundle)).await {
                Ok(Ok(replies)) => {
                    self.shared.meters.answered(bundle.checks(), begun.elapsed());
                    let shown = bundle.deal(replies, |kind, error| self.answered_with(kind, error));
                    self.learn(shown)?;
                }
                Ok(Err(failure)) => {
                    bundle.fail(&store_error(FailureReason::ConnectionLost, &failure));
                    return Err(failure.into());
                }
                Err(_) => {
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
                if !window.is_zero() {
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

impl Lane {
    fn shut_for_good(&self, error: &StoreError) {
        let mut state = self.lock();
        state.shut = Some(error.clone());
        state.connected = false;
        let mut pending = mem::take(&mut state.pending);
        drop(state);
        pending.fail(error);
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
        let places: Vec<usize> = unknown.iter().map(|(command, _)| *command).collect();
        line.send(places.len(), |into| bundle.write_with_scripts(&places, into)).await?;
        for (_, reply) in unknown {
            replies[reply] = line.receive().await?;
        }
    }
    Ok(replies)
}

fn store_error(reason: FailureReason, failure: &Failure) -> StoreError {
    StoreError { reason, message: failure.message.as_str().into() }
}
