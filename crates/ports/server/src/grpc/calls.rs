//! The calls of the gRPC port.
//!
//! Calls that ask for a decision are decided here: one that its store answers at once is decoded, decided and encoded without a
//! task of its own. A call that waits for its store is in `waiting`, and one whose message arrives in pieces in `unfinished`.
//! `health_checks` answers checks, `streaming` has the calls that last, and a call of any other method is rejected at its
//! head. The connection's `driver` polls them.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use budget::Budget;
use http2::{Connection, Service};
use tokio::sync::watch;
use tonic::Status;

use super::{
    Parts,
    framing::{self, PREFIX},
    head::{Fields, Head, Route},
    request_head::{RequestHead, finish_span},
    rpc::Rpc,
    status::{self, Failure, send_failure},
    streaming::{Streaming, StreamingCall},
    unfinished::Partial,
    waiting::{Signal, Waiting},
};
use crate::{
    traced,
    wire::{self, DecisionRpc},
};
use clock::Time;
use faults::panics::{self, Boundary, Panicked};
use limiter::{Decided, HoldToken, Request, RequestError};
use metrics::{CallerLeft, Method};

pub(super) type Http = Connection<ConnectionCalls>;

/// What all calls of a worker share.
pub(super) struct Calls {
    pub(super) parts: Parts,
    pub(super) max_request_bytes: usize,
    pub(super) receive_timeout: Duration,
    pub(super) health: watch::Receiver<bool>,
    /// The streaming calls of all connections, counted in calls instead of bytes.
    pub(super) streaming: Arc<Budget>,
    pub(super) buffers: Cell<Buffers>,
}

/// Buffers that the connections of a worker share: only one is polled at a time.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) read: Vec<u8>,
    pub(super) out: Vec<u8>,
    pub(super) message: Vec<u8>,
}

/// A call with one message, which is not complete.
pub(super) struct Unary {
    pub(super) rpc: Rpc,
    pub(super) head: RequestHead,
    pub(super) partial: Option<Box<Partial>>,
}

impl Unary {
    /// The time at which the message has to be complete.
    pub(super) fn deadline(&self, receive_timeout: Duration) -> Instant {
        let timeout = self.head.timeout.map_or(receive_timeout, |timeout| timeout.min(receive_timeout));
        framing::after(self.head.begun, timeout)
    }
}

/// The state of a call while its stream is open.
#[derive(Default)]
pub(super) enum Call {
    Unary(Unary),
    /// The store is counting; the key in `waiting`.
    Waiting(usize),
    Streaming(Box<StreamingCall>),
    #[default]
    Answered,
}

pub(super) struct ConnectionCalls {
    pub(super) calls: Rc<Calls>,
    pub(super) now: Instant,
    /// The time at which all calls of this read are decided.
    time: Option<Time>,
    /// The time of the next check of unfinished messages.
    pub(super) due: Option<Instant>,
    signal: Arc<Signal>,
    waiting: Waiting,
    pub(super) streaming: Streaming,
    pub(super) message: Vec<u8>,
    /// What the request of the message holds, until the message is sent.
    hold: Option<Box<HoldToken>>,
    unfinished: u32,
    /// Responses to calls of the last read, all of which have this method and timeout.
    answered: u32,
    method: Method,
    timeout: Option<Duration>,
}

impl Service for ConnectionCalls {
    type Fields = Fields;
    type Head = Head;
    type Call = Call;

    fn field(&self, fields: &mut Fields, name: &[u8], value: &[u8]) {
        fields.add(name, value, self.calls.parts.tracer.is_some());
    }

    fn head(&self, fields: Fields) -> Head {
        fields.finish(self.calls.parts.tracer.is_some())
    }

    fn open(&mut self, http: &mut Http, id: u32, head: &Head) {
        let begun = panics::catch(Boundary::GrpcRequest, || self.begin(http, id, head));
        if let Err(failure) = begun.unwrap_or_else(|Panicked| Err(status::internal_error().into())) {
            send_failure(http, id, &failure);
        }
    }

