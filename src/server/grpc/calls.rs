//! The calls of the gRPC port: `ShouldRateLimit` is decided here, all others by tonic's router.
//!
//! A call whose message arrived in one piece, with a store that responds at once, is decoded, decided and encoded
//! without an allocation or a task of its own. A call that waits for its store is in `waiting`, a call of another service
//! in `aux_services`, and a call whose message arrives in pieces in `unfinished`. The connection's `driver` polls them.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::Context,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use tonic::Status;

use super::{
    aux_services::AuxCalls,
    framing::{self, Failure, PREFIX, send_failure},
    http2::{Budget, Connection, Head, Route, Service, Share},
    request_head::{RequestHead, decide_traced, finish_span},
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

pub(super) type Http = Connection<ConnectionCalls>;

/// The parts that all calls of a worker share.
pub(super) struct Calls {
    pub(super) limiter: Arc<Limiter>,
    pub(super) stats: Arc<Stats>,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) max_request_bytes: usize,
    /// The time limit for a complete message.
    pub(super) receive_timeout: Duration,
    pub(super) budget: Arc<Budget>,
    /// Health checks, reflection, and the response to unknown methods.
    pub(super) routes: tonic::service::Routes,
    /// Lent to the connection that is polled.
    pub(super) buffers: Cell<Buffers>,
    pub(super) tries: Tries,
}

/// Whether to try to decide a call without waiting for the store: if a quarter of the last tries did, else one call in
/// [`FEW`](Self::FEW). A try that fails costs as much as planning the request, about a third of what one that decides
/// saves.
pub(super) struct Tries {
    /// A bit for each of the last tries: it decided its call.
    decided: Cell<u16>,
    skipped: Cell<u8>,
}

impl Default for Tries {
    fn default() -> Self {
        Self { decided: Cell::new(u16::MAX), skipped: Cell::new(0) }
    }
}

impl Tries {
    const FEW: u8 = 16;

    fn is_next(&self) -> bool {
        let skipped = self.skipped.get().wrapping_add(1) % Self::FEW;
        self.skipped.set(skipped);
        skipped == 0 || self.decided.get().count_ones() >= u16::BITS / 4
    }

    fn record(&self, is_decided: bool) {
        self.decided.set(self.decided.get() << 1 | u16::from(is_decided));
    }
}

/// Buffers that the connections of a worker share: only one is polled at a time.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) read: Vec<u8>,
    pub(super) out: Vec<u8>,
    pub(super) message: Vec<u8>,
}

/// A call of `ShouldRateLimit` whose message is not complete.
pub(super) struct Unary {
    pub(super) head: RequestHead,
    pub(super) route: Route,
    pub(super) partial: Option<Box<Partial>>,
}

/// The received part of a message.
pub(super) struct Partial {
    pub(super) bytes: Vec<u8>,
    pub(super) share: Share,
    pub(super) granted: bool,
}

impl Unary {
    /// The time at which the message has to be complete.
    pub(super) fn deadline(&self, receive_timeout: Duration) -> Instant {
        let timeout = self.head.timeout.map_or(receive_timeout, |timeout| timeout.min(receive_timeout));
        self.head.begun.checked_add(timeout).unwrap_or(self.head.begun)
    }
}

/// The state of a call while its stream is open.
pub(super) enum Call {
    /// The message is incomplete.
    Unary(Unary),
    /// The store is counting; the key in `waiting`.
    Waiting(usize),
    /// Another service responds; the key in `aux`.
    Aux(u32),
    /// The response is being sent.
    Answered,
    /// Parsing the head panicked.
    Panicked,
}

pub(super) struct ConnectionCalls {
    pub(super) calls: Rc<Calls>,
    pub(super) now: Instant,
    /// The time at which all calls of this read are decided.
    time: Option<Time>,
    /// The time of the next check of unfinished messages.
    pub(super) due: Option<Instant>,
    pub(super) waiting: Waiting,
    pub(super) aux: AuxCalls,
    /// The buffer for encoded responses.
    pub(super) message: Vec<u8>,
    /// Calls whose message is incomplete.
    unfinished: u32,
    /// Some of them are from the last read.
    opened: bool,
    /// Responses to calls of the last read.
    answered: u32,
}

impl Service for ConnectionCalls {
    type Call = Call;

    fn open(&mut self, id: u32, head: &Head) -> Call {
        if head.route == Route::Other {
            self.aux.open(id, head, &self.calls.routes, &self.calls.budget, self.now);
            return Call::Aux(id);
        }
        panics::catch(Boundary::GrpcRequest, || self.begin(head)).unwrap_or(Call::Panicked)
    }

