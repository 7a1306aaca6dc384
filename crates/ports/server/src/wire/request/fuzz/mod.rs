//! The obvious model of the parser: prost decodes the strings as bytes, and each is escaped character by character.
//! The parser accepts the same messages, with the same content.

#![expect(clippy::indexing_slicing, clippy::missing_panics_doc, reason = "a model for tests")]

use prost::Message;

use super::read;
use crate::wire::DecisionRpc;
use limiter::{Bounds, Request};
use proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};

#[derive(Clone, PartialEq, Message)]
struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RawDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<RawEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RawEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The message that prost decodes, with escaped texts.
pub(super) fn decode(bytes: &[u8]) -> Result<RateLimitRequest, prost::DecodeError> {
    let RawRequest { domain, descriptors, hits_addend } = RawRequest::decode(bytes)?;
    let entry = |RawEntry { key, value }| Entry { key: escaped(&key), value: escaped(&value) };
    let descriptor = |raw: RawDescriptor| RateLimitDescriptor {
        entries: raw.entries.into_iter().map(entry).collect(),
        limit: raw.limit,
        hits_addend: raw.hits_addend,
        is_negative_hits: raw.is_negative_hits,
    };
    let descriptors = descriptors.into_iter().map(descriptor).collect();
    Ok(RateLimitRequest { domain: escaped(&domain), descriptors, hits_addend })
}

fn escaped(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while !bytes.is_empty() {
        let shortest = (1..=bytes.len().min(4)).find_map(|length| std::str::from_utf8(&bytes[..length]).ok());
        if let Some(character) = shortest.filter(|character| *character != "\u{fffd}") {
            text.push_str(character);
            bytes = &bytes[character.len()..];
        } else {
            text = format!("{text}\u{fffd}{:02X}", bytes[0]);
            bytes = &bytes[1..];
        }
    }
    text
}

/// Compares the parser with the model.
pub fn fuzz(bytes: &[u8]) {
    let none = Bounds { descriptors: usize::MAX, entries: usize::MAX };
    let by_prost = decode(bytes);
    let mut escaped = Vec::new();
    let mut ours = Request::default();
    match (read(DecisionRpc::ShouldRateLimit, bytes, none, &mut escaped, &mut ours), &by_prost) {
        (Ok(()), Ok(message)) => assert_eq!(ours, crate::wire::request(message)),
        (Err(_), Err(_)) => {}
        (outcome, prosts) => assert!(outcome.is_ok() == prosts.is_ok(), "{ours:?} but {prosts:?}"),
    }
    let some = Bounds { descriptors: 2, entries: 2 };
    let mut escaped = Vec::new();
    let mut request = Request::default();
    if read(DecisionRpc::ShouldRateLimit, bytes, some, &mut escaped, &mut request).is_ok() {
        assert!(request.descriptors.len() <= 2);
        assert!(request.descriptors.iter().all(|descriptor| descriptor.entries.len() <= 2));
    }
}
