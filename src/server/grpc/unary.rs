//! `ShouldRateLimit`, answered straight on hyper: one message in, one message out.
//!
//! This is the hot path, and the one gRPC call that does not go through tonic. What tonic adds for
//! streaming, compression and interceptors costs a quarter of a decision's CPU, and this call uses none
//! of it. The framing is gRPC's: a byte that says whether the message is compressed, its length in four,
//! the message.

use std::{future, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Response, header, request};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::body::AnswerBody;
use crate::{
    limiter::{Limiter, Refusal, Request},
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    stats::{Method as StatsMethod, Refusal as Reason, Stats},
};

/// The path of the call.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// In front of every message.
const PREFIX: usize = 5;

/// Answers the call.
pub(super) struct ShouldRateLimit {
    pub(super) limiter: Arc<Limiter>,
    pub(super) stats: Arc<Stats>,
    pub(super) max_request_bytes: usize,
}

/// What is known of a call before its message has come.
pub(super) struct Opening {
    begun: Instant,
    deadline: Option<Instant>,
    fault: Option<Fault>,
}

/// A status on the heap: a call's future is moved several times, and errors are rare.
type Fault = Box<Status>;

impl Opening {
    /// Reads the head of a call.
    pub(super) fn of(head: &request::Parts) -> Self {
        let begun = Instant::now();
        let deadline = time_out(&head.headers).map(|time_out| begun + time_out);
        Self { begun, deadline, fault: check_call(head).err() }
    }
}

impl ShouldRateLimit {
    /// Answers within the caller's time-out, if it names one.
    ///
    /// Nearly every message is there in one piece before its call is first looked at, and a store in this
    /// process answers at once: then nothing is kept in this future and no timer is made. Whatever has to
    /// wait does so on the heap.
    pub(super) async fn call(&self, opening: Opening, mut body: Incoming) -> Response<AnswerBody> {
        let begun = opening.begun;
        let answer = match opening.fault {
            Some(fault) => Err(fault),
            None => match self.at_once(&mut body).await {
                Ok(answer) => answer,
                Err(first) => Box::pin(self.in_time(opening.deadline, first, body)).await,
            },
        };
        let service = self.stats.service();
        service.requests(StatsMethod::ShouldRateLimit).increment();
        service.response_time(StatsMethod::ShouldRateLimit).observe(begun.elapsed());
        match answer {
            Ok(message) => with_message(message),
            Err(status) => status.into_http(),
        }
    }

