//! The second front end of the compiler: the AST of the messages that a control plane sends.
//!
//! [`compile_resources`](super::compile_resources) calls it once for each resource. The form of a message cannot be invalid,
//! so nothing is reported here. Protobuf defaults (an empty text, `false`, a 0 beside `unlimited`) count as absent. Places
//! are synthetic and only sort diagnostics; the path locates a value.

use prost_types::{Struct, value::Kind};

use super::{
    diagnostics::Place,
    model::{Metadata, Value},
    unit::Unit,
};
use crate::ast::{
    Field, Given, Rare, RareOfDescriptor, RareOfLimit, RawDescriptor, RawFile, RawLimit, RawLimits,
    RawReplaces,
};
use proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};

pub(super) fn read(config: &RateLimitConfig) -> RawFile {
    let place = Place::default();
    let mut reader = Reader { descriptors: 0 };
    RawFile {
        place: Some(place),
        domain: text(&config.domain, place),
        descriptors: list(reader.descriptors(&config.descriptors), place),
        ..RawFile::default()
    }
}

/// Numbers the descriptors, for synthetic lines.
struct Reader {
    descriptors: u32,
}

impl Reader {
    fn descriptors(&mut self, messages: &[RateLimitDescriptor]) -> Vec<RawDescriptor> {
        messages.iter().enumerate().map(|(index, message)| self.descriptor(index, message)).collect()
    }

    fn descriptor(&mut self, index: usize, message: &RateLimitDescriptor) -> RawDescriptor {
        self.descriptors += 1;
        let line = self.descriptors;
        let at = |column| Place { line, column };
        RawDescriptor {
            place: at(0),
            index,
            key: text(&message.key, at(1)),
            value: text(&message.value, at(2)),
            rate_limit: optional(
                message.rate_limit.as_ref().map(|policy| RawLimits::One(Box::new(limit(policy, line)))),
                at(7),
            ),
            descriptors: list(self.descriptors(&message.descriptors), at(8)),
            rare: rare_of_descriptor(message, line),
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
    let has_rare = message.unlimited || !message.name.is_empty() || !message.replaces.is_empty();
    let rare = || RareOfLimit {
        unlimited: flag(message.unlimited, at(12)),
        name: text(&message.name, at(13)),
        replaces: list((20..).map(at).zip(&message.replaces).map(replaces).collect(), at(14)),
        ..RareOfLimit::default()
    };
    RawLimit {
        place: at(7),
        unit: text(&unit, at(10)),
        requests_per_unit: optional(
            Some(u64::from(message.requests_per_unit)).filter(|requests| *requests > 0 || !message.unlimited),
            at(11),
        ),
        rare: if has_rare { rare().into() } else { Rare::default() },
        ..RawLimit::default()
    }
}

fn rare_of_descriptor(message: &RateLimitDescriptor, line: u32) -> Rare<RareOfDescriptor> {
    let at = |column| Place { line, column };
    if !(message.shadow_mode || message.quota_mode || message.detailed_metric || message.metadata.is_some()) {
        return Rare::default();
    }
    let rare = RareOfDescriptor {
        shadow_mode: flag(message.shadow_mode, at(3)),
        quota_mode: flag(message.quota_mode, at(4)),
        detailed_metric: flag(message.detailed_metric, at(5)),
        metadata: optional(message.metadata.as_ref().map(metadata), at(6)),
        ..RareOfDescriptor::default()
    };
    rare.into()
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

fn optional<T>(value: Option<T>, place: Place) -> Field<T> {
    value.map_or(Field::Absent, |value| Field::Given(Given { value, place, key: place }))
}

fn text(text: &str, place: Place) -> Field<String> {
    optional((!text.is_empty()).then(|| text.to_owned()), place)
}

fn flag(set: bool, place: Place) -> Field<bool> {
    optional(set.then_some(true), place)
}

fn list<T>(items: Vec<T>, place: Place) -> Field<Vec<T>> {
    optional((!items.is_empty()).then_some(items), place)
}

#[cfg(test)]
mod tests;
