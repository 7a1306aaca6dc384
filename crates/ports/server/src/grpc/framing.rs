//! gRPC's message framing, shared by all calls and the tonic `reference`.
//!
//! A message follows a prefix: one byte for the compression and four for the length.

use std::time::{Duration, Instant};

use http2::Envelope;
use prost::Message;
use tonic::Status;

use super::status::{Failure, rejected};
use crate::wire::DecisionRpc;
use metrics::{RejectReason, Stats};
use proto::protobuf::Malformed;

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

pub(super) fn malformed(rpc: DecisionRpc, error: Malformed) -> Status {
    rejected(Status::internal(format!("the message is not a {}: {error}", rpc.request_name())))
}

pub(super) fn framed(message: &impl Message) -> Vec<u8> {
    framed_bytes(&message.encode_to_vec())
}

pub(super) fn framed_bytes(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A moment this much later; the same one where the clock ends.
pub(super) fn after(moment: Instant, time: Duration) -> Instant {
    moment.checked_add(time).unwrap_or(moment)
}
