//! What the gRPC port answers: `ShouldRateLimit` in place, everything else through tonic's router.
//!
//! A call whose message came in one piece, on a store that answers at once, is decoded, decided and encoded
//! without an allocation or a task of its own. A call that waits for its store is kept in `waiting`, one for
//! which another service answers in `aux`. The connection's `driver` polls both.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    task::Context,
    time::{Duration, Instant},
};

use bytes::Buf;
use http::HeaderMap;
use tonic::{Code, Status};

use super::{
    aux_services::AuxCalls,
    http2::{Budget, Connection, End, Head, Reason as ResetReason, Route, Service, Share, hpack},
    traced,
    waiting::{Signal, Waiting},
};
use crate::{
    limiter::{Answer, Limiter, Refusal},
    server::wire,
    spans::{OpenSpan, Tracer},
    stats::{Method, Refusal as Reason, Stats},
};

/// The path of the call that is answered in place.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Bytes before a message: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// The time that is kept for the answer's way to its caller, at most.
const MARGIN: Duration = Duration::from_millis(2);

/// A message that waits for its share of the budget is granted one after so long, if there is one by then.
const GRANT_PAUSE: Duration = Duration::from_millis(5);

/// A status on the heap: errors are rare, and calls are moved about.
pub(super) type Fault = Box<Status>;

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
}

/// A call of `ShouldRateLimit` whose message is not complete.
pub(super) struct Unary {
    begun: Instant,
    timeout: Option<Duration>,
    route: Route,
    span: Option<Box<OpenSpan>>,
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
        let timeout = self.timeout.map_or(receive_timeout, |timeout| timeout.min(receive_timeout));
        self.begun.checked_add(timeout).unwrap_or(self.begun)
    }

    /// When counters that have not been answered are decided without: early enough for the caller to learn.
    fn until(&self) -> Option<Instant> {
        let timeout = self.timeout?;
        self.begun.checked_add(timeout.saturating_sub(MARGIN.min(timeout / 4)))
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
        let span = self.calls.tracer.as_ref().zip(head.fields.as_ref()).and_then(|(tracer, fields)| {
            // The path without its slash is what gRPC's instrumentations call a span.
            tracer.join(&fields.headers, PATH.trim_start_matches('/'))
        });
        self.unfinished = self.unfinished.saturating_add(1);
        self.opened = true;
        Call::Unary(Unary { begun: self.now, timeout: head.timeout, route: head.route, span, partial: None })
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
            Call::Waiting(_) | Call::Answered => {}
        }
    }

    fn closed(&mut self, call: Call) {
        match call {
            Call::Waiting(place) => self.waiting.remove(place),
            Call::Aux(place) => self.aux.remove(place),
            Call::Unary(_) => self.unfinished = self.unfinished.saturating_sub(1),
            Call::Answered => {}
        }
    }
}

impl ConnectionCalls {
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
        if unary.span.is_none() {
            match self.calls.decide_now(message, &mut self.message) {
                Some(Ok(())) => {
                    http.send_message(id, &self.message);
                    return self.count(&unary);
                }
                Some(Err(fault)) => return self.fail(http, id, unary, &fault),
                None => {}
            }
        }
        let (begun, until) = (unary.begun, unary.until());
        let message = message.to_vec();
        let calls = self.calls.clone();
        let place = match unary.span {
            Some(span) => self.waiting.add(id, begun, traced::decide(calls, span, message, until)),
            None => self.waiting.add(id, begun, decide_later(calls, message, until)),
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
        let fault = match partial.add(data, self.calls.max_request_bytes) {
            Ok(()) if !end => {
                let deadline = unary.deadline(self.calls.receive_timeout);
                self.remind(deadline);
                return self.open_window(http, id);
            }
            Ok(()) => None,
            Err(fault) => {
                self.calls.count_refused(&fault);
                Some(fault)
            }
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
            Call::Unary(unary) => Some((id, unary.deadline(timeout), unary.timeout)),
            _ => None,
        });
        for (id, deadline, own) in unfinished.collect::<Vec<_>>() {
            if deadline > self.now {
                self.remind(deadline);
                self.open_window(http, id);
                continue;
            }
            let what = match own {
                Some(own) if own <= timeout => "the caller's grpc-timeout has passed".to_owned(),
                _ => format!("the message was not complete within {timeout:?} (GRPC_RECEIVE_TIMEOUT)"),
            };
            let fault = Status::deadline_exceeded(what).into();
            self.calls.count_refused(&fault);
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
        if let Some(span) = unary.span {
            traced::end(span, Err(fault));
        }
        send_fault(http, id, fault);
    }

