//! What the gRPC port answers: `ShouldRateLimit` in place, everything else through tonic's router.
//!
//! A call whose message came in one piece, on a store that answers at once, is decoded, decided and encoded
//! without an allocation or a task of its own. A call that waits for its store is kept in `waiting`, one for
//! which another service answers in `aux`. The connection's `driver` polls both.

use std::{
    cell::Cell,
    future::Future,
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
    http2::{Budget, Connection, End, Head, Reason as ResetReason, Route, Service, Share, hpack},
    request_head::RequestHead,
    traced,
    waiting::{Signal, Waiting},
};
use crate::{
    limiter::{Answer, Limiter},
    panics::{self, Boundary, Panicked, caught},
    server::wire,
    telemetry::{
        metrics::{Method, RejectReason as Reason, Stats},
        tracing::Tracer,
    },
};

/// The path of the call that is answered in place.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A message that waits for its share of the budget is granted one after so long, if there is one by then.
const GRANT_PAUSE: Duration = Duration::from_millis(5);

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

/// A call of `ShouldRateLimit` whose message is not complete.
pub(super) struct Unary {
    head: RequestHead,
    route: Route,
    partial: Option<Box<Partial>>,
}

/// The part of a message that has come.
struct Partial {
    bytes: Vec<u8>,
    share: Share,
    granted: bool,
}

impl Unary {
    /// When the message has to be complete.
    fn deadline(&self, receive_timeout: Duration) -> Instant {
        let timeout = self.head.timeout.map_or(receive_timeout, |timeout| timeout.min(receive_timeout));
        self.head.begun.checked_add(timeout).unwrap_or(self.head.begun)
    }
}

