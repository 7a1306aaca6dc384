//! gRPC's framing: a byte that says whether the message is compressed, its length in four, the message.

use tonic::Status;

use super::unary::Fault;
use crate::stats::{Refusal as Reason, Stats};

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
