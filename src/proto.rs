//! The messages and clients of Envoy's rate limit API, xDS and OTLP, generated from `proto/` by `build.rs`.
//!
//! Each protobuf package is a module path: `envoy.service.ratelimit.v3` is `envoy::service::ratelimit::v3`.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "the code is generated, and documented where the API is published"
)]

/// The encoded descriptors of the rate limit API, for gRPC reflection and the JSON mapping.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

include!(concat!(env!("OUT_DIR"), "/modules.rs"));
