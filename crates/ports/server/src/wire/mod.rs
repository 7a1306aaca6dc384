//! Converts between Envoy's messages and the limiter's types; no other module of the server knows both.
//!
//! `request` reads a request from its bytes and `encode` writes a response as bytes, both without prost's messages, and
//! `decision_rpc` has what the methods do not have in common;
//! `rlqs` does the same for reports. Only the tonic reference has requests as messages.

mod decision_rpc;
mod encode;
mod request;
pub(super) mod rlqs;

pub(super) use decision_rpc::DecisionRpc;
pub(super) use encode::encode;
pub(super) use request::{read, read_escaped};

#[cfg(any(test, feature = "testing"))]
pub use request::fuzz;

use limiter::{Descriptor, Entry, LimitOverride, Request};
use proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry as Pair, RateLimitOverride as Limit},
    },
    service::ratelimit::v3::RateLimitRequest,
};

pub fn request(message: &RateLimitRequest) -> Request<'_> {
    Request {
        domain: &message.domain,
        descriptors: message.descriptors.iter().map(descriptor).collect(),
        hits_addend: message.hits_addend,
        ..Request::default()
    }
}

fn descriptor(message: &RateLimitDescriptor) -> Descriptor<'_> {
    let limit = message.limit.as_ref();
    Descriptor {
        entries: message.entries.iter().map(|Pair { key, value }| Entry { key, value }).collect(),
        excess_entries: 0,
        limit: limit.map(|&Limit { requests_per_unit, unit, unit_multiplier }| LimitOverride {
            requests_per_unit,
            unit,
            unit_multiplier,
        }),
        hits_addend: message.hits_addend,
        is_negative_hits: message.is_negative_hits,
    }
}
