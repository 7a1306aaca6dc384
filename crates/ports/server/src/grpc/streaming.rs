//! Streaming calls, whatever their method: those that watch the health, reflection, and RLQS.
//!
//! They last as long as the caller likes, so their number is bounded, and a connection without other calls counts as idle.
//! Messages are taken in parts as they arrive, for at most a turn. A call sends only while the peer's windows have room,
//! so it holds at most its receive window and one response.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use budget::{Budget, Reservation};
use http2::{
    End,
    meter::{Work, count},
};
use tonic::Status;

use super::{
    calls::{Call, Calls, ConnectionCalls, Http},
    framing::{HEAD_BLOCK, TRAILERS, after},
    status::{self, Failure, end_with_failure},
    unfinished::{Partial, late},
};
use faults::panics::{self, Boundary, Panicked};
use metrics::RejectReason;

/// The maximum number of streaming calls on a connection. A client needs one to
/// watch the health and one to read the descriptors, and an Envoy one for each domain whose limits it divides.
const MAX_STREAMING: usize = 16;

/// The least work for a part of a message, in the bytes of requests that cost as much.
const COST: usize = 1024;

/// What a method does with a streaming call. A further method is a file with an implementation, and its rows in `rpc`.
pub(super) trait StreamMethod {
    /// Takes the next part of what the caller sent: a message, or a part of one. `None` if the part is incomplete.
    fn take(&mut self, unread: &[u8], calls: &Calls) -> Result<Option<Part>, Failure>;

    /// True while the caller owes the rest of a message, even if all that it sent is taken.
    fn is_within_message(&self) -> bool {
        false
    }

    /// True if parts are taken while the peer does not read, because none has an answer.
    fn takes_while_blocked(&self) -> bool {
        false
    }

    /// True if the call lasts when the caller has ended its side.
    fn outlasts_request(&self) -> bool {
        false
    }

    /// The next message, with its prefix, that answers no message of the caller.
    fn poll_message(&mut self, _context: &mut Context<'_>) -> Poll<Vec<u8>> {
        Poll::Pending
    }

    /// When to end the call on a connection that is closing, if not at once.
    fn end_at(&self) -> Option<Instant> {
        None
    }
}

/// A part of a caller's message that was taken.
pub(super) struct Part {
    pub(super) length: usize,
    /// What to send for it, with its prefix.
    pub(super) answer: Option<Vec<u8>>,
    /// It earns back the token of the frame that brought it.
    pub(super) pays_for_frame: bool,
}

pub(super) struct StreamingCall {
    method: Box<dyn StreamMethod>,
    unread: Partial,
    /// The time of the last progress.
    since: Instant,
    /// The caller has ended its side.
    ended: bool,
}

impl StreamingCall {
    pub(super) fn new(method: Box<dyn StreamMethod>, share: Reservation, now: Instant) -> Self {
        Self { method, unread: Partial::new(share), since: now, ended: false }
    }

    fn is_within_message(&self) -> bool {
        !self.unread.bytes.is_empty() || self.method.is_within_message()
    }

    /// True while nothing is owed to the caller or by it.
    fn is_quiet(&self) -> bool {
        !self.is_within_message() && (!self.ended || self.method.outlasts_request())
    }

    /// The time at which the message that is incomplete has to be complete, if there is one.
    pub(super) fn deadline(&self, receive_timeout: Duration) -> Option<Instant> {
        self.is_within_message().then(|| after(self.since, receive_timeout))
    }
}

/// The streaming calls of a connection.
pub(super) struct Streaming {
    /// Their streams; some may have ended.
    ids: Vec<u32>,
    share: Reservation,
    /// They have something to do that the last turn had no time for.
    pub(super) resume: bool,
    /// Counts the data that arrived, which keeps the connection from being idle.
    pub(super) received: u32,
}