    fn data(&mut self, http: &mut Http, id: u32, data: &[u8], end: bool) {
        let Some(call) = http.call(id) else { return };
        match call {
            Call::Unary(Unary { route: Route::NotGrpc, .. }) => {
                if end && self.take(http, id).is_some() {
                    framing::send_not_grpc(http, id);
                }
            }
            Call::Unary(unary) if end && unary.partial.is_none() => {
                if let Some(unary) = self.take(http, id) {
                    self.decide(http, id, unary, data);
                }
            }
            Call::Unary(_) => self.collect(http, id, data, end),
            Call::Aux(_) => self.aux.data(http, id, data, end),
            Call::Panicked if end => send_failure(http, id, &framing::internal_error().into()),
            Call::Waiting(_) | Call::Answered | Call::Panicked => {}
        }
    }

    fn complete(&mut self, http: &mut Http, id: u32, head: &Head, framed: &[u8]) {
        let decided = panics::catch(Boundary::GrpcRequest, || {
            let call = self.request_head(head);
            let decided = self.decide_now(head.route, &call, framed);
            (call, decided)
        });
        let (call, failure) = match decided {
            Ok((call, Ok(Some(message)))) => {
                let key = self.wait(id, call, message);
                return http.open_complete(id, Call::Waiting(key));
            }
            Ok((_, Ok(None))) => {
                self.answered = self.answered.saturating_add(1);
                if !http.send_complete(id, &self.message) {
                    http.open_complete(id, Call::Answered);
                    http.send_message(id, &self.message);
                }
                return;
            }
            Ok((call, Err(failure))) => (Some(call), failure),
            Err(Panicked) => (None, framing::internal_error().into()),
        };
        self.answered = self.answered.saturating_add(1);
        finish_span(call.and_then(|call| call.span), Some(&failure));
        http.open_complete(id, Call::Answered);
        send_failure(http, id, &failure);
    }

