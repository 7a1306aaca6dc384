//! Encodes a response as protobuf, without the allocations of prost's messages for the statuses and names.
//!
//! Field numbers are those of Envoy's API; a property test compares every byte with prost's encoding.

use crate::{
    limiter::{Answer, Code, CurrentLimit, Header, Status},
    rules::{Metadata, Value},
};

/// Appends the encoded response to `into`.
pub(in crate::server) fn encode(answer: &Answer, into: &mut Vec<u8>) {
    answer.write(into);
}

/// A message. Its fields are written twice: first to learn their length.
trait Fields {
    fn write(&self, out: &mut impl Out);
}

/// The destination of fields: a buffer, or a count of bytes.
trait Out: Sized {
    fn varint(&mut self, number: u64);
    fn bytes(&mut self, bytes: &[u8]);
    fn fields(&mut self, message: &impl Fields, length: usize);

    /// The tag of a field; of the wire types, 0 is a varint, 1 is eight bytes and 2 is length-delimited.
    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    /// A number, omitted if it is 0.
    fn number(&mut self, field: u64, number: u64) {
        if number != 0 {
            self.explicit_number(field, number);
        }
    }

    fn explicit_number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    /// A string, omitted if it is empty.
    fn text(&mut self, field: u64, text: &str) {
        if !text.is_empty() {
            self.explicit_text(field, text);
        }
    }

    fn explicit_text(&mut self, field: u64, text: &str) {
        self.key(field, 2);
        self.varint(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &impl Fields) {
        let mut length = Length(0);
        message.write(&mut length);
        self.key(field, 2);
        self.varint(length.0 as u64);
        self.fields(message, length.0);
    }
}

/// Counts the bytes instead of writing them.
struct Length(usize);

impl Out for Length {
    fn varint(&mut self, number: u64) {
        self.0 = self.0.saturating_add(prost::encoding::encoded_len_varint(number));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len());
    }

    fn fields(&mut self, _: &impl Fields, length: usize) {
        self.0 = self.0.saturating_add(length);
    }
}

