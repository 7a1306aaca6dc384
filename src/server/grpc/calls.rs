//! What the gRPC port answers: `ShouldRateLimit` in place, everything else through tonic's router.
//!
//! A call whose message came in one piece, on a store that answers at once, is decoded, decided and encoded
//! without an allocation or a task of its own. A call that waits for its store is kept in `waiting`, one for
//! which another service answers in `aux`, one whose message comes in pieces in `unfinished`. The connection's `driver`
//! polls them.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::Context,
    time::{Duration, Instant},
};

use http::HeaderMap;
use tonic::Status;

use super::{
    aux_services::AuxCalls,
    framing::{self, Fault, PREFIX},
    http2::{Budget, Connection, End, Head, Reason as ResetReason, Route, Service, hpack},
    request_head::RequestHead,
    traced,
    unfinished::Unary,
    waiting::{Decision, Signal, Waiting},
};
use crate::{
    clock::Time,
    limiter::{Answer, Limiter},
    panics::{self, Boundary, Panicked, caught},
    server::wire,
    telemetry::{
        metrics::{Method, Stats},
        tracing::Tracer,
    },
};

/// The path of the call that is answered in place.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What the calls of a worker are answered with.
pub(super) struct Calls {
    pub(super) limiter: Arc<Limiter>,
    pub(super) stats: Arc<Stats>,
    /// Where spans go, if there are any.
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) max_request_bytes: usize,
    /// A message must be complete in this time.
    pub(super) receive_timeout: Duration,
    pub(super) budget: Arc<Budget>,
    /// Health, reflection, and the answer to calls that do not exist.
    pub(super) routes: tonic::service::Routes,
    /// Lent to the connection that is being served.
    pub(super) buffers: Cell<Buffers>,
    pub(super) tries: Tries,
}

/// Whether calls are tried to be decided without waiting for the store. After some that could not be, few are tried: a
/// try costs as much as planning the request.
#[derive(Default)]
pub(super) struct Tries {
    failed: Cell<u8>,
}

impl Tries {
    /// After so many failures in a row, one of as many calls is tried.
    const FEW: u8 = 16;

    fn is_next(&self) -> bool {
        let failed = self.failed.get();
        if failed < Self::FEW {
            return true;
        }
        self.failed.set(if failed >= 2 * Self::FEW {
            Self::FEW.saturating_sub(1)
        } else {
            failed.saturating_add(1)
        });
        false
    }

    fn record(&self, is_decided: bool) {
        self.failed.set(if is_decided { 0 } else { self.failed.get().saturating_add(1) });
    }
}

/// Buffers that the connections of a worker share: only one is served at a time.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) read: Vec<u8>,
    pub(super) out: Vec<u8>,
    pub(super) message: Vec<u8>,
}

/// What is kept of a call while its stream is open.
pub(super) enum Call {
    /// Its message is being received.
    Unary(Unary),
    /// Its counters are being looked up; the place in `waiting`.
    Waiting(usize),
    /// Another service answers it; the place in `aux`.
    Aux(usize),
    /// It is being answered.
    Answered,
    /// Its head could not be read.
    Panicked,
}

/// What became of a call whose message is complete.
enum Decided<'m> {
    Answered,
    Fault(Fault),
    /// Its message is to be decided when the store has answered.
    Later(&'m [u8]),
}

/// The calls of one connection.
pub(super) struct ConnectionCalls {
    pub(super) calls: Rc<Calls>,
    pub(super) now: Instant,
    /// The time of day at which the calls of this read are decided, once one is.
    time: Option<Time>,
    /// When to look at unfinished messages.
    pub(super) due: Option<Instant>,
    pub(super) waiting: Waiting,
    pub(super) aux: AuxCalls,
    /// Encodes one answer after the other.
    pub(super) message: Vec<u8>,
    /// Calls whose message is not complete.
    unfinished: u32,
    /// Some of them are new.
    opened: bool,
    /// Answers to calls that came with the last read.
    answered: u32,
}

impl Service for ConnectionCalls {
    type Call = Call;