    fn data(&mut self, http: &mut Http, id: u32, data: &[u8], end: bool) {
        let Some(call) = http.call(id) else { return };
        match call {
            Call::Unary(Unary { rpc: Rpc::NotGrpc, .. }) => {
                if end && self.take(http, id).is_some() {
                    status::send_not_grpc(http, id);
                }
            }
            Call::Unary(unary) if end && unary.partial.is_none() => {
                if let Some(unary) = self.take(http, id) {
                    self.decide(http, id, unary, data);
                }
            }
            Call::Unary(_) => self.collect(http, id, data, end),
            Call::Streaming(_) => self.stream_data(http, id, data, end),
            Call::Waiting(_) | Call::Answered => {}
        }
    }

    fn complete(&mut self, http: &mut Http, id: u32, head: &Head, framed: &[u8]) {
        let Route::Rpc(Rpc::Decision(rpc)) = head.route else {
            return self.open_and_complete(http, id, head, framed);
        };
        let decided = panics::catch(Boundary::GrpcRequest, || {
            let mut call = self.request_head(Some(rpc), head);
            let decided = self.try_decide(rpc, &mut call, framed);
            (call, decided)
        });
        let (call, failure) = match decided {
            Ok((call, Ok(Some(decision)))) => {
                let key = self.waiting.add(id, rpc, call, decision);
                return http.open_complete(id, Call::Waiting(key));
            }
            Ok((call, Ok(None))) => {
                self.count_answered(rpc, call.timeout);
                if !http.answer_complete(id, &framing::OK, &self.message) {
                    http.open_complete(id, Call::Answered);
                    http.answer(id, &framing::OK, &self.message);
                }
                self.deliver();
                return;
            }
            Ok((call, Err(failure))) => (Some(call), failure),
            Err(Panicked) => (None, status::internal_error().into()),
        };
        self.count_answered(rpc, head.timeout);
        finish_span(call.and_then(|call| call.span), Some(&failure));
        http.open_complete(id, Call::Answered);
        send_failure(http, id, &failure);
    }

    fn closed(&mut self, call: Call) {
        match call {
            Call::Waiting(key) => self.waiting.remove(key),
            Call::Unary(_) => self.finish_unary(),
            Call::Streaming(_) | Call::Answered => {}
        }
    }

    fn reset_after_response(&mut self) {
        self.calls.parts.stats.service().callers_left(CallerLeft::Sent).increment();
    }
}

impl ConnectionCalls {
    fn begin(&mut self, http: &mut Http, id: u32, head: &Head) -> Result<(), Failure> {
        let rpc = match head.route {
            Route::Rpc(rpc) => rpc,
            Route::NotPost(rpc) => {
                self.count_answered(rpc, head.timeout);
                return Err(Status::internal("the method is not POST").into());
            }
            Route::NoSuchMethod => {
                return Err(Status::unimplemented("the service has no such method").into());
            }
        };
        if let Some(method) = rpc.stream_method(&self.calls) {
            return self.begin_stream(http, id, method);
        }
        let decision = if let Rpc::Decision(decision) = rpc { Some(decision) } else { None };
        let unary = Unary { rpc, head: self.request_head(decision, head), partial: None };
        self.set_timer(unary.deadline(self.calls.receive_timeout));
        if let Some(call) = http.call(id) {
            *call = Call::Unary(unary);
            self.unfinished += 1;
        }
        Ok(())
    }

    fn request_head(&self, rpc: Option<DecisionRpc>, head: &Head) -> RequestHead {
        panics::point("grpc_request_head");
        let traced = rpc.zip(head.traced.as_deref());
        RequestHead::new(self.now, head.timeout, traced, self.calls.parts.tracer.as_ref())
    }

    pub(super) fn new(calls: Rc<Calls>, now: Instant) -> Self {
        let signal = Arc::<Signal>::default();
        Self {
            streaming: Streaming::new(&calls.streaming),
            waiting: Waiting::new(signal.clone()),
            signal,
            calls,
            now,
            time: None,
            due: None,
            message: Vec::new(),
            hold: None,
            unfinished: 0,
            answered: 0,
            method: Method::ShouldRateLimit,
            timeout: None,
        }
    }

    /// Takes an unfinished call, to decide or reject it.
    pub(super) fn take(&mut self, http: &mut Http, id: u32) -> Option<Unary> {
        match std::mem::replace(http.call(id)?, Call::Answered) {
            Call::Unary(unary) => {
                self.finish_unary();
                Some(unary)
            }
            _ => None,
        }
    }

