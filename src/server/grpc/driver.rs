//! One connection, from its first byte to its last: moves bytes between a socket and `http2`.
//!
//! All responses to one read are sent with one write. An idle connection has no buffers: the worker lends its buffers to
//! the connection that is polled. A connection ends at its maximum age or when the service shuts down: a GOAWAY, time for
//! open requests, then the close.

use std::{
    future::{self, Future},
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    task::unconstrained,
    time::{Sleep, sleep_until},
};
use tracing::debug;

use super::{
    activity::{Activity, PREFACE_TIMEOUT},
    calls::{Buffers, Calls, ConnectionCalls, Http},
    http2::{Config, Connection, Reason, Share},
    waiting::{Signal, Signaled},
};
use crate::{
    panics,
    server::connections::{Closing, FAREWELL},
    settings::Server,
    telemetry::metrics::ConnectionClosed,
};

/// The size of a read.
const READ: usize = 64 * 1024;

/// The space before it for the rest of the last read: at most an incomplete frame.
const GAP: usize = 16 * 1024 + 16;

/// The size of unwritten responses at which reading stops (CVE-2019-9517).
const MAX_UNWRITTEN: usize = 64 * 1024;

/// The maximum capacity of a worker's write buffer between polls.
const MAX_KEPT: usize = 1 << 20;

/// Buffers up to this size are not charged to the budget.
const UNCHARGED: usize = 1024;

/// The time limit for the preface during shutdown: the first request may be in flight.
const LAST_PREFACE: Duration = Duration::from_secs(1);

/// The time after which the final GOAWAY is sent to a peer that has not acknowledged the first.
const FINAL_GOAWAY: Duration = Duration::from_secs(1);

/// The time for a peer to close its side after the last byte. Closing ours earlier could reset the connection before the
/// peer has read all responses.
const LINGER: Duration = Duration::from_secs(1);

/// The time after which a peer that reads nothing of its responses is disconnected.
const STALLED: Duration = Duration::from_secs(20);

/// The time limits of a connection; see the settings of the same names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub(super) age: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) keepalive_interval: Option<Duration>,
    pub(super) keepalive_timeout: Duration,
}

impl Lifetime {
    /// The time limits of the settings, where zero means none.
    pub(super) fn new(settings: &Server) -> Self {
        let limit = |duration: Duration| Some(duration).filter(|duration| !duration.is_zero());
        Self {
            age: limit(settings.max_connection_age),
            grace: limit(settings.max_connection_age_grace),
            keepalive_interval: limit(settings.keepalive_interval),
            keepalive_timeout: settings.keepalive_timeout,
        }
    }
}

/// Serves a connection until it ends; `drain` turns true to end it.
pub(super) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    calls: Rc<Calls>,
    config: Config,
    lifetime: Lifetime,
    mut drain: watch::Receiver<bool>,
    activity: Arc<Activity>,
) {
    panics::point("grpc_connection");
    let mut driver = Driver::new(io, calls, config, lifetime, activity.clone());
    let ending = pin!(async {
        tokio::select! {
            _ = drain.wait_for(|drain| *drain) => None,
            closing = activity.handle.closing() => Some(closing),
        }
    });
    let mut ending = Signaled::new(ending);
    let closing = future::poll_fn(|context| match driver.poll(context) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => ending.poll(context).map(Some),
    });
    let Some(closing) = closing.await else { return };
    match closing {
        Some(Closing::Silent) => return,
        Some(Closing::Idle) => driver.lifetime.grace = Some(FAREWELL),
        None => {}
    }
    driver.leave(Instant::now());
    tokio::select! {
        () = future::poll_fn(|context| driver.poll(context)) => {}
        _ = activity.handle.closing() => {}
    }
}

