//! The second front end of the compiler: the AST of the messages that a control plane sends.
//!
//! [`compile_resources`](super::compile_resources) calls it once for each resource. The form of a message cannot
//! be wrong, so nothing is reported here. Protobuf defaults (an empty text, `false`, a 0 beside `unlimited`)
//! count as absent. The places are made up and only sort diagnostics; the path locates a value.

use prost_types::{Struct, value::Kind};

use super::{
    diagnostic::Place,
    limit::Unit,
    model::{Metadata, Value},
};
use crate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};
use crate::rules::ast::{Field, Given, RawDescriptor, RawFile, RawLimit, RawLimits, RawReplaces};

/// The AST of a resource.
pub(super) fn read(config: &RateLimitConfig) -> RawFile {
    let place = Place { line: 0, column: 0 };
    let mut reader = Reader { descriptors: 0 };
    RawFile {
        place: Some(place),
        on_store_failure: Field::Absent,
        domain: text(&config.domain, place),
        descriptors: list(reader.descriptors(&config.descriptors), place),
    }
}

/// Numbers the descriptors, as made-up lines.
struct Reader {
    descriptors: u32,
}

impl Reader {
    fn descriptors(&mut self, messages: &[RateLimitDescriptor]) -> Vec<RawDescriptor> {
        messages.iter().enumerate().map(|(index, message)| self.descriptor(index, message)).collect()
    }

    fn descriptor(&mut self, index: usize, message: &RateLimitDescriptor) -> RawDescriptor {
        self.descriptors = self.descriptors.saturating_add(1);
        let line = self.descriptors;
        let at = |column| Place { line, column };
        RawDescriptor {
            place: at(0),
            index,
            key: text(&message.key, at(1)),
            value: text(&message.value, at(2)),
            shadow_mode: flag(message.shadow_mode, at(3)),
            quota_mode: flag(message.quota_mode, at(4)),
            detailed_metric: flag(message.detailed_metric, at(5)),
            // Messages have no such fields.
            value_to_metric: Field::Absent,
            share_threshold: Field::Absent,
            over_limit_body: Field::Absent,
            overrides_only: Field::Absent,
            metadata: message.metadata.as_ref().map(metadata).map_or(Field::Absent, |map| given(map, at(6))),
            rate_limit: message
                .rate_limit
                .as_ref()
                .map_or(Field::Absent, |policy| given(RawLimits::One(Box::new(limit(policy, line))), at(7))),
            descriptors: list(self.descriptors(&message.descriptors), at(8)),
        }
    }
}

fn limit(message: &RateLimitPolicy, line: u32) -> RawLimit {
    let at = |column| Place { line, column };
    let unit = match Unit::from_number(message.unit) {
        Some(unit) => unit.name().to_owned(),
        None if message.unit == 0 => String::new(),
        None => message.unit.to_string(),
    };
    let replaces = |(place, RateLimitReplace { name }): (Place, &RateLimitReplace)| RawReplaces {
        place,
        name: text(name, place),
    };
    RawLimit {
        place: at(7),
        index: 0,
        // Messages have no such fields.
        unit_multiplier: Field::Absent,
        algorithm: Field::Absent,
        burst: Field::Absent,
        counting: Field::Absent,
        unit: text(&unit, at(10)),
        requests_per_unit: match message.requests_per_unit {
            0 if message.unlimited => Field::Absent,
            requests => given(requests, at(11)),
        },
        unlimited: flag(message.unlimited, at(12)),
        name: text(&message.name, at(13)),
        replaces: list((20..).map(at).zip(&message.replaces).map(replaces).collect(), at(14)),
    }
}

fn metadata(map: &Struct) -> Metadata {
    map.fields.iter().map(|(key, content)| (key.clone(), value(content))).collect()
}

fn value(message: &prost_types::Value) -> Value {
    match &message.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => Value::Bool(*flag),
        Some(Kind::NumberValue(number)) => Value::Number(*number),
        Some(Kind::StringValue(text)) => Value::Text(text.clone()),
        Some(Kind::ListValue(list)) => Value::List(list.values.iter().map(value).collect()),
        Some(Kind::StructValue(map)) => Value::Map(metadata(map)),
    }
}

fn given<T>(value: T, place: Place) -> Field<T> {
    Field::Given(Given { value, place, key: place })
}

fn text(text: &str, place: Place) -> Field<String> {
    if text.is_empty() { Field::Absent } else { given(text.to_owned(), place) }
}

fn flag(set: bool, place: Place) -> Field<bool> {
    if set { given(true, place) } else { Field::Absent }
}

fn list<T>(items: Vec<T>, place: Place) -> Field<Vec<T>> {
    if items.is_empty() { Field::Absent } else { given(items, place) }
}

#[cfg(test)]
mod tests;