    /// Decides a call whose message is complete.
    pub(super) fn decide(&mut self, http: &mut Http, id: u32, mut unary: Unary, framed: &[u8]) {
        let rpc = match unary.rpc {
            Rpc::Decision(rpc) => rpc,
            Rpc::Check => return self.check(http, id, &unary.head, framed),
            Rpc::NotGrpc | Rpc::Watch | Rpc::Reflection | Rpc::Quota => {
                unreachable!("{:?} has no message that is decided as a whole", unary.rpc)
            }
        };
        let decided = panics::catch(Boundary::GrpcRequest, || self.try_decide(rpc, &mut unary.head, framed));
        match decided.unwrap_or_else(|Panicked| Err(status::internal_error().into())) {
            Ok(None) => {
                http.answer(id, &framing::OK, &self.message);
                self.deliver();
                self.count(rpc, &unary);
            }
            Ok(Some(decision)) => {
                let key = self.waiting.add(id, rpc, unary.head, decision);
                if let Some(call) = http.call(id) {
                    *call = Call::Waiting(key);
                }
            }
            Err(failure) => self.fail(http, id, unary, &failure),
        }
    }

    /// Decides a call and writes the framed response to `self.message`, or returns the decision that waits for the store.
    fn try_decide(
        &mut self,
        rpc: DecisionRpc,
        call: &mut RequestHead,
        framed: &[u8],
    ) -> Result<Option<limiter::Waiting>, Failure> {
        let limiter = &self.calls.parts.limiter;
        let message = self.calls.message_of(Rpc::Decision(rpc), framed)?;
        panics::point("grpc_request");
        let time = *self.time.get_or_insert_with(|| limiter.now());
        let mut escaped = Vec::new();
        let mut request = Request::default();
        wire::read(rpc, message, limiter.policy().bounds, &mut escaped, &mut request)
            .map_err(|error| framing::malformed(rpc, error))?;
        let until = call.until();
        let decided = traced::try_decide(limiter, call.span.as_deref_mut(), &request, time, until);
        match decided {
            Ok(Decided::Answer(mut answer)) => {
                write_message(&mut self.message, |message| rpc.encode(&answer, message));
                self.hold = answer.hold.take();
            }
            Ok(Decided::Wait(decision)) => return Ok(Some(decision)),
            Err(RequestError::NoDomain) if rpc.is_kuadrants() => write_message(&mut self.message, |_| ()),
            Err(error) => return Err(status::of_error(rpc, &error).into()),
        }
        finish_span(call.span.take(), None);
        Ok(None)
    }

    pub(super) fn after_read(&mut self) {
        self.time = None;
        self.count_read();
        if self.unfinished == 0 && self.streaming.is_empty() {
            self.due = None;
        }
    }

    /// True if [`poll`](Self::poll) has work that no wake-up announces.
    pub(super) fn is_due(&self) -> bool {
        (self.streaming.resume && !self.streaming.is_empty()) || self.waiting.is_due()
    }

    pub(super) fn fail(&mut self, http: &mut Http, id: u32, unary: Unary, failure: &Failure) {
        match unary.rpc {
            Rpc::Decision(rpc) => self.count(rpc, &unary),
            Rpc::Check => self.count_check(&unary.head),
            Rpc::Watch | Rpc::Reflection | Rpc::Quota | Rpc::NotGrpc => {}
        }
        finish_span(unary.head.span, Some(failure));
        send_failure(http, id, failure);
    }