    fn closed(&mut self, call: Call) {
        match call {
            Call::Waiting(key) => self.waiting.remove(key),
            Call::Aux(id) => self.aux.remove(id),
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
        let headers = head.request.as_ref().map(|request| request.headers());
        RequestHead::new(self.now, head.timeout, headers, self.calls.tracer.as_ref())
    }

    pub(super) fn new(calls: Rc<Calls>, now: Instant) -> Self {
        Self {
            calls,
            now,
            time: None,
            due: None,
            waiting: Waiting::default(),
            aux: AuxCalls::default(),
            message: Vec::new(),
            unfinished: 0,
            opened: false,
            answered: 0,
        }
    }

    /// Takes an unfinished call, to decide or reject it.
    pub(super) fn take(&mut self, http: &mut Http, id: u32) -> Option<Unary> {
        match std::mem::replace(http.call(id)?, Call::Answered) {
            Call::Unary(unary) => {
                self.unfinished = self.unfinished.saturating_sub(1);
                Some(unary)
            }
            _ => None,
        }
    }

    /// Decides a call whose message is complete.
    pub(super) fn decide(&mut self, http: &mut Http, id: u32, unary: Unary, framed: &[u8]) {
        let decided =
            panics::catch(Boundary::GrpcRequest, || self.decide_now(unary.route, &unary.head, framed));
        match decided.unwrap_or_else(|Panicked| Err(framing::internal_error().into())) {
            Ok(None) => {
                http.send_message(id, &self.message);
                self.count(&unary);
            }
            Ok(Some(message)) => {
                let key = self.wait(id, unary.head, message);
                if let Some(call) = http.call(id) {
                    *call = Call::Waiting(key);
                }
            }
            Err(failure) => self.fail(http, id, unary, &failure),
        }
    }

    /// Decides a call now, which writes the framed response to `self.message`; returns the message of a call that has to
    /// wait for the store.
    fn decide_now<'m>(
        &mut self,
        route: Route,
        call: &RequestHead,
        framed: &'m [u8],
    ) -> Result<Option<&'m [u8]>, Failure> {
        let Calls { limiter, tries, .. } = &*self.calls;
        let message = self.calls.message_of(route, framed)?;
        if call.span.is_some() || !limiter.may_decide_sync() || !tries.is_next() {
            return Ok(Some(message));
        }
        panics::point("grpc_request");
        let time = *self.time.get_or_insert_with(|| limiter.now());
        let request = framing::read(message, limiter.bounds())?;
        let decided = limiter.decide_sync(&request, time);
        tries.record(decided.is_some());
        let Some(decided) = decided else { return Ok(Some(message)) };
        write_message(&decided.map_err(|error| framing::status(&error))?, &mut self.message);
        Ok(None)
    }

    /// Starts a decision that waits for the store, and returns its key.
    fn wait(&mut self, id: u32, call: RequestHead, message: &[u8]) -> usize {
        let (begun, until) = (call.begun, call.until());
        let (calls, message) = (self.calls.clone(), message.to_vec());
        // Created on the heap: it is large to move.
        let decision: Pin<Box<Decision>> = match call.span {
            Some(span) => Box::pin(guarded(async move {
                panics::point("grpc_request");
                let request = framing::read(&message, calls.limiter.bounds());
                decide_traced(&calls.limiter, span, request, until).await
            })),
            None => Box::pin(guarded(async move {
                panics::point("grpc_request");
                let request = framing::read(&message, calls.limiter.bounds())?;
                let decided = calls.limiter.decide(&request, until, None).await;
                decided.map_err(|error| framing::status(&error).into())
            })),
        };
        self.waiting.add(id, begun, decision)
    }

    /// Counts the calls of a read that were answered, and sets the deadline of those that are incomplete.
    pub(super) fn after_read(&mut self, http: &mut Http) {
        self.time = None;
        match std::mem::take(&mut self.answered) {
            0 => {}
            answered => self.calls.count(answered, self.now.elapsed()),
        }
        if self.unfinished == 0 {
            self.due = None;
        } else if self.opened {
            let timeout = self.calls.receive_timeout;
            let deadlines = http.calls().filter_map(|(_, call)| match call {
                Call::Unary(unary) => Some(unary.deadline(timeout)),
                _ => None,
            });
            self.due = deadlines.chain(self.due).min();
        }
        self.opened = false;
    }

    /// True while no call waits for a store or another service.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.calls.is_empty() && self.aux.calls.is_empty()
    }

    pub(super) fn fail(&mut self, http: &mut Http, id: u32, unary: Unary, failure: &Failure) {
        self.count(&unary);
        finish_span(unary.head.span, Some(failure));
        send_failure(http, id, failure);
    }

    /// Counts a call. Calls that arrived with the last read share one reading of the clock.
    fn count(&mut self, unary: &Unary) {
        if unary.head.begun == self.now {
            self.answered = self.answered.saturating_add(1);
        } else {
            self.calls.count(1, unary.head.begun.elapsed());
        }
    }

    /// Sends the responses of calls that are decided, and advances those of other services.
    pub(super) fn poll(&mut self, http: &mut Http, signal: &Arc<Signal>, woken: bool) {
        let unblocked = http.take_unblocked();
        let aux = !self.aux.calls.is_empty() && (woken || unblocked || self.aux.has_fresh);
        if !(woken || aux || !self.waiting.fresh.is_empty()) {
            return;
        }
        let waker = signal.clone().into();
        let mut context = Context::from_waker(&waker);
        let (calls, message, now) = (&self.calls, &mut self.message, Instant::now());
        self.waiting.poll(&mut context, woken, |id, begun, decided| {
            calls.count(1, now.saturating_duration_since(begun));
            // The key may be reused while the response is blocked.
            if let Some(call) = http.call(id) {
                *call = Call::Answered;
            }
            match decided {
                Ok(answer) => {
                    write_message(&answer, message);
                    http.send_message(id, message);
                }
                Err(failure) => send_failure(http, id, &failure),
            }
        });
        if aux {
            self.aux.poll(&mut context, http, &calls.stats);
        }
    }
}

impl Calls {
    /// The message after its prefix.
    fn message_of<'m>(&self, route: Route, framed: &'m [u8]) -> Result<&'m [u8], Failure> {
        match route {
            Route::NotPost => return Err(Status::internal("the method is not POST").into()),
            Route::Unary | Route::Other | Route::NotGrpc => {}
        }
        let message = framed.get(PREFIX..).unwrap_or_default();
        match self.length(framed)? {
            Some(length) if message.len() > length => Err(framing::too_many_messages().into()),
            Some(length) if message.len() == length => Ok(message),
            _ => Err(framing::truncated().into()),
        }
    }

    /// The length of a message, if its prefix is complete.
    pub(super) fn length(&self, framed: &[u8]) -> Result<Option<usize>, Failure> {
        let prefix = framed.first_chunk();
        prefix.map(|prefix| framing::length(*prefix, self.max_request_bytes, &self.stats)).transpose()
    }

    fn count(&self, calls: u32, took: Duration) {
        let service = self.stats.service();
        service.requests(Method::ShouldRateLimit).add(calls.into());
        service.response_time(Method::ShouldRateLimit).observe_many(took, calls.into());
    }
}

/// Turns a panic of a decision into INTERNAL. No `async fn`, whose future would have room for a second decision.
fn guarded(
    decision: impl Future<Output = Result<Answer, Failure>>,
) -> impl Future<Output = Result<Answer, Failure>> {
    let decided = caught(Boundary::GrpcRequest, decision);
    decided.map(|decided| decided.unwrap_or_else(|Panicked| Err(framing::internal_error().into())))
}

/// Writes a response with its prefix, replacing the content of `into`.
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