    fn open(&mut self, id: u32, head: &Head) -> Call {
        if head.route == Route::Other {
            return self.aux.open(id, head, &self.calls, self.now);
        }
        panics::catch(Boundary::GrpcRequest, || self.begin(head)).unwrap_or(Call::Panicked)
    }

    fn data(&mut self, http: &mut Connection<Call>, id: u32, data: &[u8], end: bool) {
        let Some(call) = http.call(id) else { return };
        match call {
            Call::Unary(unary) if end && unary.partial.is_none() => {
                if let Some(unary) = self.take(http, id) {
                    self.decide(http, id, unary, data);
                }
            }
            Call::Unary(_) => self.gather(http, id, data, end),
            Call::Aux(place) => self.aux.data(*place, http, data, end),
            Call::Panicked if end => send_fault(http, id, &framing::internal_error().into()),
            Call::Waiting(_) | Call::Answered | Call::Panicked => {}
        }
    }

    fn complete(&mut self, http: &mut Connection<Call>, id: u32, head: &Head, framed: &[u8]) {
        let decided = panics::catch(Boundary::GrpcRequest, || {
            let call = self.request_head(head);
            let decided = self.decide_now(head.route, &call, framed);
            (call, decided)
        });
        let (call, decided) = match decided {
            Ok((call, Decided::Later(message))) => {
                let place = self.wait(id, call, message);
                return http.open_complete(id, Call::Waiting(place));
            }
            Ok((call, decided)) => (Some(call), decided),
            Err(Panicked) => (None, Decided::Fault(framing::internal_error().into())),
        };
        self.answered = self.answered.saturating_add(1);
        let Decided::Fault(fault) = decided else {
            if !http.send_complete(id, &self.message) {
                http.open_complete(id, Call::Answered);
                http.send_message(id, &self.message);
            }
            return;
        };
        if let Some(span) = call.and_then(|call| call.span) {
            traced::finish(span, Some(&fault));
        }
        http.open_complete(id, Call::Answered);
        send_fault(http, id, &fault);
    }

    fn closed(&mut self, call: Call) {
        match call {
            Call::Waiting(place) => self.waiting.remove(place),
            Call::Aux(place) => self.aux.remove(place),
            Call::Unary(_) => self.unfinished = self.unfinished.saturating_sub(1),
            Call::Answered | Call::Panicked => {}
        }
    }
}

impl ConnectionCalls {
    fn begin(&mut self, head: &Head) -> Call {
        let call = self.request_head(head);
        self.unfinished = self.unfinished.saturating_add(1);
        self.opened = true;
        Call::Unary(Unary { head: call, route: head.route, partial: None })
    }

    fn request_head(&self, head: &Head) -> RequestHead {
        panics::point("grpc_request_head");
        let headers = head.fields.as_ref().map(|fields| &fields.headers);
        RequestHead::new(self.now, head.timeout, headers, self.calls.tracer.as_ref())
    }

    pub(super) fn new(calls: Rc<Calls>, now: Instant) -> Self {
        Self {
            aux: AuxCalls::new(&calls.budget),
            calls,
            now,
            time: None,
            due: None,
            waiting: Waiting::default(),
            message: Vec::new(),
            unfinished: 0,
            opened: false,
            answered: 0,
        }
    }

    /// Takes a call whose message is complete, or will not be.
    pub(super) fn take(&mut self, http: &mut Connection<Call>, id: u32) -> Option<Unary> {
        match std::mem::replace(http.call(id)?, Call::Answered) {
            Call::Unary(unary) => {
                self.unfinished = self.unfinished.saturating_sub(1);
                Some(unary)
            }
            _ => None,
        }
    }

    /// Decides a call whose message is complete.
    pub(super) fn decide(&mut self, http: &mut Connection<Call>, id: u32, unary: Unary, framed: &[u8]) {
        let decided =
            panics::catch(Boundary::GrpcRequest, || self.decide_now(unary.route, &unary.head, framed));
        match decided.unwrap_or_else(|Panicked| Decided::Fault(framing::internal_error().into())) {
            Decided::Answered => {
                http.send_message(id, &self.message);
                self.count(&unary);
            }
            Decided::Fault(fault) => self.fail(http, id, unary, &fault),
            Decided::Later(message) => {
                let place = self.wait(id, unary.head, message);
                if let Some(call) = http.call(id) {
                    *call = Call::Waiting(place);
                }
            }
        }
    }