impl Streaming {
    pub(super) fn new(of_all_connections: &Arc<Budget>) -> Self {
        Self { ids: Vec::new(), share: Reservation::new(of_all_connections), resume: false, received: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The number of open calls in which nothing is pending. Forgets those that have ended.
    pub(super) fn quiet(&mut self, http: &mut Http) -> usize {
        if self.ids.is_empty() {
            return 0;
        }
        count(Work::Visited, self.ids.len());
        let mut quiet = 0_usize;
        self.ids.retain(|id| {
            let Some(Call::Streaming(call)) = http.call(*id) else { return false };
            quiet += usize::from(call.is_quiet());
            true
        });
        self.share.resize(self.ids.len());
        quiet
    }

    fn admit(&mut self, http: &mut Http, id: u32) -> bool {
        if self.ids.len() >= MAX_STREAMING {
            self.quiet(http);
        }
        let is_admitted = self.ids.len() < MAX_STREAMING && self.share.resize(self.ids.len() + 1);
        if is_admitted {
            self.ids.push(id);
        }
        is_admitted
    }
}

impl ConnectionCalls {
    /// Begins the call of a stream that is open.
    pub(super) fn begin_stream(
        &mut self,
        http: &mut Http,
        id: u32,
        method: Box<dyn StreamMethod>,
    ) -> Result<(), Failure> {
        if !self.streaming.admit(http, id) {
            self.calls.parts.stats.service().refused(RejectReason::StreamingCalls).increment();
            let message = format!(
                "too many streaming calls: the maximum is {MAX_STREAMING} on a connection, and GRPC_MAX_CONNECTIONS on all"
            );
            return Err(Status::resource_exhausted(message).into());
        }
        let call = StreamingCall::new(method, Reservation::new(&self.calls.parts.inflight), self.now);
        if let Some(deadline) = call.deadline(self.calls.receive_timeout) {
            self.set_timer(deadline);
        }
        if let Some(begun) = http.call(id) {
            *begun = Call::Streaming(Box::new(call));
        }
        http.send_head(id, HEAD_BLOCK, false);
        Ok(())
    }

    pub(super) fn stream_data(&mut self, http: &mut Http, id: u32, data: &[u8], end: bool) {
        let Some(Call::Streaming(call)) = http.call(id) else { return };
        if !call.is_within_message() {
            call.since = self.now;
        }
        self.streaming.received = self.streaming.received.wrapping_add(1);
        call.ended |= end;
        match call.unread.append(data, None, &self.calls.parts.stats) {
            Ok(()) => self.advance_stream(http, id),
            Err(failure) => end_stream(http, id, end_with_failure(&failure)),
        }
    }

    pub(super) fn advance_streams(&mut self, http: &mut Http) {
        self.streaming.resume = false;
        for id in self.streaming.ids.clone() {
            count(Work::Polled, 1);
            self.advance_stream(http, id);
        }
    }

    /// Takes what the caller has sent, and sends what it is owed, until the turn is over.
    fn advance_stream(&mut self, http: &mut Http, id: u32) {
        let Some(call @ Call::Streaming(_)) = http.call(id) else { return };
        let Call::Streaming(mut call) = mem::replace(call, Call::Answered) else { return };
        let end = panics::catch(Boundary::GrpcRequest, || {
            panics::point("grpc_request_other");
            let has_taken_all = self.take_parts(http, id, &mut call)?;
            self.send_messages(http, id, &mut call);
            if !has_taken_all || !call.ended {
                return Ok(None);
            }
            if call.is_within_message() {
                return Err(status::truncated().into());
            }
            Ok((!call.method.outlasts_request()).then(|| End::Trailers(TRAILERS.into())))
        });
        let end = end.unwrap_or_else(|Panicked| Err(status::internal_error().into()));
        if let Some(end) = end.unwrap_or_else(|failure| Some(end_with_failure(&failure))) {
            return http.send_data(id, &[], end);
        }
        if let Some(deadline) = call.deadline(self.calls.receive_timeout) {
            self.set_timer(deadline);
        }
        // The stream is reset if its response exceeds the budget.
        if let Some(advanced) = http.call(id) {
            *advanced = Call::Streaming(call);
        }
    }

    /// False if the turn or the peer's windows end before all is taken.
    fn take_parts(&mut self, http: &mut Http, id: u32, call: &mut StreamingCall) -> Result<bool, Failure> {
        let mut bytes = mem::take(&mut call.unread.bytes);
        let mut rest = &*bytes;
        let taken = loop {
            if http.is_blocked(id) && !call.method.takes_while_blocked() {
                break Ok(false);
            }
            if http.is_over() && !rest.is_empty() {
                self.streaming.resume = true;
                break Ok(false);
            }
            let part = match call.method.take(rest, &self.calls) {
                Ok(Some(part)) => part,
                Ok(None) => break Ok(true),
                Err(failure) => break Err(failure),
            };
            rest = rest.get(part.length..).unwrap_or_default();
            call.since = self.now;
            http.spend(part.length.max(COST));
            if part.pays_for_frame {
                http.served();
            }
            if let Some(answer) = part.answer {
                http.send_data(id, &answer, End::Open);
                http.spend(answer.len());
            }
        };
        let read = bytes.len() - rest.len();
        count(Work::Copied, rest.len());
        bytes.drain(..read);
        let held = bytes.len();
        call.unread.replace(bytes);
        if read > 0 {
            http.restore_window(id, held);
        }
        taken
    }

    fn send_messages(&mut self, http: &mut Http, id: u32, call: &mut StreamingCall) {
        let waker = self.waker();
        while !http.is_blocked(id) {
            if http.is_over() {
                self.streaming.resume = true;
                return;
            }
            let Poll::Ready(message) = call.method.poll_message(&mut Context::from_waker(&waker)) else {
                return;
            };
            http.send_data(id, &message, End::Open);
            http.spend(message.len());
        }
    }

    /// Ends a call whose message was not complete in time.
    pub(super) fn expire_stream(&mut self, http: &mut Http, id: u32) {
        let Some(Call::Streaming(call)) = http.call(id) else { return };
        let takes_while_blocked = call.method.takes_while_blocked();
        // While the peer does not read the last response, that is late and not the message.
        if takes_while_blocked || !http.is_blocked(id) {
            end_stream(http, id, end_with_failure(&late(self.calls.receive_timeout).into()));
        }
    }

    /// Ends the calls of a connection that is closing, after their last messages.
    pub(super) fn end_streams(&mut self, http: &mut Http) {
        let failure = Status::unavailable("the connection is closing").into();
        for id in mem::take(&mut self.streaming.ids) {
            self.advance_stream(http, id);
            let end_at = match http.call(id) {
                Some(Call::Streaming(call)) => call.method.end_at().filter(|at| *at > self.now),
                _ => None,
            };
            if let Some(at) = end_at {
                self.set_timer(at);
                self.streaming.ids.push(id);
            } else {
                end_stream(http, id, end_with_failure(&failure));
            }
        }
    }
}

fn end_stream(http: &mut Http, id: u32, end: End) {
    if let Some(call) = http.call(id) {
        *call = Call::Answered;
    }
    http.send_data(id, &[], end);
}
