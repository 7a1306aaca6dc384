//! Fuzz targets, and what the targets of services share: a grammar of hostile scripts, and the meter of their cost.

use crate::complete::Envelope;

mod allocations;
mod cost;
mod hold;
mod script;
mod splits;

pub use self::{
    allocations::{Allocations, Counting, allocations},
    cost::{Bounds, Cost},
    hold::hold,
    script::{Script, Step},
    splits::fuzz as fuzz_splits,
};

/// That of gRPC.
pub(crate) static ENVELOPE: Envelope =
    Envelope::new(b"\x88\x0f\x10\x10application/grpc", b"\x00\x0bgrpc-status\x010");