    /// Decides a call now if that is possible; its answer is then in `self.message`.
    fn decide_now<'m>(&mut self, route: Route, call: &RequestHead, framed: &'m [u8]) -> Decided<'m> {
        let message = match self.calls.message_of(route, framed) {
            Ok(message) => message,
            Err(fault) => return Decided::Fault(fault),
        };
        if call.span.is_some() || !self.calls.limiter.may_decide_sync() || !self.calls.tries.is_next() {
            return Decided::Later(message);
        }
        panics::point("grpc_request");
        let time = *self.time.get_or_insert_with(|| self.calls.limiter.now());
        let decided = self.calls.decide_now(message, time, &mut self.message);
        self.calls.tries.record(decided.is_some());
        match decided {
            Some(Ok(())) => Decided::Answered,
            Some(Err(fault)) => Decided::Fault(fault),
            None => Decided::Later(message),
        }
    }

    /// Decides a call when its store has answered.
    fn wait(&mut self, id: u32, call: RequestHead, message: &[u8]) -> usize {
        let (begun, until) = (call.begun, call.until());
        let (calls, message) = (self.calls.clone(), message.to_vec());
        // Made where it stays: it is large to move.
        let decision: Pin<Box<Decision>> = match call.span {
            Some(span) => Box::pin(guarded(traced::decide(calls, span, message, until))),
            None => Box::pin(guarded(async move {
                let request = framing::read(&message, calls.limiter.bounds())?;
                let decided = calls.limiter.decide(&request, until, None).await;
                decided.map_err(|refusal| framing::status(&refusal).into())
            })),
        };
        self.waiting.add(id, begun, decision)
    }

    /// Counts what was answered of a read, and sets a time to what was not complete.
    pub(super) fn after_read(&mut self, http: &mut Connection<Call>) {
        self.time = None;
        match std::mem::take(&mut self.answered) {
            0 => {}
            answered => self.calls.count(answered, self.now.elapsed()),
        }
        if self.unfinished == 0 {
            self.due = None;
        } else if self.opened {
            let timeout = self.calls.receive_timeout;
            let deadline = http.calls().filter_map(|(_, call)| match call {
                Call::Unary(unary) => Some(unary.deadline(timeout)),
                _ => None,
            });
            let deadline = deadline.min();
            self.due = self.due.into_iter().chain(deadline).min();
        }
        self.opened = false;
    }

    /// True while no call waits for anything but its own message.
    pub(super) fn is_answered_here(&self) -> bool {
        self.waiting.is_empty() && self.aux.is_empty()
    }

    pub(super) fn fail(&mut self, http: &mut Connection<Call>, id: u32, unary: Unary, fault: &Fault) {
        self.count(&unary);
        if let Some(span) = unary.head.span {
            traced::finish(span, Some(fault));
        }
        send_fault(http, id, fault);
    }

    /// Calls that are answered in the read that brought them share one look at the clock.
    fn count(&mut self, unary: &Unary) {
        if unary.head.begun == self.now {
            self.answered = self.answered.saturating_add(1);
        } else {
            self.calls.count(1, unary.head.begun.elapsed());
        }
    }

    /// Answers the calls whose stores or services have answered.
    pub(super) fn poll(&mut self, http: &mut Connection<Call>, signal: &Arc<Signal>, woken: bool) {
        let unblocked = http.take_unblocked();
        let aux = !self.aux.is_empty() && (woken || unblocked || self.aux.has_fresh());
        if !(woken || aux || self.waiting.has_fresh()) {
            return;
        }
        let waker = signal.clone().into();
        let mut context = Context::from_waker(&waker);
        let (calls, message, now) = (&self.calls, &mut self.message, Instant::now());
        self.waiting.poll(&mut context, woken, |id, begun, decided| {
            calls.count(1, now.saturating_duration_since(begun));
            // Its place may be another's while the answer waits for a window.
            if let Some(call) = http.call(id) {
                *call = Call::Answered;
            }
            match decided {
                Ok(answer) => {
                    write_message(&answer, message);
                    http.send_message(id, message);
                }
                Err(fault) => send_fault(http, id, &fault),
            }
        });
        if aux {
            self.aux.poll(&mut context, http, calls);
        }
    }
}

