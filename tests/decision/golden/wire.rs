//! Sends a recorded request, and converts the answer to the JSON of the recordings.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use proto::{
    DESCRIPTORS,
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
};
use serde_json::{Value, json};

use support::{client::Client, http};

/// The answer to `[domain, descriptors, hits_addend]` over gRPC, or the error.
pub(crate) fn ask(client: &Client, ask: &Value) -> Value {
    let request = RateLimitRequest {
        domain: text(&ask[0]),
        descriptors: ask[1].as_array().unwrap().iter().map(descriptor).collect(),
        hits_addend: small(&ask[2]),
    };
    match client.ask(request) {
        Ok(response) => answer(&response),
        Err(status) => json!({"error": format!("{:?}", status.code()), "details": status.message()}),
    }
}

/// The status of `POST /json`, and the body if it is an answer.
pub(crate) fn post(port: u16, body: &str) -> Value {
    let response = http::post(port, "/json", body);
    let mut out = json!({"status": response.status});
    if matches!(response.status, 200 | 429) {
        let mut body = response.json();
        forget(&mut body["statuses"], "durationUntilReset");
        let headers = without_reset(&body["responseHeadersToAdd"]);
        let fields = body.as_object_mut().expect("an answer is an object");
        fields.retain(|_, value| !value.is_null());
        fields.remove("responseHeadersToAdd");
        if headers != json!([]) {
            fields.insert("responseHeadersToAdd".to_owned(), headers);
        }
        out["body"] = body;
    }
    out
}

/// With the field names of the .proto file, without fields that hold their default, without times.
fn answer(response: &RateLimitResponse) -> Value {
    static RESPONSE: LazyLock<MessageDescriptor> = LazyLock::new(|| {
        let pool = DescriptorPool::decode(DESCRIPTORS).expect("the build's descriptors are whole");
        pool.get_message_by_name("envoy.service.ratelimit.v3.RateLimitResponse")
            .expect("the API has its answer")
    });
    let message = DynamicMessage::decode(RESPONSE.clone(), response.encode_to_vec().as_slice());
    let options = SerializeOptions::new().use_proto_field_name(true);
    let message = message.expect("one encoding of a message is like another");
    let mut json = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .expect("an answer has a JSON form");
    forget(&mut json["statuses"], "duration_until_reset");
    json["response_headers_to_add"] = without_reset(&json["response_headers_to_add"]);
    json.as_object_mut().expect("an answer is an object").retain(|_, value| !value.is_null());
    json
}

fn forget(statuses: &mut Value, field: &str) {
    for status in statuses.as_array_mut().into_iter().flatten() {
        status.as_object_mut().expect("a status is an object").remove(field);
    }
}

/// The headers except the one with the time until the window ends.
fn without_reset(headers: &Value) -> Value {
    let is_reset = |header: &Value| text(&header["key"]).to_ascii_lowercase().contains("reset");
    headers.as_array().into_iter().flatten().filter(|header| !is_reset(header)).cloned().collect()
}

fn descriptor(value: &Value) -> RateLimitDescriptor {
    let entry = |entry: &Value| Entry { key: text(&entry[0]), value: text(&entry[1]) };
    let limit = value.get("limit").filter(|limit| !limit.is_null()).map(|limit| RateLimitOverride {
        requests_per_unit: small(&limit[0]),
        unit: i32::try_from(small(&limit[1])).unwrap(),
        unit_multiplier: None,
    });
    RateLimitDescriptor {
        entries: value["entries"].as_array().unwrap().iter().map(entry).collect(),
        limit,
        hits_addend: value.get("hits").and_then(Value::as_u64),
        is_negative_hits: false,
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("the recording has a text here").to_owned()
}

fn small(value: &Value) -> u32 {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).expect("the recording has a number here")
}