    /// Calls that are answered in the read that brought them share one look at the clock.
    fn count(&mut self, unary: &Unary) {
        if unary.begun == self.now {
            self.answered = self.answered.saturating_add(1);
        } else {
            self.calls.count(1, unary.begun.elapsed());
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
    fn add(&mut self, data: &[u8], most: usize) -> Result<(), Fault> {
        let length = self.bytes.len().saturating_add(data.len());
        if self.bytes.capacity() < length {
            // No more than the message needs, once that is known.
            let whole = length_of(&self.bytes).or_else(|| length_of(data)).map(|whole| whole.saturating_add(PREFIX));
            let capacity = length.next_power_of_two().max(64).min(whole.unwrap_or(64).max(length));
            if !self.share.resize(capacity) {
                let what = "unfinished messages take all the memory they may (GRPC_MAX_INFLIGHT_BYTES)";
                return Err(Status::resource_exhausted(what).into());
            }
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(data);
        match read_prefix(&self.bytes, most)? {
            Some(whole) if self.bytes.len().saturating_sub(PREFIX) > whole => Err(several_messages()),
            _ => Ok(()),
        }
    }
}

impl Calls {
    /// The message behind its prefix.
    fn message_of<'m>(&self, unary: &Unary, framed: &'m [u8]) -> Result<&'m [u8], Fault> {
        match unary.route {
            Route::NotPost => return Err(Status::internal("the method is not POST, which gRPC calls are").into()),
            Route::NotGrpc => return Err(Status::internal("the content-type is not application/grpc").into()),
            Route::Unary | Route::Other => {}
        }
        let length = read_prefix(framed, self.max_request_bytes).inspect_err(|fault| self.count_refused(fault))?;
        let message = framed.get(PREFIX..).unwrap_or_default();
        match length {
            Some(length) if message.len() > length => Err(several_messages()),
            Some(length) if message.len() == length => Ok(message),
            _ => Err(Status::internal("the request ended before its message did").into()),
        }
    }

    /// Decides now and writes the answer, framed, in place of what `into` holds; `None` if the store has to be
    /// waited for.
    fn decide_now(&self, message: &[u8], into: &mut Vec<u8>) -> Option<Result<(), Fault>> {
        if !self.limiter.answers_at_once() {
            return None;
        }
        let request = match wire::read(message) {
            Ok(request) => request,
            Err(error) => return Some(Err(not_a_request(&error))),
        };
        let decided = self.limiter.decide_at_once(&request)?;
        Some(decided.map(|answer| write_message(&answer, into)).map_err(|refusal| status(&refusal).into()))
    }

    pub(super) async fn decide(&self, message: &[u8], until: Option<Instant>) -> Result<Answer, Fault> {
        let request = wire::read(message).map_err(|error| not_a_request(&error))?;
        self.limiter.decide(&request, until).await.map_err(|refusal| status(&refusal).into())
    }

    fn count(&self, calls: u32, took: Duration) {
        let service = self.stats.service();
        service.requests(Method::ShouldRateLimit).add(calls.into());
        service.response_time(Method::ShouldRateLimit).observe_many(took, calls.into());
    }

    /// Counts a call that was beyond a bound.
    fn count_refused(&self, fault: &Fault) {
        let reason = match fault.code() {
            Code::DeadlineExceeded => Reason::DeadlineExceeded,
            Code::ResourceExhausted => Reason::MessageTooLarge,
            _ => return,
        };
        self.stats.service().refused(reason).increment();
    }
}

async fn decide_later(calls: Rc<Calls>, message: Vec<u8>, until: Option<Instant>) -> Result<Answer, Fault> {
    calls.decide(&message, until).await
}

/// Reads the prefix of a message, if all of it is there: how long the message is.
fn read_prefix(framed: &[u8], most: usize) -> Result<Option<usize>, Fault> {
    let Some(length) = length_of(framed) else { return Ok(None) };
    if framed.first() != Some(&0) {
        let help = "the message is compressed; send it with grpc-encoding identity";
        return Err(Status::unimplemented(help).into());
    }
    if length > most {
        return Err(Status::resource_exhausted(format!(
            "the message has {length} bytes, at most {most} are taken (GRPC_MAX_REQUEST_BYTES)"
        ))
        .into());
    }
    Ok(Some(length))
}

fn length_of(framed: &[u8]) -> Option<usize> {
    let mut prefix = framed.get(1..PREFIX)?;
    Some(prefix.get_u32() as usize)
}

/// Writes an answer with its prefix, in place of what `into` holds.
fn write_message(answer: &Answer, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&[0; PREFIX]);
    wire::encode(answer, into);
    let length = u32::try_from(into.len().saturating_sub(PREFIX)).unwrap_or(u32::MAX);
    if let Some(place) = into.get_mut(1..PREFIX) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Answers with a status alone.
fn send_fault(http: &mut Connection<Call>, id: u32, fault: &Fault) {
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

/// The errors of the Go service are of the code UNKNOWN, and its callers may look for that.
pub(super) fn status(refusal: &Refusal) -> Status {
    let code = if refusal.is_out_of_bounds() { Code::InvalidArgument } else { Code::Unknown };
    Status::new(code, refusal.to_string())
}

pub(super) fn not_a_request(error: &dyn std::fmt::Display) -> Fault {
    Status::internal(format!("the message is no RateLimitRequest: {error}")).into()
}

fn several_messages() -> Fault {
    Status::internal("more than one message came in a call that takes one").into()
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
