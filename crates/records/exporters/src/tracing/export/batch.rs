//! OTLP messages of spans.

use std::borrow::Cow;

use crate::{
    otlp::message::{self, attribute, text},
    tracing::span::{Span, Value},
};
use proto::opentelemetry::proto::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, ArrayValue, any_value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span as Sent, Status, span::SpanKind, status::StatusCode},
};

/// The bit of the flags for a sampled span, from W3C.
const SAMPLED: u32 = 1;

/// The bit that makes [`REMOTE`] meaningful.
const KNOWN: u32 = 0x100;

/// The bit for a parent of another service.
const REMOTE: u32 = 0x200;

pub(super) fn request(resource: Resource, batch: Vec<Span>) -> ExportTraceServiceRequest {
    let spans = batch.into_iter().map(sent).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(message::scope()), spans }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }],
    }
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
    use std::time::Duration;

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
}