    /// The response is in the connection's buffer.
    fn deliver(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.delivered();
        }
    }

    /// Counts a response to a call of this read. Nearly always all calls of a read have one method and timeout.
    fn count_answered(&mut self, rpc: DecisionRpc, timeout: Option<Duration>) {
        let method = rpc.method();
        if self.timeout != timeout || self.method != method {
            self.count_read();
            self.timeout = timeout;
            self.method = method;
        }
        self.answered += 1;
    }

    fn count_read(&mut self) {
        match std::mem::take(&mut self.answered) {
            0 => {}
            answered => self.calls.count(self.method, answered, self.now.elapsed(), self.timeout),
        }
    }

    #[expect(clippy::expect_used, reason = "`begin` has counted each unary call")]
    fn finish_unary(&mut self) {
        self.unfinished = self.unfinished.checked_sub(1).expect("an unfinished call was counted");
    }

    /// Counts a call. Calls that arrived with the last read share one reading of the clock.
    fn count(&mut self, rpc: DecisionRpc, unary: &Unary) {
        if unary.head.begun == self.now {
            self.count_answered(rpc, unary.head.timeout);
        } else {
            self.calls.count(rpc.method(), 1, unary.head.begun.elapsed(), unary.head.timeout);
        }
    }

    /// Sends the responses of calls that are decided, and advances streaming calls, until the turn is over.
    pub(super) fn poll(&mut self, http: &mut Http, context: &Context<'_>) {
        if self.waiting.is_empty() && self.streaming.is_empty() && !self.waiting.is_due() {
            return;
        }
        self.signal.register(context.waker());
        let woken = self.signal.take();
        let unblocked = http.take_unblocked();
        if woken || self.waiting.is_due() {
            self.answer_decided(http, woken);
        }
        if !self.streaming.is_empty() && (woken || unblocked || self.streaming.resume) {
            self.advance_streams(http);
        }
    }

    fn answer_decided(&mut self, http: &mut Http, woken: bool) {
        let calls = &self.calls;
        let message = &mut self.message;
        let now = Instant::now();
        self.waiting.poll(woken, |id, rpc, head, decided| {
            calls.count(rpc.method(), 1, now.saturating_duration_since(head.begun), head.timeout);
            // The key may be reused while the response is blocked.
            if let Some(call) = http.call(id) {
                *call = Call::Answered;
            }
            match decided {
                Ok(mut answer) => {
                    write_message(message, |message| rpc.encode(&answer, message));
                    http.answer(id, &framing::OK, message);
                    if let Some(hold) = answer.hold.take() {
                        hold.delivered();
                    }
                }
                Err(failure) => send_failure(http, id, &failure),
            }
            !http.spend(message.len())
        });
    }

    pub(super) fn waker(&self) -> Waker {
        self.signal.clone().into()
    }
}

impl Calls {
    /// The message after its prefix.
    pub(super) fn message_of<'m>(&self, rpc: Rpc, framed: &'m [u8]) -> Result<&'m [u8], Failure> {
        let message = framed.get(PREFIX..).unwrap_or_default();
        match self.length(rpc, framed)? {
            Some(length) if message.len() > length => Err(status::too_many_messages().into()),
            Some(length) if message.len() == length => Ok(message),
            _ => Err(status::truncated().into()),
        }
    }

    /// The length of a message, if its prefix is complete.
    pub(super) fn length(&self, rpc: Rpc, framed: &[u8]) -> Result<Option<usize>, Failure> {
        let max = rpc.max_request(self.max_request_bytes);
        framed.first_chunk().map(|prefix| framing::length(*prefix, max, &self.parts.stats)).transpose()
    }

    /// The message that begins these bytes, if it is complete.
    pub(super) fn first_message<'m>(&self, rpc: Rpc, framed: &'m [u8]) -> Result<Option<&'m [u8]>, Failure> {
        let length = self.length(rpc, framed)?;
        Ok(length.and_then(|length| framed.get(PREFIX..)?.get(..length)))
    }

    fn count(&self, method: Method, calls: u32, took: Duration, timeout: Option<Duration>) {
        let service = self.parts.stats.service();
        if timeout.is_some_and(|timeout| took > timeout) {
            service.late_responses.add(calls.into());
        }
        service.requests(method).add(calls.into());
        service.response_time(method).observe_many(took, calls.into());
    }
}

/// Writes a response with its prefix, replacing the content of `into`.
#[expect(
    clippy::expect_used,
    reason = "the prefix is written first, and answers are bounded by the request's bounds"
)]
fn write_message(into: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
    panics::point("grpc_response_body");
    into.clear();
    into.extend_from_slice(&[0; PREFIX]);
    encode(into);
    let ([_, place @ ..], message) =
        into.split_first_chunk_mut::<PREFIX>().expect("the message begins after its prefix");
    let length = u32::try_from(message.len()).expect("a response is shorter than 4 GiB");
    *place = length.to_be_bytes();
}
