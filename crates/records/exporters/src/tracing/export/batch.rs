//! OTLP messages of spans.

use std::{borrow::Cow, io::Write};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::tracing::{
    sampling,
    span::{Span, Value},
};
use proto::opentelemetry::proto::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span as Sent, Status, span::SpanKind, status::StatusCode},
};

/// The bit of the flags for a sampled span, from W3C.
const SAMPLED: u32 = 1;

/// The bit that makes [`REMOTE`] meaningful.
const KNOWN: u32 = 0x100;

/// The bit for a parent of another service.
const REMOTE: u32 = 0x200;

/// The resource, with a random `service.instance.id` unless one is set.
pub(super) fn resource(set: &[(String, String)]) -> Resource {
    let mut attributes: Vec<_> = set.iter().map(|(key, value)| attribute(key, text(value.clone()))).collect();
    if !set.iter().any(|(key, _)| key == "service.instance.id") {
        attributes.push(attribute("service.instance.id", text(sampling::uuid())));
    }
    Resource { attributes }
}

pub(super) fn message(resource: Resource, batch: Vec<Span>, gzip: bool) -> Bytes {
    let scope =
        InstrumentationScope { name: "tollgate".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = batch.into_iter().map(sent).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    let resource_spans = vec![ResourceSpans { resource: Some(resource), scope_spans }];
    let plain = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
    if !gzip {
        return plain.into();
    }
    // Writing to a Vec cannot fail.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let _ = gzip.write_all(&plain);
    gzip.finish().unwrap_or_default().into()
}

fn sent(span: Span) -> Sent {
    let place = span.place;
    let remote = if place.parent_is_remote { REMOTE } else { 0 };
    let begun = span.begun.as_nanos();
    let nanos = |nanos: u128| u64::try_from(nanos).unwrap_or(u64::MAX);
    Sent {
        trace_id: place.trace.to_be_bytes().to_vec(),
        span_id: place.span.to_be_bytes().to_vec(),
        trace_state: place.state,
        parent_span_id: place.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        name: span.name.to_owned(),
        kind: if span.is_internal { SpanKind::Internal } else { SpanKind::Server }.into(),
        start_time_unix_nano: nanos(begun),
        end_time_unix_nano: nanos(begun.saturating_add(span.took.as_nanos())),
        attributes: span
            .attributes
            .into_iter()
            .map(|(key, of_ours)| attribute(key, value(of_ours)))
            .collect(),
        status: span.error.map(|message| Status { message, code: StatusCode::Error.into() }),
        flags: SAMPLED | KNOWN | remote,
    }
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(text: impl Into<String>) -> any_value::Value {
    any_value::Value::StringValue(text.into())
}

fn value(value: Value) -> any_value::Value {
    match value {
        Value::Text(value) => text(value),
        Value::Number(number) => any_value::Value::IntValue(number),
        Value::Texts(texts) => list(texts.into_iter().map(Cow::into_owned).map(text)),
        Value::Numbers(numbers) => list(numbers.into_iter().map(any_value::Value::IntValue)),
    }
}

fn list(values: impl Iterator<Item = any_value::Value>) -> any_value::Value {
    let values = values.map(|value| AnyValue { value: Some(value) }).collect();
    any_value::Value::ArrayValue(ArrayValue { values })
}

#[cfg(test)]
mod tests {
    use std::{io::Read, time::Duration};

    use flate2::read::GzDecoder;

    use super::*;
    use crate::tracing::span::Place;

    fn span() -> Span {
        Span {
            place: Place { state: "a=1".to_owned(), ..Place::below(7, 9, String::new()) },
            name: "call",
            begun: Duration::from_secs(10),
            took: Duration::from_nanos(5),
            attributes: vec![("texts", Value::Texts(vec!["x".into()])), ("number", 3.into())],
            error: Some("broken".to_owned()),
            ..Span::default()
        }
    }

    #[test]
    fn converts_every_field_of_a_span() {
        let sent = sent(span());
        assert_eq!((&sent.trace_id[..], sent.span_id.len()), (&7_u128.to_be_bytes()[..], 8));
        assert_eq!((&sent.parent_span_id[..], &*sent.trace_state), (&9_u64.to_be_bytes()[..], "a=1"));
        assert_eq!((sent.start_time_unix_nano, sent.end_time_unix_nano), (10_000_000_000, 10_000_000_005));
        assert_eq!((sent.kind, sent.flags), (2, 0x301));
        assert_eq!(sent.status.unwrap().code, 2);
        let root = super::sent(Span { place: Place::root(1), is_internal: true, ..Span::default() });
        assert_eq!((root.parent_span_id.len(), root.kind, root.flags, root.status), (0, 1, 0x101, None));
    }

    #[test]
    fn a_compressed_batch_has_the_same_content() {
        let plain = message(Resource::default(), vec![span(); 100], false);
        let gzip = message(Resource::default(), vec![span(); 100], true);
        let mut unpacked = Vec::new();
        GzDecoder::new(&gzip[..]).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked.len() == plain.len() && gzip.len() * 2 < plain.len(), "{}", gzip.len());
    }

    #[test]
    fn an_instance_has_a_random_id_unless_one_is_set() {
        let key = "service.instance.id";
        let of = |given: &[(String, String)]| {
            let attributes = resource(given).attributes;
            attributes
                .into_iter()
                .find(|attribute| attribute.key == key)
                .unwrap()
                .value
                .unwrap()
                .value
                .unwrap()
        };
        assert_ne!(of(&[]), of(&[]));
        assert_eq!(of(&[(key.to_owned(), "pod-7".to_owned())]), text("pod-7"));
    }
}
