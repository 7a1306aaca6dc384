//! An answer for people, and the same as JSON.

use std::{borrow::Cow, fmt::Write as _};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};

use super::{descriptor::Descriptor, failure::Failure};
use crate::proto::{
    DESCRIPTORS,
    envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{DescriptorStatus, RateLimit},
        },
    },
};

/// The answer in proto3's JSON mapping, indented.
pub(super) fn json(response: &RateLimitResponse) -> Result<String, Failure> {
    let message = reflected("envoy.service.ratelimit.v3.RateLimitResponse", response)?;
    let text = serde_json::to_string_pretty(&message).map_err(|error| Failure::unprintable(&error))?;
    Ok(text + "\n")
}

/// The overall code, a line for each descriptor, and what else the answer holds.
pub(super) fn text(asked: &[Descriptor], response: &RateLimitResponse) -> Result<String, Failure> {
    let mut text = format!("{}\n", response.overall_code().as_str_name());
    // Writing to a String cannot fail.
    for (descriptor, status) in asked.iter().zip(&response.statuses) {
        let _ = writeln!(text, "  {descriptor}: {}", status_line(status));
    }
    let (given, wanted) = (response.statuses.len(), asked.len());
    if given != wanted {
        let _ = writeln!(text, "  the answer has {given} statuses for {wanted} descriptors");
    }
    add_headers(&mut text, "response headers", &response.response_headers_to_add);
    add_headers(&mut text, "request headers", &response.request_headers_to_add);
    add_body(&mut text, &response.raw_body);
    if let Some(metadata) = &response.dynamic_metadata {
        let metadata = reflected("google.protobuf.Struct", metadata)?;
        let metadata = serde_json::to_string(&metadata).map_err(|error| Failure::unprintable(&error))?;
        let _ = writeln!(text, "dynamic metadata\n  {metadata}");
    }
    Ok(text)
}

/// A message with its descriptor, by which it is written as JSON.
fn reflected(name: &str, message: &impl Message) -> Result<DynamicMessage, Failure> {
    let pool = DescriptorPool::decode(DESCRIPTORS).map_err(|error| Failure::unprintable(&error))?;
    let descriptor = pool.get_message_by_name(name).ok_or_else(|| Failure::unprintable(&name))?;
    let bytes = message.encode_to_vec();
    DynamicMessage::decode(descriptor, &*bytes).map_err(|error| Failure::unprintable(&error))
}

/// `OK, 2 of 3 per MINUTE remain, whole again in 17s, by the limit "name"`
fn status_line(status: &DescriptorStatus) -> String {
    let code = status.code().as_str_name();
    let Some(limit) = &status.current_limit else {
        // An unlimited rule has no limit to tell, but the largest remainder there is.
        let why = if status.limit_remaining == u32::MAX { "unlimited" } else { "no limit" };
        return format!("{code}, {why}");
    };
    let RateLimit { requests_per_unit, name, .. } = limit;
    let unit = limit.unit().as_str_name();
    let units = limit.unit_multiplier.map(|units| format!("{units} ")).unwrap_or_default();
    let mut line =
        format!("{code}, {} of {requests_per_unit} per {units}{unit} remain", status.limit_remaining);
    // Writing to a String cannot fail.
    if let Some(reset) = &status.duration_until_reset {
        let _ = write!(line, ", whole again in {}s", reset.seconds);
    }
    if !name.is_empty() {
        let _ = write!(line, ", by the limit {name:?}");
    }
    line
}

fn add_headers(text: &mut String, title: &str, headers: &[HeaderValue]) {
    if !headers.is_empty() {
        let _ = writeln!(text, "{title}");
    }
    for HeaderValue { key, value, raw_value } in headers {
        let value =
            if value.is_empty() { String::from_utf8_lossy(raw_value) } else { Cow::Borrowed(value.as_str()) };
        let _ = writeln!(text, "  {key}: {}", value.escape_debug());
    }
}

