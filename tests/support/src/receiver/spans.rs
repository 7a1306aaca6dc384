//! The OTLP messages that a collector receives and returns.
//!
//! The message types are declared here again, from the published field numbers: the exports of the service are not
//! decoded with the service's own types.

use std::{collections::BTreeMap, io::Read};

use flate2::read::GzDecoder;
use http::HeaderMap;
use prost::Message;

use super::metrics::{self, Metric};

/// The content of a request.
#[derive(Clone, Debug)]
pub struct Export {
    pub path: String,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
    pub resource: BTreeMap<String, AttributeValue>,
    pub spans: Vec<Span>,
    pub metrics: Vec<Metric>,
}

/// A received span.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    #[prost(bytes, tag = "1")]
    pub trace: Vec<u8>,
    #[prost(bytes, tag = "2")]
    pub id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes, tag = "4")]
    pub parent: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub begun: u64,
    #[prost(fixed64, tag = "8")]
    pub ended: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// The status of a span.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub enum AttributeValue {
    Text(String),
    Number(i64),
    List(Vec<AttributeValue>),
    Nothing,
}

impl Span {
    /// The attribute of this name.
    pub fn attribute(&self, key: &str) -> AttributeValue {
        values(&self.attributes).remove(key).unwrap_or(AttributeValue::Nothing)
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<AttributeValue>, const N: usize> From<[T; N]> for AttributeValue {
    fn from(list: [T; N]) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

/// Decodes a request.
pub(super) fn read(path: &str, headers: HeaderMap, body: &[u8], grpc: bool) -> Export {
    let (is_packed, message) = if grpc {
        let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
        assert_eq!(length, body.len() - 5, "expected one complete message");
        (body[0] == 1, &body[5..])
    } else {
        (headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip"), body)
    };
    let mut bytes = message.to_vec();
    if is_packed {
        bytes.clear();
        GzDecoder::new(message).read_to_end(&mut bytes).expect("invalid gzip");
    }
    let path = path.to_owned();
    if path.to_lowercase().contains("metrics") {
        let (resource, metrics) = metrics::read(&bytes);
        return Export { path, headers, bytes, resource, spans: Vec::new(), metrics };
    }
    let exported = Exported::decode(&*bytes).expect("not an ExportTraceServiceRequest");
    let mut resource = BTreeMap::new();
    let mut spans = Vec::new();
    for of_resource in exported.of_resources {
        resource.extend(values(&of_resource.resource.unwrap_or_default().attributes));
        spans.extend(of_resource.of_scopes.into_iter().flat_map(|of_scope| of_scope.spans));
    }
    Export { path, headers, bytes, resource, spans, metrics: Vec::new() }
}

/// The response to a batch with this many rejected spans.
pub(super) fn taken(left_out: Option<i64>) -> Vec<u8> {
    let part = left_out.map(|rejected| Part { rejected, message: "too many".to_owned() });
    Taken { part }.encode_to_vec()
}

pub(super) fn values(attributes: &[Attribute]) -> BTreeMap<String, AttributeValue> {
    attributes.iter().map(|attribute| (attribute.key.clone(), attribute.value())).collect()
}

impl Attribute {
    pub(super) fn value(&self) -> AttributeValue {
        self.value.as_ref().map_or(AttributeValue::Nothing, any)
    }
}

fn any(any: &Any) -> AttributeValue {
    match any {
        Any { text: Some(text), .. } => AttributeValue::Text(text.clone()),
        Any { number: Some(number), .. } => AttributeValue::Number(*number),
        Any { list: Some(list), .. } => AttributeValue::List(list.values.iter().map(self::any).collect()),
        _ => AttributeValue::Nothing,
    }
}

#[derive(Clone, PartialEq, Message)]
struct Exported {
    #[prost(message, repeated, tag = "1")]
    of_resources: Vec<OfResource>,
}

#[derive(Clone, PartialEq, Message)]
struct OfResource {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    of_scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
    #[prost(message, optional, tag = "5")]
    list: Option<List>,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Taken {
    #[prost(message, optional, tag = "1")]
    part: Option<Part>,
}

#[derive(Clone, PartialEq, Message)]
struct Part {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    message: String,
}