/// The calls of one connection.
pub(super) struct ConnectionCalls {
    pub(super) calls: Rc<Calls>,
    pub(super) now: Instant,
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
        panics::point("grpc_request_head");
        self.unfinished = self.unfinished.saturating_add(1);
        self.opened = true;
        let headers = head.fields.as_ref().map(|fields| &fields.headers);
        let call = RequestHead::new(self.now, head.timeout, headers, self.calls.tracer.as_ref());
        Call::Unary(Unary { head: call, route: head.route, partial: None })
    }

    pub(super) fn new(calls: Rc<Calls>, now: Instant) -> Self {
        Self {
            aux: AuxCalls::new(&calls.budget),
            calls,
            now,
            due: None,
            waiting: Waiting::default(),
            message: Vec::new(),
            unfinished: 0,
            opened: false,
            answered: 0,
        }
    }

    /// Takes a call whose message is complete, or will not be.
    fn take(&mut self, http: &mut Connection<Call>, id: u32) -> Option<Unary> {
        match std::mem::replace(http.call(id)?, Call::Answered) {
            Call::Unary(unary) => {
                self.unfinished = self.unfinished.saturating_sub(1);
                Some(unary)
            }
            _ => None,
        }
    }

    /// Decides a call whose message is complete.
    fn decide(&mut self, http: &mut Connection<Call>, id: u32, unary: Unary, framed: &[u8]) {
        let message = match self.calls.message_of(&unary, framed) {
            Ok(message) => message,
            Err(fault) => return self.fail(http, id, unary, &fault),
        };
        if unary.head.span.is_none() {
            let (calls, into) = (&self.calls, &mut self.message);
            let decided = panics::catch(Boundary::GrpcRequest, || {
                panics::point("grpc_request");
                calls.decide_now(message, into)
            });
            match decided.unwrap_or_else(|Panicked| Some(Err(framing::internal_error().into()))) {
                Some(Ok(())) => {
                    http.send_message(id, &self.message);
                    return self.count(&unary);
                }
                Some(Err(fault)) => return self.fail(http, id, unary, &fault),
                None => {}
            }
        }
        let (begun, until) = (unary.head.begun, unary.head.until());
        let message = message.to_vec();
        let calls = self.calls.clone();
        let place = match unary.head.span {
            Some(span) => self.waiting.add(id, begun, guarded(traced::decide(calls, span, message, until))),
            None => self.waiting.add(id, begun, guarded(decide_later(calls, message, until))),
        };
        if let Some(call) = http.call(id) {
            *call = Call::Waiting(place);
        }
    }

    /// Gathers a message that comes in pieces, within the budget.
    fn gather(&mut self, http: &mut Connection<Call>, id: u32, data: &[u8], end: bool) {
        let Some(Call::Unary(unary)) = http.call(id) else { return };
        let partial = unary.partial.get_or_insert_with(|| {
            Box::new(Partial { bytes: Vec::new(), share: Share::new(&self.calls.budget), granted: false })
        });
        let fault = match partial.add(data, &self.calls) {
            Ok(()) if !end => {
                let deadline = unary.deadline(self.calls.receive_timeout);
                self.remind(deadline);
                return self.open_window(http, id);
            }
            Ok(()) => None,
            Err(fault) => Some(fault),
        };
        let Some(mut unary) = self.take(http, id) else { return };
        let bytes = unary.partial.take().map(|partial| partial.bytes).unwrap_or_default();
        match fault {
            None => self.decide(http, id, unary, &bytes),
            Some(fault) => self.fail(http, id, unary, &fault),
        }
    }

    /// Lets the rest of a message come, if there is room for it.
    fn open_window(&mut self, http: &mut Connection<Call>, id: u32) {
        let window = http.window(id);
        let Some(Call::Unary(Unary { partial: Some(partial), .. })) = http.call(id) else { return };
        let Some(length) = length_of(&partial.bytes) else { return };
        let whole = length.saturating_add(PREFIX);
        if whole > Connection::<Call>::FIRST_WINDOW as usize && !partial.granted {
            partial.granted = partial.share.grant(whole);
            if !partial.granted {
                let again = self.now.checked_add(GRANT_PAUSE).unwrap_or(self.now);
                return self.remind(again);
            }
            partial.bytes.reserve_exact(whole.saturating_sub(partial.bytes.len()));
        }
        let missing = u32::try_from(whole.saturating_sub(partial.bytes.len())).unwrap_or(0);
        http.open_window(id, missing.saturating_sub(window));
    }

    fn remind(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Ends messages that did not come in time, and grants those that wait for the budget.
    pub(super) fn look_at_unfinished(&mut self, http: &mut Connection<Call>) {
        if self.due.is_none_or(|due| due > self.now) {
            return;
        }
        self.due = None;
        let timeout = self.calls.receive_timeout;
        let unfinished = http.calls().filter_map(|(id, call)| match call {
            Call::Unary(unary) => Some((id, unary.deadline(timeout), unary.head.timeout)),
            _ => None,
        });
        for (id, deadline, own) in unfinished.collect::<Vec<_>>() {
            if deadline > self.now {
                self.remind(deadline);
                self.open_window(http, id);
                continue;
            }
            let mut fault = framing::deadline_exceeded(&self.calls.stats);
            if own.is_none_or(|own| own > timeout) {
                let what = format!("the message was not complete within {timeout:?} (GRPC_RECEIVE_TIMEOUT)");
                fault = Status::deadline_exceeded(what);
            }
            let fault = fault.into();
            if let Some(unary) = self.take(http, id) {
                self.fail(http, id, unary, &fault);
            }
        }
    }

    /// Counts what was answered of a read, and sets a time to what was not complete.
    pub(super) fn after_read(&mut self, http: &mut Connection<Call>) {
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

    fn fail(&mut self, http: &mut Connection<Call>, id: u32, unary: Unary, fault: &Fault) {
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
        let (calls, message) = (&self.calls, &mut self.message);
        self.waiting.poll(&mut context, woken, |id, begun, decided| {
            calls.count(1, begun.elapsed());
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

impl Partial {
    /// # Errors
    /// When the message is not one that is accepted, or the budget is spent.
    fn add(&mut self, data: &[u8], calls: &Calls) -> Result<(), Fault> {
        let length = self.bytes.len().saturating_add(data.len());
        if self.bytes.capacity() < length {
            // No more than the message needs, once that is known.
            let whole =
                length_of(&self.bytes).or_else(|| length_of(data)).map(|whole| whole.saturating_add(PREFIX));
            let capacity = length.next_power_of_two().max(64).min(whole.unwrap_or(64).max(length));
            if !self.share.resize(capacity) {
                calls.stats.service().refused(Reason::InflightBytes).increment();
                let what = "unfinished messages take all the memory they may (GRPC_MAX_INFLIGHT_BYTES)";
                return Err(Status::resource_exhausted(what).into());
            }
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(data);
        match calls.length(&self.bytes)? {
            Some(whole) if self.bytes.len().saturating_sub(PREFIX) > whole => {
                Err(framing::several_messages().into())
            }
            _ => Ok(()),
        }
    }
}

impl Calls {
    /// The message behind its prefix.
    fn message_of<'m>(&self, unary: &Unary, framed: &'m [u8]) -> Result<&'m [u8], Fault> {
        match unary.route {
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
    fn length(&self, framed: &[u8]) -> Result<Option<usize>, Fault> {
        let prefix = framed.first_chunk();
        prefix.map(|prefix| framing::length(*prefix, self.max_request_bytes, &self.stats)).transpose()
    }

    /// Decides now and writes the answer, framed, in place of what `into` holds; `None` if the store has to be
    /// waited for.
    fn decide_now(&self, message: &[u8], into: &mut Vec<u8>) -> Option<Result<(), Fault>> {
        if !self.limiter.is_synchronous() {
            return None;
        }
        let request = match framing::read(message, self.limiter.bounds()) {
            Ok(request) => request,
            Err(fault) => return Some(Err(fault)),
        };
        let decided = self.limiter.decide_sync(&request)?;
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
    let decided = caught(Boundary::GrpcRequest, async {
        panics::point("grpc_request");
        decision.await
    });
    decided.await.unwrap_or_else(|Panicked| Err(framing::internal_error().into()))
}

async fn decide_later(calls: Rc<Calls>, message: Vec<u8>, until: Option<Instant>) -> Result<Answer, Fault> {
    let request = framing::read(&message, calls.limiter.bounds())?;
    calls.limiter.decide(&request, until).await.map_err(|refusal| framing::status(&refusal).into())
}

fn length_of(framed: &[u8]) -> Option<usize> {
    let [_, length @ ..] = framed.first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes(*length) as usize)
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
