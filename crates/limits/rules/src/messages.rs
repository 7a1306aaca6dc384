//! The messages of a control plane as documents, so that the reader of files reads them too.
//!
//! [`compile_resources`](super::compile_resources) calls it once for each resource. Protobuf defaults (an empty text, `false`,
//! a 0 beside `unlimited`) are absent, and the form of a message cannot be invalid. Places are in the order of the message
//! and only sort diagnostics; the path locates a value.

use prost_types::{Struct, value::Kind};

use super::yaml::{Content, Document, Meaning, NodeRef, Pair, Scalar};
use limit::Unit;
use proto::ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use text::diagnostics::Place;

pub(super) fn document(config: &RateLimitConfig) -> Document {
    let root = Writer { nodes: 0 }.map(|map| {
        map.text("domain", &config.domain);
        map.list("descriptors", &config.descriptors, descriptor);
    });
    Document { root: Some(root), remainder: None }
}

fn descriptor(map: &mut MapWriter<'_>, message: &RateLimitDescriptor) {
    map.text("key", &message.key);
    map.text("value", &message.value);
    map.flag("shadow_mode", message.shadow_mode);
    map.flag("quota_mode", message.quota_mode);
    map.flag("detailed_metric", message.detailed_metric);
    if let Some(metadata) = &message.metadata {
        map.put("metadata", |writer| writer.metadata(metadata));
    }
    if let Some(policy) = &message.rate_limit {
        map.put("rate_limit", |writer| writer.map(|map| limit(map, policy)));
    }
    map.list("descriptors", &message.descriptors, descriptor);
}

fn limit(map: &mut MapWriter<'_>, message: &RateLimitPolicy) {
    match Unit::from_number(message.unit) {
        Some(unit) => map.text("unit", unit.name()),
        None if message.unit == 0 => {}
        None => map.text("unit", &message.unit.to_string()),
    }
    if message.requests_per_unit > 0 || !message.unlimited {
        let requests = Meaning::Int(message.requests_per_unit.into());
        map.put("requests_per_unit", |writer| writer.scalar("", requests));
    }
    map.flag("unlimited", message.unlimited);
    map.text("name", &message.name);
    map.list("replaces", &message.replaces, |map, replaced| map.text("name", &replaced.name));
}

/// Numbers the nodes, for their places.
struct Writer {
    nodes: u32,
}

struct MapWriter<'w> {
    writer: &'w mut Writer,
    pairs: Vec<Pair>,
}

impl Writer {
    fn node(&mut self, content: impl FnOnce(&mut Self) -> Content) -> NodeRef {
        self.nodes += 1;
        let place = Place { line: self.nodes, column: 0 };
        NodeRef::new(content(self), place)
    }

    fn scalar(&mut self, text: &str, meaning: Meaning) -> NodeRef {
        self.node(|_| Content::Scalar(Scalar { text: text.into(), meaning }))
    }

    fn map(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> NodeRef {
        self.node(|writer| {
            let mut map = MapWriter { writer, pairs: Vec::new() };
            write(&mut map);
            Content::map(map.pairs)
        })
    }

    fn metadata(&mut self, message: &Struct) -> NodeRef {
        self.map(|map| {
            for (key, value) in &message.fields {
                map.put(key, |writer| writer.value(value));
            }
        })
    }

    fn value(&mut self, message: &prost_types::Value) -> NodeRef {
        match &message.kind {
            None | Some(Kind::NullValue(_)) => self.scalar("", Meaning::Null),
            Some(Kind::BoolValue(flag)) => self.scalar("", Meaning::Bool(*flag)),
            Some(Kind::NumberValue(number)) => self.scalar("", Meaning::Float(*number)),
            Some(Kind::StringValue(text)) => self.scalar(text, Meaning::Text),
            Some(Kind::ListValue(list)) => self
                .node(|writer| Content::list(list.values.iter().map(|value| writer.value(value)).collect())),
            Some(Kind::StructValue(map)) => self.metadata(map),
        }
    }
}

impl MapWriter<'_> {
    fn put(&mut self, key: &str, value: impl FnOnce(&mut Writer) -> NodeRef) {
        let key = self.writer.scalar(key, Meaning::Text);
        self.pairs.push(Pair::new(key, value(self.writer)));
    }

    fn text(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.put(key, |writer| writer.scalar(text, Meaning::Text));
        }
    }

    fn flag(&mut self, key: &str, is_set: bool) {
        if is_set {
            self.put(key, |writer| writer.scalar("", Meaning::Bool(true)));
        }
    }

    fn list<T>(&mut self, key: &str, items: &[T], write: impl Fn(&mut MapWriter<'_>, &T)) {
        if items.is_empty() {
            return;
        }
        self.put(key, |writer| {
            writer.node(|writer| {
                Content::list(items.iter().map(|item| writer.map(|map| write(map, item))).collect())
            })
        });
    }
}

#[cfg(test)]
mod tests;
