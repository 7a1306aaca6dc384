//! The messages and clients of the rate limit APIs of Envoy and Kuadrant, xDS and OTLP, generated from `proto/` by `build.rs`.
//!
//! Each protobuf package is a module path: `envoy.service.ratelimit.v3` is `envoy::service::ratelimit::v3`.

pub mod encode;
pub mod protobuf;

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

/// The encoded descriptors of the rate limit API, for gRPC reflection and the JSON mapping.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The descriptor of a message of the rate limit API.
pub fn descriptor(name: &str) -> Result<MessageDescriptor, String> {
    static POOL: LazyLock<Option<DescriptorPool>> =
        LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).ok());
    let message = POOL.as_ref().and_then(|pool| pool.get_message_by_name(name));
    message.ok_or_else(|| format!("{name} is not among the compiled descriptors"))
}

/// A message with its descriptor, for protobuf's JSON mapping.
pub fn reflected(name: &str, message: &impl Message) -> Result<DynamicMessage, String> {
    let mut reflected = DynamicMessage::new(descriptor(name)?);
    reflected.transcode_from(message).map_err(|error| error.to_string())?;
    Ok(reflected)
}

pub use generated::{envoy, google, kuadrant, opentelemetry, ratelimit};

mod generated {
    #![allow(
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        reason = "the code is generated, and documented where the API is published"
    )]

    include!(concat!(env!("OUT_DIR"), "/modules.rs"));
}