impl Calls {
    /// The message behind its prefix.
    fn message_of<'m>(&self, route: Route, framed: &'m [u8]) -> Result<&'m [u8], Fault> {
        match route {
            Route::NotPost => {
                return Err(Status::internal("the method is not POST, which gRPC calls are").into());
            }
            Route::NotGrpc => return Err(Status::internal("the content-type is not application/grpc").into()),
            Route::Unary | Route::Other => {}
        }
        let message = framed.get(PREFIX..).unwrap_or_default();
        match self.length(framed)? {
            Some(length) if message.len() > length => Err(framing::several_messages().into()),
            Some(length) if message.len() == length => Ok(message),
            _ => Err(framing::incomplete().into()),
        }
    }

    /// The length of a message, if all of its prefix is there.
    pub(super) fn length(&self, framed: &[u8]) -> Result<Option<usize>, Fault> {
        let prefix = framed.first_chunk();
        prefix.map(|prefix| framing::length(*prefix, self.max_request_bytes, &self.stats)).transpose()
    }

    /// Decides now and writes the answer, framed, in place of what `into` holds; `None` if the store has to be
    /// waited for.
    fn decide_now(&self, message: &[u8], now: Time, into: &mut Vec<u8>) -> Option<Result<(), Fault>> {
        let request = match framing::read(message, self.limiter.bounds()) {
            Ok(request) => request,
            Err(fault) => return Some(Err(fault)),
        };
        let decided = self.limiter.decide_sync(&request, now)?;
        let written = decided.map(|answer| write_message(&answer, into));
        Some(written.map_err(|refusal| framing::status(&refusal).into()))
    }

    fn count(&self, calls: u32, took: Duration) {
        let service = self.stats.service();
        service.requests(Method::ShouldRateLimit).add(calls.into());
        service.response_time(Method::ShouldRateLimit).observe_many(took, calls.into());
    }
}

/// Answers a call that panics.
async fn guarded(decision: impl Future<Output = Result<Answer, Fault>>) -> Result<Answer, Fault> {
    let decided = caught(Boundary::GrpcRequest, async move {
        panics::point("grpc_request");
        decision.await
    });
    decided.await.unwrap_or_else(|Panicked| Err(framing::internal_error().into()))
}

/// Writes an answer with its prefix, in place of what `into` holds.
fn write_message(answer: &Answer, into: &mut Vec<u8>) {
    panics::point("grpc_response_body");
    into.clear();
    into.extend_from_slice(&[0; PREFIX]);
    wire::encode(answer, into);
    let length = u32::try_from(into.len().saturating_sub(PREFIX)).unwrap_or(u32::MAX);
    if let Some(place) = into.get_mut(1..PREFIX) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Answers with a status alone.
pub(super) fn send_fault(http: &mut Connection<Call>, id: u32, fault: &Fault) {
    let response = fault.clone().into_http::<()>();
    let mut block = Vec::with_capacity(128);
    write_head(&response, &mut block);
    http.send_head(id, &block, true);
}

/// Writes the head of a response as a header block.
pub(super) fn write_head<B>(response: &http::Response<B>, block: &mut Vec<u8>) {
    hpack::write_status(block, response.status().as_str());
    write_fields(response.headers(), block);
}

/// Writes fields as they stand in a header block.
pub(super) fn write_fields(fields: &HeaderMap, block: &mut Vec<u8>) {
    for (name, value) in fields {
        hpack::write_field(block, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// What a stream is reset with when the service that should answer it is gone.
pub(super) const GONE: ResetReason = ResetReason::Cancel;

/// What follows the last data of an answer.
pub(super) fn end_with(trailers: Option<&HeaderMap>) -> End {
    trailers.map_or(End::Data, |trailers| {
        let mut block = Vec::with_capacity(64);
        write_fields(trailers, &mut block);
        End::Trailers(block)
    })
}