fn add_body(text: &mut String, body: &[u8]) {
    if !body.is_empty() {
        let _ = writeln!(text, "body");
    }
    for line in String::from_utf8_lossy(body).lines() {
        // What would move the cursor of a terminal is shown for what it is.
        let shown = line.chars().flat_map(|letter| match letter {
            control if control.is_control() => control.escape_debug().collect(),
            letter => vec![letter],
        });
        let _ = writeln!(text, "  {}", shown.collect::<String>());
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Duration, Struct, Value, value::Kind};

    use super::*;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit::Unit};

    fn limited(code: Code, remaining: u32, name: &str) -> DescriptorStatus {
        let limit = RateLimit {
            requests_per_unit: 3,
            unit: Unit::Minute.into(),
            name: name.to_owned(),
            unit_multiplier: None,
        };
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(limit),
            limit_remaining: remaining,
            duration_until_reset: Some(Duration { seconds: 17, nanos: 0 }),
            quota: None,
        }
    }

    fn asked(count: usize) -> Vec<Descriptor> {
        (0..count).map(|at| format!("key={at}").parse().unwrap()).collect()
    }

    fn header(key: &str, value: &str) -> HeaderValue {
        HeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: Vec::new() }
    }

    /// An answer with something in every field that is shown.
    fn full() -> RateLimitResponse {
        let unlimited =
            DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..Default::default() };
        let without = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let domain = Value { kind: Some(Kind::StringValue("d".to_owned())) };
        RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![
                limited(Code::Ok, 2, ""),
                limited(Code::OverLimit, 0, "daily"),
                unlimited,
                without,
            ],
            response_headers_to_add: vec![header("RateLimit-Limit", "3")],
            request_headers_to_add: vec![HeaderValue { raw_value: b"raw\n".to_vec(), ..header("x", "") }],
            raw_body: b"{\"wait\": 17}\n\x1b[1m\n".to_vec(),
            dynamic_metadata: Some(Struct { fields: [("domain".to_owned(), domain)].into() }),
            ..Default::default()
        }
    }

    #[test]
    fn the_text_tells_every_descriptor_header_and_metadata() {
        let expected = r#"OVER_LIMIT
  key=0: OK, 2 of 3 per MINUTE remain, whole again in 17s
  key=1: OVER_LIMIT, 0 of 3 per MINUTE remain, whole again in 17s, by the limit "daily"
  key=2: OK, unlimited
  key=3: OK, no limit
response headers
  RateLimit-Limit: 3
request headers
  x: raw\n
body
  {"wait": 17}
  \u{1b}[1m
dynamic metadata
  {"domain":"d"}
"#;
        assert_eq!(text(&asked(4), &full()).as_deref(), Ok(expected));
    }

    #[test]
    fn a_status_too_few_is_told() {
        let told = text(&asked(2), &RateLimitResponse::default()).unwrap();
        assert_eq!(told, "UNKNOWN\n  the answer has 0 statuses for 2 descriptors\n");
    }

    #[test]
    fn json_is_the_mapping_of_proto3() {
        let read: serde_json::Value = serde_json::from_str(&json(&full()).unwrap()).unwrap();
        assert_eq!(read["overallCode"], "OVER_LIMIT");
        assert_eq!(read["statuses"][0]["durationUntilReset"], "17s");
        assert_eq!(read["statuses"][1]["currentLimit"]["unit"], "MINUTE");
        assert_eq!(read["statuses"][2]["limitRemaining"], u32::MAX);
        assert_eq!(read["dynamicMetadata"], serde_json::json!({"domain": "d"}));
    }

    #[test]
    fn numbers_that_no_enum_knows_are_shown_as_unknown() {
        let mut odd = limited(Code::Ok, 0, "");
        odd.code = 99;
        odd.current_limit = Some(RateLimit { unit: -1, ..Default::default() });
        assert_eq!(status_line(&odd), "UNKNOWN, 0 of 0 per UNKNOWN remain, whole again in 17s");
    }
}
