//! gRPC's message framing and statuses, shared by all calls and the tonic `reference`.
//!
//! A message follows a prefix: one byte for the compression and four for the length.

use std::time::{Duration, Instant};

use http::HeaderMap;
use http2::{Connection, End, Envelope, Service, write_field, write_status};
use prost::Message;
use tonic::{Code, Status};

use crate::{log_undecodable, wire};
use limiter::{Bounds, Request, RequestError};
use telemetry::metrics::{RejectReason, Stats};

/// A status other than OK, on the heap: failures are rare, and results are moved often.
pub(super) type Failure = Box<Status>;

/// The path of `ShouldRateLimit`.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// `:status: 200`, `content-type: application/grpc`, the name being the static table's entry 31.
pub(super) const HEAD_BLOCK: &[u8] = b"\x88\x0f\x10\x10application/grpc";

/// `grpc-status: 0`.
pub(super) const TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

/// The response to a call that succeeded, around its message.
pub(super) static OK: Envelope = Envelope::new(HEAD_BLOCK, TRAILERS);

/// Bytes before every message.
pub(super) const PREFIX: usize = 5;

/// The length of the message after a prefix; `max` is the longest one and the variable that sets it.
pub(super) fn length(prefix: [u8; PREFIX], max: (usize, &str), stats: &Stats) -> Result<usize, Failure> {
    let (max, source) = max;
    let [compressed, length @ ..] = prefix;
    if compressed != 0 {
        let message = "the message is compressed; send it with grpc-encoding identity";
        return Err(rejected(Status::unimplemented(message)).into());
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > max {
        stats.service().refused(RejectReason::MessageTooLarge).increment();
        let message = format!("the message has {length} bytes, the maximum is {max} ({source})");
        return Err(rejected(Status::resource_exhausted(message)).into());
    }
    Ok(length)
}

/// Parses a message without its prefix.
pub(super) fn read(message: &[u8], bounds: Bounds) -> Result<Request<'_>, Failure> {
    wire::read(message, bounds).map_err(|error| {
        rejected(Status::internal(format!("the message is not a RateLimitRequest: {error}"))).into()
    })
}

/// Logs the status of a request that cannot be decoded.
fn rejected(status: Status) -> Status {
    log_undecodable(status.message());
    status
}

/// The Go service's errors have the code UNKNOWN, on which its callers may rely.
pub(super) fn status(error: &RequestError) -> Status {
    let code = if error.is_out_of_bounds() { Code::InvalidArgument } else { Code::Unknown };
    Status::new(code, error.to_string())
}

/// The status of a call with data after its message.
pub(super) fn too_many_messages() -> Status {
    rejected(Status::internal("the request has more than one message, expected one"))
}

/// The status of a call that ends within its message.
pub(super) fn truncated() -> Status {
    rejected(Status::internal("the request ended before its message was complete"))
}

/// The status of a call whose message is incomplete at the caller's deadline; counts it.
pub(super) fn deadline_exceeded(stats: &Stats) -> Status {
    stats.service().refused(RejectReason::DeadlineExceeded).increment();
    Status::deadline_exceeded("the caller's grpc-timeout has passed")
}

pub(super) fn internal_error() -> Status {
    Status::internal("internal error; see the log of the rate limit service")
}

/// Sends a response that consists of a status alone.
pub(super) fn send_failure<S: Service>(http: &mut Connection<S>, id: u32, failure: &Failure) {
    let response = failure.clone().into_http::<()>();
    let mut block = Vec::with_capacity(128);
    write_head(&response, &mut block);
    http.send_head(id, &block, true);
}

/// The body of the response to a request that is not gRPC.
const NOT_GRPC: &[u8] = b"this port serves gRPC: expected content-type application/grpc\n";

/// Responds to a request that is not gRPC. gRPC requires the status, so that no other client takes it for a success.
pub(super) fn send_not_grpc<S: Service>(http: &mut Connection<S>, id: u32) {
    let mut block = Vec::with_capacity(64);
    write_status(&mut block, "415");
    write_field(&mut block, b"content-type", b"text/plain");
    http.send_head(id, &block, false);
    http.send_data(id, NOT_GRPC, End::Data);
}

fn write_head<B>(response: &http::Response<B>, block: &mut Vec<u8>) {
    write_status(block, response.status().as_str());
    write_fields(response.headers(), block);
}

fn write_fields(fields: &HeaderMap, block: &mut Vec<u8>) {
    for (name, value) in fields {
        write_field(block, name.as_str().as_bytes(), value.as_bytes());
    }
}

pub(super) fn framed(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut framed = Vec::with_capacity(length.saturating_add(PREFIX));
    framed.push(0);
    framed.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    // A vector grows as needed.
    let _ = message.encode(&mut framed);
    framed
}

/// The end of a response whose head was sent.
pub(super) fn end_with_failure(failure: &Failure) -> End {
    let (mut fields, mut block) = (HeaderMap::new(), Vec::with_capacity(64));
    // Fails only for metadata that no header can have, and there is none.
    let _ = failure.add_header(&mut fields);
    write_fields(&fields, &mut block);
    End::Trailers(block)
}

/// A moment this much later; the same one where the clock ends.
pub(super) fn after(moment: Instant, time: Duration) -> Instant {
    moment.checked_add(time).unwrap_or(moment)
}
