//! The statuses of gRPC calls, and how the responses bear them.

use http::HeaderMap;
use http2::{Connection, End, Service, write_field, write_status};
use tonic::{Code, Status};

use crate::{log_undecodable, wire::DecisionRpc};
use limiter::RequestError;
use metrics::{RejectReason, Stats};

/// A status other than OK, on the heap: failures are rare, and results are moved often.
pub(super) type Failure = Box<Status>;

/// The Go service's errors have the code UNKNOWN, on which its callers may rely; limitador's have UNAVAILABLE.
pub(super) fn of_error(rpc: DecisionRpc, error: &RequestError) -> Status {
    let code = match error {
        _ if error.is_out_of_bounds() => Code::InvalidArgument,
        _ if rpc.is_kuadrants() && error.is_unavailable() => Code::Unavailable,
        _ => Code::Unknown,
    };
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

pub(super) fn send_failure<S: Service>(http: &mut Connection<S>, id: u32, failure: &Failure) {
    let response = failure.clone().into_http::<()>();
    let mut block = Vec::with_capacity(128);
    write_status(&mut block, response.status().as_str());
    write_fields(response.headers(), &mut block);
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

fn write_fields(fields: &HeaderMap, block: &mut Vec<u8>) {
    for (name, value) in fields {
        write_field(block, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// The end of a response whose head was sent.
pub(super) fn end_with_failure(failure: &Failure) -> End {
    let mut fields = HeaderMap::new();
    let mut block = Vec::with_capacity(64);
    // Fails only for metadata that no header can have, and there is none.
    let _ = failure.add_header(&mut fields);
    write_fields(&fields, &mut block);
    End::Trailers(block)
}

/// Logs the status of a request that cannot be decoded.
pub(super) fn rejected(status: Status) -> Status {
    log_undecodable(status.message());
    status
}
