//! Between Envoy's messages and the limiter's: the only room that knows both.
//!
//! `request` reads a request from its bytes and `encode` writes an answer as bytes, both without prost's
//! messages. Those are for `/json`, whose requests and answers are made from them and into them here.

mod encode;
mod request;

pub(super) use encode::encode;
use prost_types::{ListValue, Struct, Value as ProtoValue, value::Kind};
pub use request::read;

use crate::{
    limiter::{Answer, Code, CurrentLimit, Descriptor, Entry, Header, LimitOverride, Request, Status},
    proto::envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{self as response, DescriptorStatus, RateLimit},
        },
    },
    rules::{Metadata, Value},
};

impl<'a> From<&'a RateLimitRequest> for Request<'a> {
    fn from(message: &'a RateLimitRequest) -> Self {
        Self {
            domain: &message.domain,
            descriptors: message.descriptors.iter().map(Descriptor::from).collect(),
            excess_descriptors: 0,
            hits_addend: message.hits_addend,
        }
    }
}

impl<'a> From<&'a RateLimitDescriptor> for Descriptor<'a> {
    fn from(message: &'a RateLimitDescriptor) -> Self {
        let limit = message
            .limit
            .as_ref()
            .map(|limit| LimitOverride { requests_per_unit: limit.requests_per_unit, unit: limit.unit });
        Self {
            entries: message
                .entries
                .iter()
                .map(|entry| Entry { key: &entry.key, value: &entry.value })
                .collect(),
            excess_entries: 0,
            limit,
            hits_addend: message.hits_addend,
            is_negative_hits: message.is_negative_hits,
        }
    }
}

impl From<Answer> for RateLimitResponse {
    fn from(answer: Answer) -> Self {
        Self {
            overall_code: code(answer.code).into(),
            statuses: answer.statuses.into_iter().map(DescriptorStatus::from).collect(),
            response_headers_to_add: answer.response_headers.into_iter().map(HeaderValue::from).collect(),
            raw_body: answer.body.into_bytes(),
            dynamic_metadata: answer.dynamic_metadata.map(|metadata| to_struct(&metadata)),
            ..Self::default()
        }
    }
}

impl From<Status> for DescriptorStatus {
    fn from(status: Status) -> Self {
        let duration_until_reset = status.current_limit.as_ref().map(|limit| prost_types::Duration {
            seconds: i64::try_from(limit.seconds_until_reset).unwrap_or(i64::MAX),
            nanos: 0,
        });
        Self {
            code: code(status.code).into(),
            current_limit: status.current_limit.map(RateLimit::from),
            limit_remaining: status.limit_remaining,
            duration_until_reset,
            quota: None,
        }
    }
}

impl From<CurrentLimit> for RateLimit {
    fn from(limit: CurrentLimit) -> Self {
        Self {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit as i32,
            unit_multiplier: unit_multiplier(&limit),
            name: limit.name.map(|name| name.as_ref().to_owned()).unwrap_or_default(),
        }
    }
}

/// How many units a window has; a single one goes without saying.
fn unit_multiplier(limit: &CurrentLimit) -> Option<u32> {
    Some(limit.multiplier.get()).filter(|units| *units != 1)
}

impl From<Header> for HeaderValue {
    fn from(header: Header) -> Self {
        Self { key: header.name.as_ref().to_owned(), value: header.value, raw_value: Vec::new() }
    }
}

fn code(code: Code) -> response::Code {
    match code {
        Code::Ok => response::Code::Ok,
        Code::OverLimit => response::Code::OverLimit,
    }
}

fn to_struct(metadata: &Metadata) -> Struct {
    Struct { fields: metadata.iter().map(|(key, value)| (key.clone(), to_value(value))).collect() }
}

fn to_value(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(value) => Kind::NumberValue(*value),
        Value::Text(value) => Kind::StringValue(value.clone()),
        Value::List(values) => Kind::ListValue(ListValue { values: values.iter().map(to_value).collect() }),
        Value::Map(map) => Kind::StructValue(to_struct(map)),
    };
    ProtoValue { kind: Some(kind) }
}

/// A message, read by our own reader and by prost.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    request::fuzz(bytes);
}
