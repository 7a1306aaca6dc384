//! `ShouldRateLimit`, answered straight on hyper: one message in, one message out.
//!
//! This is the hot path, and the one gRPC call that does not go through tonic. What tonic adds for
//! streaming, compression and interceptors costs a quarter of a decision's CPU, and this call uses none
//! of it. The framing is gRPC's: a byte that says whether the message is compressed, its length in four,
//! the message.

use std::{
    future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout_at;
use tonic::{Code, Status};

use super::{
    body::AnswerBody,
    framing::{self, PREFIX},
    opening::{self, Opening},
};
use crate::{
    limiter::{Answer, Bounds, Limiter, Refusal, Request},
    panics::{self, Boundary, Panicked, caught},
    server::wire,
    spans::Tracer,
    stats::{Method as StatsMethod, Stats},
};

/// The path of the call.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Answers the call.
pub(super) struct ShouldRateLimit {
    pub(super) limiter: Arc<Limiter>,
    pub(super) stats: Arc<Stats>,
    /// Where spans go, if there are any.
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) max_request_bytes: usize,
}

/// A status on the heap: a call's future is moved several times, and errors are rare.
pub(super) type Fault = Box<Status>;

impl ShouldRateLimit {
    /// Answers within the caller's time-out, if it names one.
    ///
    /// Nearly every message is there in one piece before its call is first looked at, and a store in this
    /// process answers at once: then nothing is kept in this future. Whatever has to wait does so on the
    /// heap, in one piece. A timer is made for a message alone; a store keeps to the time it is given.
    pub(super) async fn call(&self, mut opening: Opening, mut body: Incoming) -> Response<AnswerBody> {
        let begun = opening.begun;
        let answer = caught(Boundary::GrpcRequest, async {
            panics::point("grpc_request");
            match (opening.span.take(), opening.fault.take()) {
                (Some(span), fault) => Box::pin(self.traced(span, fault, opening, body)).await,
                (None, Some(fault)) => Err(fault),
                (None, None) => {
                    match future::poll_fn(|context| Poll::Ready(whole_message(&mut body, context))).await {
                        Ok(message) => match self.at_once(&message) {
                            Some(answer) => answer,
                            None => Box::pin(self.later(message, opening.until())).await,
                        },
                        Err(first) => Box::pin(self.in_time(opening, first, body)).await,
                    }
                }
            }
        });
        let answer = answer.await.unwrap_or_else(|Panicked| Err(internal_error().into()));
        let service = self.stats.service();
        service.requests(StatsMethod::ShouldRateLimit).increment();
        service.response_time(StatsMethod::ShouldRateLimit).observe(begun.elapsed());
        match answer {
            Ok(message) => with_message(message),
            Err(status) => status.into_http(),
        }
    }

    /// The answer to a message with its prefix; `None` if its counters have to be waited for.
    fn at_once(&self, message: &Bytes) -> Option<Result<Bytes, Fault>> {
        if !self.limiter.answers_at_once() {
            return None;
        }
        match self.read_request(message) {
            Ok(request) => self.limiter.decide_at_once(&request).map(encoded),
            Err(fault) => Some(Err(fault)),
        }
    }

    async fn later(&self, message: Bytes, until: Option<std::time::Instant>) -> Result<Bytes, Fault> {
        let request = self.read_request(&message)?;
        encoded(self.limiter.decide(&request, until).await)
    }

    /// Waits for the rest of a message, but no longer than its caller, and answers it.
    async fn in_time(&self, opening: Opening, first: Bytes, mut body: Incoming) -> Result<Bytes, Fault> {
        let message = self.read_in_time(&opening, first, &mut body).await?;
        match self.at_once(&message) {
            Some(answer) => answer,
            None => self.later(message, opening.until()).await,
        }
    }

    /// Reads one message with its prefix, unless its caller goes first.
    pub(super) async fn read_in_time(
        &self,
        opening: &Opening,
        first: Bytes,
        body: &mut Incoming,
    ) -> Result<Bytes, Fault> {
        let reading = self.read_message(first, body);
        let Some(deadline) = opening.deadline() else { return reading.await };
        timeout_at(deadline, reading)
            .await
            .unwrap_or_else(|_| Err(opening::deadline_exceeded(&self.stats).into()))
    }

