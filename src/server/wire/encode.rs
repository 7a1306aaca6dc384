//! An answer as protobuf's bytes, written straight from it: prost's messages would have to be made first,
//! with an allocation for the statuses and for each name.
//!
//! The hot call sends what is written here. The numbers of fields are those of Envoy's API, and a test
//! holds every byte against what prost makes of the same answer.

use crate::{
    limiter::{Answer, CurrentLimit, Header, Status},
    rules::{Metadata, Value},
};

/// Writes an answer behind what `into` holds.
pub(in crate::server) fn encode(answer: &Answer, into: &mut Vec<u8>) {
    answer.write(into);
}

/// What has fields. They are written twice, first to learn how long they are.
trait Fields {
    fn write(&self, out: &mut impl Out);
}

/// Where fields are written: into a buffer, or nowhere.
trait Out: Sized {
    fn varint(&mut self, number: u64);
    fn bytes(&mut self, bytes: &[u8]);
    fn fields(&mut self, message: &impl Fields, length: usize);

    /// What stands before a field; of the types there are, 0 is a varint, 1 eight bytes and 2 has a length.
    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    /// A number that is left out when it is 0.
    fn number(&mut self, field: u64, number: u64) {
        if number != 0 {
            self.whole_number(field, number);
        }
    }

    fn whole_number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    /// A text that is left out when it is empty.
    fn text(&mut self, field: u64, text: &str) {
        if !text.is_empty() {
            self.whole_text(field, text);
        }
    }

    fn whole_text(&mut self, field: u64, text: &str) {
        self.key(field, 2);
        self.varint(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &impl Fields) {
        let length = Length::of(message);
        self.key(field, 2);
        self.varint(length as u64);
        self.fields(message, length);
    }
}

/// How long what is written is.
struct Length(usize);

impl Length {
    fn of(message: &impl Fields) -> usize {
        let mut length = Self(0);
        message.write(&mut length);
        length.0
    }
}

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
            // Nearly all keys and lengths.
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
        out.number(1, super::code(self.code) as u64);
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
        out.number(1, super::code(self.code) as u64);
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
        if let Some(multiplier) = super::unit_multiplier(self) {
            out.message(4, &Wrapped(multiplier));
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

/// A value is written even where it is 0 or empty, because its presence selects the kind.
impl Fields for Value {
    fn write(&self, out: &mut impl Out) {
        match self {
            Self::Null => out.whole_number(1, 0),
            Self::Number(value) => {
                out.key(2, 1);
                out.bytes(&value.to_le_bytes());
            }
            Self::Text(text) => out.whole_text(3, text),
            Self::Bool(value) => out.whole_number(4, u64::from(*value)),
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::{limiter::Code, proto::envoy::service::ratelimit::v3::RateLimitResponse, rules::Unit};

    fn code() -> impl Strategy<Value = Code> {
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
        (code(), prop::option::of(limit), any::<u32>()).prop_map(|(code, current_limit, limit_remaining)| {
            Status { code, current_limit, limit_remaining }
        })
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
            code in code(),
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
        fn every_byte_is_what_prost_writes(answer in answer()) {
            let mut written = Vec::new();
            encode(&answer, &mut written);
            prop_assert_eq!(written, RateLimitResponse::from(answer).encode_to_vec());
        }
    }
}