struct Driver<S> {
    io: S,
    http: Http,
    calls: ConnectionCalls,
    signal: Arc<Signal>,
    activity: Arc<Activity>,
    /// The state last reported to the registry: whether no request was open, and the last stream.
    requests: (bool, u32),
    /// The number of bytes of `http.out` that are written.
    written: usize,
    /// The incomplete frame at the end of the last read.
    rest: Vec<u8>,
    /// The charge for `rest` and for unwritten responses.
    share: Share,
    stage: Stage,
    lifetime: Lifetime,
    opened: Instant,
    /// The time at which the connection reaches its maximum age.
    age: Option<Instant>,
    /// The time at which its shutdown began.
    left: Option<Instant>,
    last_read: Instant,
    pinged: Option<Instant>,
    /// The time since which the peer has read nothing of pending responses.
    stalled: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    timer_at: Option<Instant>,
    /// No written bytes are buffered in `io`.
    flushed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Requests are accepted.
    Serving,
    /// The rest of the output is written.
    Ending,
    /// Waits until the peer closes its side.
    Lingering(Instant),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    fn new(io: S, calls: Rc<Calls>, config: Config, lifetime: Lifetime, activity: Arc<Activity>) -> Self {
        let now = Instant::now();
        let share = Share::new(&config.budget);
        Self {
            io,
            http: Connection::new(config, now),
            calls: ConnectionCalls::new(calls, now),
            signal: Arc::default(),
            activity,
            requests: (true, 0),
            written: 0,
            rest: Vec::new(),
            share,
            stage: Stage::Serving,
            lifetime,
            opened: now,
            age: lifetime.age.and_then(|age| now.checked_add(jittered(age))),
            left: None,
            last_read: now,
            pinged: None,
            stalled: None,
            timer: None,
            timer_at: None,
            flushed: true,
        }
    }