    /// Reads the request of a message with its prefix. It borrows its texts from the message.
    pub(super) fn read_request<'a>(&self, message: &'a Bytes) -> Result<Request<'a>, Fault> {
        self.read_prefix(message)?;
        read(message, self.limiter.bounds())
    }

    /// Reads one message with its prefix, and the end of the request behind it.
    ///
    /// Who answers before the request has ended has to reset its stream, and HTTP/2 takes a thousand of
    /// those for an attack: the connection of a caller that sends the end in a frame of its own would break.
    async fn read_message(&self, first: Bytes, body: &mut Incoming) -> Result<Bytes, Fault> {
        let mut data = first;
        loop {
            let length = if data.len() < PREFIX { None } else { Some(self.read_prefix(&data)?) };
            if length.is_some_and(|length| data.len() - PREFIX > length) {
                return Err(Status::internal("more than one message came in a call that takes one").into());
            }
            match next_piece(body).await? {
                Some(piece) => data = join(data, piece),
                None if length.is_some_and(|length| data.len() - PREFIX == length) => return Ok(data),
                None => return Err(Status::internal("the request ended before its message did").into()),
            }
        }
    }

    /// The length of the message behind a prefix.
    fn read_prefix(&self, mut data: &[u8]) -> Result<usize, Fault> {
        let mut prefix = [0; PREFIX];
        data.copy_to_slice(&mut prefix);
        framing::length(prefix, self.max_request_bytes, &self.stats)
    }
}

/// Reads the request of a message with its prefix.
pub(super) fn read(message: &[u8], bounds: Bounds) -> Result<Request<'_>, Fault> {
    wire::read(message.get(PREFIX..).unwrap_or_default(), bounds)
        .map_err(|error| Status::internal(format!("the message is no RateLimitRequest: {error}")).into())
}

/// The message with its prefix, if all of the request is there already; else what is there of it.
fn whole_message(body: &mut Incoming, context: &mut Context<'_>) -> Result<Bytes, Bytes> {
    let mut data = Bytes::new();
    while !body.is_end_stream() {
        match Pin::new(&mut *body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => data = join(data, frame.into_data().unwrap_or_default()),
            Poll::Ready(None) => break,
            Poll::Ready(Some(Err(_))) | Poll::Pending => return Err(data),
        }
    }
    let whole = data.len() >= PREFIX && data.len() - PREFIX == (&data[1..PREFIX]).get_u32() as usize;
    if whole { Ok(data) } else { Err(data) }
}

/// The answer to a call that panicked.
pub(super) fn internal_error() -> Status {
    Status::internal("internal error; the log of the rate limit service has the details")
}

pub(super) fn encoded(decided: Result<Answer, Refusal>) -> Result<Bytes, Fault> {
    match decided {
        Ok(answer) => Ok(frame(&answer)),
        Err(refusal) => Err(status(&refusal).into()),
    }
}

/// The errors of the Go service are of the code UNKNOWN, and its callers may look for that.
pub(super) fn status(refusal: &Refusal) -> Status {
    let code = if refusal.is_out_of_bounds() { Code::InvalidArgument } else { Code::Unknown };
    Status::new(code, refusal.to_string())
}

/// The next piece of a request; none at its end.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Fault> {
    match body.frame().await {
        Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        Some(Err(error)) => Err(Status::cancelled(format!("the request broke off: {error}")).into()),
        None => Ok(None),
    }
}

fn join(first: Bytes, second: Bytes) -> Bytes {
    if first.is_empty() {
        return second;
    }
    if second.is_empty() {
        return first;
    }
    // A piece that is not shared gives its memory back, so that many small pieces are not copied anew
    // each time.
    let mut joined = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared));
    joined.extend_from_slice(&second);
    joined.freeze()
}

/// An answer with its prefix.
fn frame(answer: &Answer) -> Bytes {
    let length = wire::encoded_len(answer);
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    wire::encode(answer, &mut framed);
    framed.freeze()
}

fn with_message(message: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Message(message));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_about_for_every_call_is_small() {
        fn size<'a, F>(_: impl FnOnce(&'a ShouldRateLimit, Opening, Incoming) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(ShouldRateLimit::call);
        assert!(bytes <= 400, "{bytes} bytes: is a plan or a decoded request kept in the call's own future?");
    }

    #[test]
    fn pieces_are_joined_in_order() {
        let pieces = ["", "ab", "c", "", "def"].map(|piece| Bytes::from_static(piece.as_bytes()));
        assert_eq!(pieces.into_iter().fold(Bytes::new(), join), "abcdef");
    }
}
