//! gRPC's framing and statuses: what `calls` and the tonic `reference` have in common.
//!
//! A message stands behind a byte that says whether it is compressed, and its length in four.

use tonic::{Code, Status};

use crate::{
    limiter::{Bounds, Request, RequestError},
    server::wire,
    telemetry::metrics::{RejectReason as Reason, Stats},
};

/// A status on the heap: errors are rare, and calls are moved about.
pub(super) type Fault = Box<Status>;

/// Bytes in front of every message.
pub(super) const PREFIX: usize = 5;

/// The length of the message behind a prefix.
///
/// # Errors
/// When the message is compressed, or longer than `max`; the latter is counted.
pub(super) fn length(prefix: [u8; PREFIX], max: usize, stats: &Stats) -> Result<usize, Fault> {
    let [compressed, length @ ..] = prefix;
    if compressed != 0 {
        let help = "the message is compressed; send it with grpc-encoding identity";
        return Err(Status::unimplemented(help).into());
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > max {
        stats.service().refused(Reason::MessageTooLarge).increment();
        return Err(Status::resource_exhausted(format!(
            "the message has {length} bytes, at most {max} are taken (GRPC_MAX_REQUEST_BYTES)"
        ))
        .into());
    }
    Ok(length)
}

/// Reads the request of a message without its prefix.
///
/// # Errors
/// When the message is not a request.
pub(super) fn read(message: &[u8], bounds: Bounds) -> Result<Request<'_>, Fault> {
    wire::read(message, bounds)
        .map_err(|error| Status::internal(format!("the message is no RateLimitRequest: {error}")).into())
}

/// The errors of the Go service are of the code UNKNOWN, and its callers may look for that.
pub(super) fn status(refusal: &RequestError) -> Status {
    let code = if refusal.is_out_of_bounds() { Code::InvalidArgument } else { Code::Unknown };
    Status::new(code, refusal.to_string())
}

/// The answer to a request of which too much came.
pub(super) fn several_messages() -> Status {
    Status::internal("more than one message came in a call that takes one")
}

/// The answer to a request of which too little came.
pub(super) fn incomplete() -> Status {
    Status::internal("the request ended before its message did")
}

/// The answer to a call whose message did not come in the caller's time; it is counted.
pub(super) fn deadline_exceeded(stats: &Stats) -> Status {
    stats.service().refused(Reason::DeadlineExceeded).increment();
    Status::deadline_exceeded("the caller's grpc-timeout has passed")
}

/// The answer to a call that panicked.
pub(super) fn internal_error() -> Status {
    Status::internal("internal error; the log of the rate limit service has the details")
}
