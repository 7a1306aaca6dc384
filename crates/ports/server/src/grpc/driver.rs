//! One connection, from its first byte to its last: moves bytes between a socket and `http2`.
//!
//! All responses to one read are sent with one write. An idle connection has no buffers: the worker lends its buffers to
//! the connection that is polled. A connection works for a turn and then yields, whatever it receives. It ends at its
//! maximum age or when the service shuts down: a GOAWAY, time for open requests, then the close.

mod timers;

use std::{
    future::{self, Future},
    mem,
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use budget::Reservation;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http2::{Config, Connection, Flood, Reason};
use tokio::{io::ReadBuf, sync::watch, task::yield_now, time::Sleep};
use tracing::debug;

pub(super) use self::timers::Lifetime;
use self::timers::{STALLED, jittered};
use super::{
    activity::GrpcActivity,
    calls::{Buffers, Calls, ConnectionCalls, Http},
    framing::after,
};
use crate::{
    connections::{Closing, FAREWELL},
    socket::Socket,
};
use faults::panics;
use metrics::PeerError;

/// The time that a connection may work before it yields to the others of its worker, and to the worker's connections to
/// the store: about 250 decisions in memory. An honest client waits for one turn of each busy connection, so a
/// shorter turn means a shorter tail latency beside clients that send at full speed; but each turn has a read and a
/// write, which take a few microseconds.
const TURN: Duration = Duration::from_micros(200);

/// The size of a read: about a turn of ordinary requests.
const READ: usize = 32 * 1024;

/// The space before it for the rest of the last read: at most an incomplete frame.
const GAP: usize = 16 * 1024 + 16;

/// The size of unwritten responses at which reading stops (CVE-2019-9517).
const MAX_UNWRITTEN: usize = 64 * 1024;

/// The maximum capacity of a worker's write buffer between polls.
const MAX_KEPT: usize = 1 << 20;

/// Buffers up to this size are not charged to the budget.
const UNCHARGED: usize = 1024;

/// The time for a peer to close its side after the last byte. Closing ours earlier could reset the connection before the
/// peer has read all responses.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection until it ends; `drain` turns true to end it.
pub(super) async fn serve(
    io: impl Socket + 'static,
    calls: Rc<Calls>,
    config: Config,
    lifetime: Lifetime,
    mut drain: watch::Receiver<bool>,
    activity: Arc<GrpcActivity>,
) {
    panics::point("grpc_connection");
    let mut driver = Driver::new(io, calls, config, lifetime, activity.clone());
    // Polled only if it was woken itself, and not whenever bytes arrive.
    let mut ending = FuturesUnordered::from_iter([async {
        tokio::select! {
            _ = drain.wait_for(|drain| *drain) => None,
            closing = activity.handle.closing() => Some(closing),
        }
    }]);
    let closing = future::poll_fn(|context| match driver.poll(context) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => ending.poll_next_unpin(context),
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
    activity: Arc<GrpcActivity>,
    /// The state last reported to the registry.
    requests: Requests,
    /// The number of bytes of `http.out` that are written.
    written: usize,
    /// The bytes at the end of the last read that are not handled: an incomplete frame, or all that the turn had no time
    /// for.
    rest: Vec<u8>,
    /// The size of the incomplete frame, as far as it is known: fewer bytes are not parsed again.
    needed: usize,
    /// The time since which the same frame or header block is incomplete.
    incomplete: Option<Instant>,
    /// The charge for `rest` and for unwritten responses.
    share: Reservation,
    stage: Stage,
    lifetime: Lifetime,
    opened: Instant,
    /// The time at which the connection reaches its maximum age.
    age: Option<Instant>,
    /// The time at which its shutdown began.
    left: Option<Instant>,
    last_read: Instant,
    /// The last read left nothing, so the next one has only what arrived since.
    is_drained: bool,
    pinged: Option<Instant>,
    /// Written bytes are pending since this time, which ends when as many more are written.
    unread: Option<(Instant, usize)>,
    /// The time of the next check of responses that the peer's windows block.
    blocked_due: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// No written bytes are buffered in `io`.
    flushed: bool,
}

/// Whether a connection has requests, and what changes with each of them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Requests {
    is_idle: bool,
    last_stream: u32,
    /// The data that streaming calls have received.
    received: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    Ending,
    /// Waits until the peer closes its side.
    Lingering(Instant),
}

impl<S: Socket> Driver<S> {
    fn new(io: S, calls: Rc<Calls>, config: Config, lifetime: Lifetime, activity: Arc<GrpcActivity>) -> Self {
        let now = Instant::now();
        let share = Reservation::new(&config.budget);
        Self {
            io,
            http: Connection::new(config, now),
            calls: ConnectionCalls::new(calls, now),
            activity,
            requests: Requests { is_idle: true, last_stream: 0, received: 0 },
            written: 0,
            rest: Vec::new(),
            needed: 0,
            incomplete: None,
            share,
            stage: Stage::Serving,
            lifetime,
            opened: now,
            age: lifetime.age.and_then(|age| now.checked_add(jittered(age))),
            left: None,
            last_read: now,
            is_drained: false,
            pinged: None,
            unread: None,
            blocked_due: None,
            timer: None,
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
            mem::swap(&mut self.http.out, &mut buffers.out);
        }
        mem::swap(&mut self.calls.message, &mut buffers.message);
        let open = self.advance(context, &mut buffers).is_pending() && self.keep_unwritten(&mut buffers);
        mem::swap(&mut self.calls.message, &mut buffers.message);
        shared.buffers.set(buffers);
        if open {
            return Poll::Pending;
        }
        self.http.abandon(&mut self.calls);
        Poll::Ready(())
    }

    /// Reads, responds and writes until all of it is pending, or the turn is over.
    fn advance(&mut self, context: &mut Context<'_>, buffers: &mut Buffers) -> Poll<()> {
        self.calls.now = Instant::now();
        let end = after(self.calls.now, TURN);
        self.http.begin_turn(end);
        loop {
            let is_full = self.unwritten() > MAX_UNWRITTEN;
            let read = match self.stage {
                Stage::Serving if !is_full => self.poll_input(context, buffers),
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
            // A read that was left out for the output follows it: nothing else would wake the task for it.
            let can_go_on =
                self.stage == Stage::Serving && written.is_ready() && (is_full || self.calls.is_due());
            let has_work = read.is_ready() || can_go_on;
            if !has_work && !self.poll_timer(context) {
                return Poll::Pending;
            }
            self.calls.now = Instant::now();
            if (!has_work || self.calls.now >= end) && !self.tick() {
                return Poll::Ready(());
            }
            // Without memory for the rest, the turn continues.
            let can_keep = !self.http.is_interrupted() || self.share.resize(self.rest.capacity());
            if !can_keep {
                self.http.begin_turn(after(self.calls.now, TURN));
            } else if has_work && self.calls.now >= end {
                // Deferred by tokio until the sockets of the worker were polled, unlike a wake-up of one's own.
                let _ = pin!(yield_now()).poll(context);
                return Poll::Pending;
            }
        }
    }

    /// Handles input that an earlier turn has left, or reads once; false if the connection has ended.
    fn poll_input(&mut self, context: &mut Context<'_>, buffers: &mut Buffers) -> Poll<bool> {
        if self.http.is_interrupted() {
            let rest = mem::take(&mut self.rest);
            self.receive(&rest);
            return Poll::Ready(true);
        }
        // What a peer sent before its reset would be read first: no caller waits for the responses.
        if !self.is_drained && self.io.is_reset() {
            return Poll::Ready(false);
        }
        let Some(free) = buffers.read.get_mut(GAP..) else { return Poll::Ready(false) };
        let mut free = ReadBuf::new(free);
        let read = ready!(Pin::new(&mut self.io).poll_read(context, &mut free));
        self.is_drained = free.remaining() > 0;
        let end = GAP + free.filled().len();
        if read.is_err() || end == GAP {
            return Poll::Ready(false);
        }
        self.last_read = self.calls.now;
        self.pinged = None;
        if self.rest.len() + end - GAP < self.needed {
            self.rest.extend_from_slice(buffers.read.get(GAP..end).unwrap_or_default());
            return Poll::Ready(true);
        }
        let start = GAP - self.rest.len();
        if let Some(place) = buffers.read.get_mut(start..GAP) {
            place.copy_from_slice(&self.rest);
        }
        self.receive(buffers.read.get(start..end).unwrap_or_default());
        Poll::Ready(true)
    }

    fn receive(&mut self, bytes: &[u8]) {
        let was_mid_block = self.http.is_mid_block();
        match self.http.receive(bytes, self.calls.now, &mut self.calls) {
            Ok(taken) => {
                self.keep_rest(bytes.get(taken..).unwrap_or_default());
                self.needed = self.http.frame_size(&self.rest);
                let is_new = taken > 0 && !was_mid_block;
                let is_incomplete = !self.rest.is_empty() || self.http.is_mid_block();
                let since = self.incomplete.filter(|_| !is_new).unwrap_or(self.calls.now);
                self.incomplete = is_incomplete.then_some(since);
            }
            Err(reason) => self.fail(reason),
        }
        self.calls.after_read();
        if !self.http.awaits_preface() {
            self.activity.handle.ready(self.calls.now);
            self.note_requests(self.calls.now);
            if self.left.is_some() {
                self.http.announce_goaway();
            }
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.http.abandon(&mut self.calls);
        let error = self.http.fail(reason).map_or(PeerError::Protocol, of_flood);
        self.calls.calls.parts.stats.service().peer_errors(error).increment();
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
        if self.http.is_over() {
            // Responses have as much time as requests, so that they do not fall behind.
            self.http.begin_turn(after(Instant::now(), TURN));
        }
        self.calls.poll(&mut self.http, context);
        self.note_requests(self.calls.now);
    }

    /// Reports to the registry whether a request is open. A peer has been idle since its last request, even if it has sent
    /// a PING or the acknowledgement of our SETTINGS since. A quiet streaming call is no request. A connection that is
    /// closing does not wait for it either.
    fn note_requests(&mut self, now: Instant) {
        let quiet = self.calls.streaming.quiet(&mut self.http);
        let seen = Requests {
            is_idle: self.http.open_streams() == quiet,
            last_stream: self.http.last,
            received: self.calls.streaming.received,
        };
        if seen.is_idle && quiet > 0 && self.left.is_some() {
            self.calls.end_streams(&mut self.http);
        }
        let before = mem::replace(&mut self.requests, seen);
        if !seen.is_idle {
            self.activity.handle.busy();
        } else if before != seen {
            self.activity.handle.idle(now);
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        while let Some(bytes) = self.http.out.get(self.written..).filter(|bytes| !bytes.is_empty()) {
            match Pin::new(&mut self.io).poll_write(context, bytes) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    self.written += written;
                    self.flushed = false;
                    self.unread =
                        self.unread.and_then(|(since, left)| Some((since, left.checked_sub(written)?)));
                }
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending => return self.note_unread(),
            }
        }
        self.http.out.clear();
        self.written = 0;
        if !self.flushed {
            match Pin::new(&mut self.io).poll_flush(context) {
                Poll::Ready(flushed) => self.flushed = flushed.is_ok(),
                Poll::Pending => return self.note_unread(),
            }
        }
        self.unread = None;
        if self.http.has_blocked() && self.blocked_due.is_none() {
            self.blocked_due = Some(after(self.calls.now, STALLED));
        }
        Poll::Ready(self.flushed)
    }

    /// Starts the time in which the peer has to read. Besides what is unwritten, TLS buffers as much.
    fn note_unread(&mut self) -> Poll<bool> {
        let left = self.unwritten().max(MAX_UNWRITTEN);
        self.unread.get_or_insert((self.calls.now, left));
        Poll::Pending
    }

    fn unwritten(&self) -> usize {
        self.http.out.len() - self.written
    }

    /// Returns the lent buffer and copies its unwritten bytes; false if the budget does not allow them.
    fn keep_unwritten(&mut self, buffers: &mut Buffers) -> bool {
        let mut out = mem::take(&mut self.http.out);
        if let Some(unwritten) = out.get(self.written..).filter(|unwritten| !unwritten.is_empty()) {
            self.http.out = unwritten.to_vec();
        }
        self.written = 0;
        out.clear();
        if out.capacity() > buffers.out.capacity() && out.capacity() <= MAX_KEPT {
            buffers.out = out;
        }
        let held = self.http.out.capacity() + self.rest.capacity();
        self.share.resize(if held > UNCHARGED { held } else { 0 })
    }
}

fn of_flood(flood: Flood) -> PeerError {
    match flood {
        Flood::Headers => PeerError::HeaderFlood,
        Flood::Data => PeerError::DataFlood,
        Flood::Malformed => PeerError::MalformedFlood,
        Flood::Refused => PeerError::RefusedFlood,
        Flood::Resets => PeerError::ResetFlood,
        Flood::ClosedStreams => PeerError::ClosedStreamFlood,
        Flood::Pings => PeerError::PingFlood,
        Flood::Settings => PeerError::SettingsFlood,
        Flood::Priorities => PeerError::PriorityFlood,
        Flood::WindowUpdates => PeerError::WindowUpdateFlood,
        Flood::Others => PeerError::OtherFlood,
    }
}