    fn leave(&mut self, now: Instant) {
        if self.left.is_none() {
            self.left = Some(now);
            if !self.http.awaits_preface() {
                self.http.announce_goaway();
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let shared = self.calls.calls.clone();
        let mut buffers = shared.buffers.take();
        if buffers.read.is_empty() {
            buffers.read = vec![0; GAP + READ];
        }
        if self.http.out.is_empty() {
            std::mem::swap(&mut self.http.out, &mut buffers.out);
        }
        std::mem::swap(&mut self.calls.message, &mut buffers.message);
        let open = self.advance(context, &mut buffers).is_pending() && self.keep_unwritten(&mut buffers);
        std::mem::swap(&mut self.calls.message, &mut buffers.message);
        shared.buffers.set(buffers);
        if open {
            return Poll::Pending;
        }
        self.http.abandon(&mut self.calls);
        Poll::Ready(())
    }

    /// Reads, responds and writes until all of it is pending.
    fn advance(&mut self, context: &mut Context<'_>, buffers: &mut Buffers) -> Poll<()> {
        self.calls.now = Instant::now();
        loop {
            let read = match self.stage {
                Stage::Serving if self.unwritten() <= MAX_UNWRITTEN => self.poll_read(context, buffers),
                Stage::Lingering(_) => self.poll_discard(context, buffers),
                _ => Poll::Pending,
            };
            if read == Poll::Ready(false) {
                return Poll::Ready(());
            }
            if self.stage == Stage::Serving {
                self.poll_calls(context);
                if self.http.is_done() {
                    self.stage = Stage::Ending;
                }
            }
            let written = self.poll_write(context);
            if written == Poll::Ready(false) {
                return Poll::Ready(());
            }
            if self.stage == Stage::Ending && written.is_ready() {
                match Pin::new(&mut self.io).poll_shutdown(context) {
                    Poll::Ready(Ok(())) => {
                        self.stage = Stage::Lingering(after(self.calls.now, LINGER));
                        continue;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            if read.is_pending() && !self.poll_timer(context) {
                return Poll::Pending;
            }
            self.calls.now = Instant::now();
            if read.is_pending() && !self.tick() {
                return Poll::Ready(());
            }
        }
    }

    /// Reads once and handles the input; false if the connection has ended.
    fn poll_read(&mut self, context: &mut Context<'_>, buffers: &mut Buffers) -> Poll<bool> {
        let Some(free) = buffers.read.get_mut(GAP..) else { return Poll::Ready(false) };
        let mut free = ReadBuf::new(free);
        let read = ready!(Pin::new(&mut self.io).poll_read(context, &mut free));
        let end = GAP.saturating_add(free.filled().len());
        if read.is_err() || end == GAP {
            return Poll::Ready(false);
        }
        self.last_read = self.calls.now;
        self.pinged = None;
        let start = GAP.saturating_sub(self.rest.len());
        if let Some(place) = buffers.read.get_mut(start..GAP) {
            place.copy_from_slice(&self.rest);
        }
        let bytes = buffers.read.get(start..end).unwrap_or_default();
        match self.http.receive(bytes, self.calls.now, &mut self.calls) {
            Ok(taken) => self.keep_rest(bytes.get(taken..).unwrap_or_default()),
            Err(reason) => self.fail(reason),
        }
        self.calls.after_read(&mut self.http);
        if !self.http.awaits_preface() {
            self.activity.handle.ready(self.calls.now);
            self.note_requests(self.calls.now);
            if self.left.is_some() {
                self.http.announce_goaway();
            }
        }
        Poll::Ready(true)
    }

    fn fail(&mut self, reason: Reason) {
        self.http.abandon(&mut self.calls);
        let error = self.http.fail(reason);
        self.calls.calls.stats.service().peer_errors(error).increment();
        debug!(?reason, error = error.name(), "gRPC connection closed: protocol error");
        self.stage = Stage::Ending;
    }

    fn keep_rest(&mut self, rest: &[u8]) {
        self.rest.clear();
        if self.rest.capacity() > UNCHARGED && rest.len() <= UNCHARGED {
            self.rest = Vec::new();
        }
        self.rest.reserve_exact(rest.len());
        self.rest.extend_from_slice(rest);
    }

    /// Reads and discards input; false if the peer has closed its side.
    fn poll_discard(&mut self, context: &mut Context<'_>, buffers: &mut Buffers) -> Poll<bool> {
        let mut free = ReadBuf::new(&mut buffers.read);
        let read = ready!(Pin::new(&mut self.io).poll_read(context, &mut free));
        Poll::Ready(read.is_ok() && !free.filled().is_empty())
    }

    fn poll_calls(&mut self, context: &mut Context<'_>) {
        if self.calls.is_idle() {
            return;
        }
        self.signal.register(context.waker());
        let woken = self.signal.take();
        self.calls.poll(&mut self.http, &self.signal, woken);
        self.note_requests(self.calls.now);
    }

    /// Reports to the registry whether a request is open. A peer has been idle since its last request, even if it has sent
    /// a PING or the acknowledgement of our SETTINGS since.
    fn note_requests(&mut self, now: Instant) {
        let seen = (self.http.is_idle(), self.http.last);
        match std::mem::replace(&mut self.requests, seen) {
            _ if !seen.0 => self.activity.handle.busy(),
            before if before != seen => self.activity.handle.idle(now),
            _ => {}
        }
    }

    /// Writes the output; false if that failed.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        while let Some(bytes) = self.http.out.get(self.written..).filter(|bytes| !bytes.is_empty()) {
            match Pin::new(&mut self.io).poll_write(context, bytes) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    self.written = self.written.saturating_add(written);
                    self.stalled = None;
                    self.flushed = false;
                }
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending => {
                    self.stalled.get_or_insert(self.calls.now);
                    return Poll::Pending;
                }
            }
        }
        self.http.out.clear();
        self.written = 0;
        if !self.flushed {
            let flushed = ready!(Pin::new(&mut self.io).poll_flush(context));
            self.flushed = flushed.is_ok();
        }
        self.stalled = self.http.has_blocked().then(|| self.stalled.unwrap_or(self.calls.now));
        Poll::Ready(self.flushed)
    }

    fn unwritten(&self) -> usize {
        self.http.out.len().saturating_sub(self.written)
    }

    /// Returns the lent buffer and copies its unwritten bytes; false if the budget does not allow them.
    fn keep_unwritten(&mut self, buffers: &mut Buffers) -> bool {
        let mut out = std::mem::take(&mut self.http.out);
        if let Some(unwritten) = out.get(self.written..).filter(|unwritten| !unwritten.is_empty()) {
            self.http.out = unwritten.to_vec();
        }
        self.written = 0;
        out.clear();
        if out.capacity() > buffers.out.capacity() && out.capacity() <= MAX_KEPT {
            buffers.out = out;
        }
        let held = self.http.out.capacity().saturating_add(self.rest.capacity());
        self.share.resize(if held > UNCHARGED { held } else { 0 })
    }

    /// Sets the timer for the next [`tick`](Self::tick); true if that is due now.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> bool {
        let Some(due) = self.due() else { return false };
        if due <= self.calls.now {
            self.timer_at = None;
            return true;
        }
        if self.timer_at.is_none_or(|at| due < at || at <= self.calls.now) {
            self.timer_at = Some(due);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due.into())));
            timer.as_mut().reset(due.into());
            // One poll is enough: it stores the waker of this task.
            return pin!(unconstrained(timer.as_mut())).poll(context).is_ready();
        }
        false
    }

    /// The time of the next [`tick`](Self::tick).
    fn due(&self) -> Option<Instant> {
        let Lifetime { grace, keepalive_interval, keepalive_timeout, .. } = self.lifetime;
        let in_stage = match self.stage {
            Stage::Serving if self.http.awaits_preface() => Some(self.preface_deadline()),
            Stage::Serving => self.calls.due,
            Stage::Ending => None,
            Stage::Lingering(end) => Some(end),
        };
        let alive = match self.pinged {
            Some(pinged) => Some(after(pinged, keepalive_timeout)),
            None if self.stage == Stage::Serving => {
                keepalive_interval.map(|interval| after(self.last_read, interval))
            }
            None => None,
        };
        let stalled = self.stalled.map(|since| after(since, STALLED));
        let mut due = [in_stage, alive, stalled, self.age, None];
        if let Some(left) = self.left {
            due[3] = self.http.has_announced_goaway().then(|| after(left, FINAL_GOAWAY));
            due[4] = grace.map(|grace| after(left, grace));
        }
        due.into_iter().flatten().min()
    }

    /// Handles timeouts; false if the connection has ended.
    fn tick(&mut self) -> bool {
        let now = self.calls.now;
        let past = |moment: Option<Instant>| moment.is_some_and(|moment| moment <= now);
        let Lifetime { grace, keepalive_interval, keepalive_timeout, .. } = self.lifetime;
        let over = match self.stage {
            Stage::Lingering(end) => end <= now,
            Stage::Serving if self.http.awaits_preface() && self.preface_deadline() <= now => {
                self.activity.handle.count(ConnectionClosed::PrefaceTimeout);
                true
            }
            _ => false,
        };
        if over
            || past(self.stalled.map(|since| after(since, STALLED)))
            || past(self.pinged.map(|pinged| after(pinged, keepalive_timeout)))
            || past(self.left.zip(grace).map(|(left, grace)| after(left, grace)))
        {
            return false;
        }
        if self.stage != Stage::Serving {
            return true;
        }
        self.calls.check_unfinished(&mut self.http);
        if !self.http.awaits_preface() {
            self.note_requests(self.last_read);
        }
        if self.left.is_none() && past(self.age) {
            self.leave(now);
        }
        if self.http.has_announced_goaway() && past(self.left.map(|left| after(left, FINAL_GOAWAY))) {
            self.http.send_final_goaway();
        }
        if self.pinged.is_none() && past(keepalive_interval.map(|interval| after(self.last_read, interval))) {
            self.http.send_ping();
            self.pinged = Some(now);
        }
        true
    }

    /// The deadline of the peer's preface and first SETTINGS.
    fn preface_deadline(&self) -> Instant {
        let end = after(self.opened, PREFACE_TIMEOUT);
        self.left.map_or(end, |left| end.min(after(left, LAST_PREFACE)))
    }
}

fn after(moment: Instant, time: Duration) -> Instant {
    moment.checked_add(time).unwrap_or(moment)
}

/// ±10 %, so that connections that were opened together are not closed together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_at_most_a_tenth() {
        let ages: Vec<_> = (0..1000).map(|_| jittered(Duration::from_secs(1000)).as_secs()).collect();
        assert!(ages.iter().all(|age| (900..=1100).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 950) && ages.iter().any(|age| *age > 1050), "{ages:?}");
    }
}