    /// The answer if neither the message nor the counters have to be waited for; else what has come of
    /// the message.
    async fn at_once(&self, body: &mut Incoming) -> Result<Result<Bytes, Fault>, Bytes> {
        let piece = future::poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context))).await;
        let Poll::Ready(Some(Ok(frame))) = piece else { return Err(Bytes::new()) };
        let data = frame.into_data().map_err(|_| Bytes::new())?;
        let whole = data.len() >= PREFIX && data.len() - PREFIX == (&data[1..PREFIX]).get_u32() as usize;
        if !whole || !self.limiter.answers_at_once() {
            return Err(data);
        }
        Ok(self.answer(data).await)
    }

    async fn in_time(
        &self,
        deadline: Option<Instant>,
        first: Bytes,
        mut body: Incoming,
    ) -> Result<Bytes, Fault> {
        let answer = async {
            let message = self.read_message(first, &mut body).await?;
            self.answer(message).await
        };
        let Some(deadline) = deadline else { return answer.await };
        timeout_at(deadline, answer).await.unwrap_or_else(|_| {
            self.stats.service().refused(Reason::DeadlineExceeded).increment();
            Err(Status::deadline_exceeded("the caller's grpc-timeout has passed").into())
        })
    }

    /// Answers a message with its prefix.
    async fn answer(&self, mut message: Bytes) -> Result<Bytes, Fault> {
        self.read_prefix(&mut message)?;
        let request = RateLimitRequest::decode(message)
            .map_err(|error| Status::internal(format!("the message is no RateLimitRequest: {error}")))?;
        let request = Request::from(request);
        let answer = self.limiter.decide(&request).await.map_err(|refusal| status(&refusal))?;
        Ok(frame(&RateLimitResponse::from(answer)))
    }

    /// Reads one message with its prefix.
    async fn read_message(&self, first: Bytes, body: &mut Incoming) -> Result<Bytes, Fault> {
        let mut data = first;
        while data.len() < PREFIX {
            data = join(data, next_piece(body).await?);
        }
        let length = self.read_prefix(&mut data.clone())?;
        while data.len() - PREFIX < length {
            data = join(data, next_piece(body).await?);
        }
        if data.len() - PREFIX > length {
            return Err(Status::internal("more than one message came in a call that takes one").into());
        }
        Ok(data)
    }

    /// Takes the prefix off, and says how long the message is.
    fn read_prefix(&self, data: &mut Bytes) -> Result<usize, Fault> {
        let compressed = data.get_u8();
        let length = data.get_u32() as usize;
        if compressed != 0 {
            let help = "the message is compressed; send it with grpc-encoding identity";
            return Err(Status::unimplemented(help).into());
        }
        let most = self.max_request_bytes;
        if length > most {
            self.stats.service().refused(Reason::MessageTooLarge).increment();
            return Err(Status::resource_exhausted(format!(
                "the message has {length} bytes, at most {most} are taken (GRPC_MAX_REQUEST_BYTES)"
            ))
            .into());
        }
        Ok(length)
    }
}

/// The errors of the Go service are of the code UNKNOWN, and its callers may look for that.
fn status(refusal: &Refusal) -> Status {
    let code = if refusal.is_out_of_bounds() { Code::InvalidArgument } else { Code::Unknown };
    Status::new(code, refusal.to_string())
}

fn check_call(head: &request::Parts) -> Result<(), Fault> {
    if head.method != Method::POST {
        return Err(Status::internal(format!("the method is {}, gRPC calls are POST", head.method)).into());
    }
    let content_type = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !content_type.starts_with(b"application/grpc") {
        return Err(Status::internal("the content-type is not application/grpc").into());
    }
    Ok(())
}

async fn next_piece(body: &mut Incoming) -> Result<Bytes, Fault> {
    loop {
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(data);
                }
            }
            Some(Err(error)) => {
                return Err(Status::cancelled(format!("the request broke off: {error}")).into());
            }
            None => return Err(Status::internal("the request ended before its message did").into()),
        }
    }
}

fn join(first: Bytes, second: Bytes) -> Bytes {
    if first.is_empty() {
        return second;
    }
    // A piece that is not shared gives its memory back, so that many small pieces are not copied anew
    // each time.
    let mut joined = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared));
    joined.extend_from_slice(&second);
    joined.freeze()
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer has the room that encoding asks for.
    let _ = message.encode(&mut framed);
    framed.freeze()
}

fn with_message(message: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Message(message));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The caller's `grpc-timeout`: at most eight digits and a unit. What cannot be read is as if not sent.
fn time_out(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_time_outs_as_grpc_writes_them() {
        for (text, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("1H", Some(Duration::from_secs(3600))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("0u", Some(Duration::ZERO)),
            ("", None),
            ("m", None),
            ("-1m", None),
            ("1x", None),
            ("100000000S", None),
        ] {
            let headers = HeaderMap::from_iter([(
                header::HeaderName::from_static("grpc-timeout"),
                HeaderValue::from_static(text),
            )]);
            assert_eq!(time_out(&headers), expected, "{text}");
        }
    }

    #[test]
    fn pieces_are_joined_in_order() {
        let pieces = ["", "ab", "c", "", "def"].map(|piece| Bytes::from_static(piece.as_bytes()));
        assert_eq!(pieces.into_iter().fold(Bytes::new(), join), "abcdef");
    }
}