impl Out for Vec<u8> {
    fn varint(&mut self, number: u64) {
        match u8::try_from(number) {
            // Nearly all tags and lengths.
            Ok(byte @ ..0x80) => self.push(byte),
            _ => prost::encoding::encode_varint(number, self),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn fields(&mut self, message: &impl Fields, _: usize) {
        message.write(self);
    }
}

impl Fields for Answer {
    fn write(&self, out: &mut impl Out) {
        out.number(1, code(self.code));
        for status in &self.statuses {
            out.message(2, status);
        }
        for header in &self.response_headers {
            out.message(3, header);
        }
        out.text(5, &self.body);
        if let Some(metadata) = &self.dynamic_metadata {
            out.message(6, metadata);
        }
    }
}

impl Fields for Status {
    fn write(&self, out: &mut impl Out) {
        out.number(1, code(self.code));
        if let Some(limit) = &self.current_limit {
            out.message(2, limit);
        }
        out.number(3, self.limit_remaining.into());
        if let Some(limit) = &self.current_limit {
            out.message(4, &Seconds(limit.seconds_until_reset));
        }
    }
}

impl Fields for CurrentLimit {
    fn write(&self, out: &mut impl Out) {
        out.number(1, self.requests_per_unit.into());
        out.number(2, self.unit as u64);
        out.text(3, self.name.as_deref().unwrap_or_default());
        if self.multiplier.get() != 1 {
            out.message(4, &Wrapped(self.multiplier.get()));
        }
    }
}

/// A `google.protobuf.UInt32Value`.
struct Wrapped(u32);

impl Fields for Wrapped {
    fn write(&self, out: &mut impl Out) {
        out.number(1, self.0.into());
    }
}

/// A `google.protobuf.Duration`.
struct Seconds(u64);

impl Fields for Seconds {
    fn write(&self, out: &mut impl Out) {
        out.number(1, self.0.min(i64::MAX as u64));
    }
}

impl Fields for Header {
    fn write(&self, out: &mut impl Out) {
        out.text(1, &self.name);
        out.text(2, &self.value);
    }
}

impl Fields for Metadata {
    fn write(&self, out: &mut impl Out) {
        for entry in self {
            out.message(1, &entry);
        }
    }
}

impl Fields for (&String, &Value) {
    fn write(&self, out: &mut impl Out) {
        out.text(1, self.0);
        out.message(2, self.1);
    }
}

/// A value is written even if it is 0 or empty, because its presence selects the kind.
impl Fields for Value {
    fn write(&self, out: &mut impl Out) {
        match self {
            Self::Null => out.explicit_number(1, 0),
            Self::Number(value) => {
                out.key(2, 1);
                out.bytes(&value.to_le_bytes());
            }
            Self::Text(text) => out.explicit_text(3, text),
            Self::Bool(value) => out.explicit_number(4, u64::from(*value)),
            Self::Map(map) => out.message(5, map),
            Self::List(values) => out.message(6, values),
        }
    }
}

impl Fields for Vec<Value> {
    fn write(&self, out: &mut impl Out) {
        for value in self {
            out.message(1, value);
        }
    }
}

/// The number of a code in `RateLimitResponse.Code`.
fn code(code: Code) -> u64 {
    match code {
        Code::Ok => 1,
        Code::OverLimit => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use prost::Message;
    use prost_types::{ListValue, Struct, Value as ProtoValue, value::Kind};

    use super::*;
    use crate::{
        proto::envoy::{
            config::core::v3::HeaderValue,
            service::ratelimit::v3::{
                RateLimitResponse,
                rate_limit_response::{self as response, DescriptorStatus, RateLimit},
            },
        },
        rules::Unit,
    };

    impl From<Answer> for RateLimitResponse {
        fn from(answer: Answer) -> Self {
            Self {
                overall_code: proto_code(answer.code).into(),
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
                code: proto_code(status.code).into(),
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

    /// The number of units in a window, omitted if it is one.
    fn unit_multiplier(limit: &CurrentLimit) -> Option<u32> {
        Some(limit.multiplier.get()).filter(|units| *units != 1)
    }

    impl From<Header> for HeaderValue {
        fn from(header: Header) -> Self {
            Self { key: header.name.as_ref().to_owned(), value: header.value, raw_value: Vec::new() }
        }
    }

    fn proto_code(code: Code) -> response::Code {
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
            Value::List(values) => {
                Kind::ListValue(ListValue { values: values.iter().map(to_value).collect() })
            }
            Value::Map(map) => Kind::StructValue(to_struct(map)),
        };
        ProtoValue { kind: Some(kind) }
    }

    fn any_code() -> impl Strategy<Value = Code> {
        prop::sample::select(vec![Code::Ok, Code::OverLimit])
    }

    fn status() -> impl Strategy<Value = Status> {
        let name = prop::option::of("\\PC{0,200}".prop_map(|name| name.as_str().into()));
        let multiplier = prop_oneof![Just(1), 1..=u32::MAX].prop_map(|units| NonZeroU32::new(units).unwrap());
        let unit = prop::sample::select(&Unit::ALL[..]);
        let limit = (any::<u32>(), unit, multiplier, name, any::<u64>());
        let limit = limit.prop_map(|(requests_per_unit, unit, multiplier, name, seconds_until_reset)| {
            CurrentLimit { requests_per_unit, unit, multiplier, name, seconds_until_reset }
        });
        (any_code(), prop::option::of(limit), any::<u32>()).prop_map(
            |(code, current_limit, limit_remaining)| Status { code, current_limit, limit_remaining },
        )
    }

    fn metadata() -> impl Strategy<Value = Metadata> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<f64>().prop_map(Value::Number),
            "\\PC{0,200}".prop_map(Value::Text),
        ];
        let value = leaf.prop_recursive(5, 40, 4, |value| {
            prop_oneof![
                prop::collection::vec(value.clone(), 0..4).prop_map(Value::List),
                prop::collection::btree_map("\\PC{0,9}", value, 0..4).prop_map(Value::Map),
            ]
        });
        prop::collection::btree_map("\\PC{0,9}", value, 0..4)
    }

    prop_compose! {
        fn answer()(
            code in any_code(),
            statuses in prop::collection::vec(status(), 0..5),
            headers in prop::collection::vec(("\\PC{0,20}", "\\PC{0,20}"), 0..4),
            body in prop_oneof![Just(String::new()), "\\PC{0,300}"],
            dynamic_metadata in prop::option::of(metadata()),
        ) -> Answer {
            let header = |(name, value): (String, String)| Header { name: name.into(), value };
            let response_headers = headers.into_iter().map(header).collect();
            Answer { code, statuses, response_headers, body, dynamic_metadata }
        }
    }

    proptest! {
        #[test]
        fn matches_the_encoding_of_prost(answer in answer()) {
            let mut written = Vec::new();
            encode(&answer, &mut written);
            prop_assert_eq!(written, RateLimitResponse::from(answer).encode_to_vec());
        }
    }
}
