//! A response as text and as JSON.

use std::{borrow::Cow, fmt::Write as _};

use prost::Message;
use prost_reflect::DynamicMessage;

use super::Descriptor;
use crate::terminal::{ERROR, Failure, GOOD, paint};
use limit::{Unit, calendar::CalendarFields, in_words};
use proto::{
    self,
    envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Calendar, Code, DescriptorStatus, RateLimit},
        },
    },
};
use text::{duration, printable, thousands};

/// The response in proto3's JSON mapping, indented.
pub(super) fn json(response: &RateLimitResponse) -> Result<String, Failure> {
    mapped("envoy.service.ratelimit.v3.RateLimitResponse", response, serde_json::to_string_pretty)
        .map(|text| text + "\n")
}

/// A message in proto3's JSON mapping.
fn mapped(
    name: &str,
    message: &impl Message,
    write: fn(&DynamicMessage) -> serde_json::Result<String>,
) -> Result<String, Failure> {
    let mapped = proto::reflected(name, message)
        .and_then(|message| write(&message).map_err(|error| error.to_string()));
    mapped.map_err(|error| {
        let what = format!("the response cannot be printed: {error}");
        Failure::new(what, "the server may use another version of the API")
    })
}

/// The overall code, a line for each descriptor, and the other fields of the response. `unknown_domain` is the
/// message about a domain that the service does not have.
pub(super) fn text(
    descriptors: &[Descriptor],
    response: &RateLimitResponse,
    unknown_domain: Option<&str>,
) -> Result<String, Failure> {
    let style = match response.overall_code() {
        Code::Ok => GOOD,
        Code::OverLimit | Code::Unknown => ERROR,
    };
    let mut text = format!("{}\n", paint(style, response.overall_code().as_str_name()));
    let no_rule = match unknown_domain {
        Some(unknown) => unknown,
        // The response does not show which of the two it is.
        None if response.statuses.iter().any(|status| status.current_limit.is_some()) => {
            "no rule matches, or another one replaces it"
        }
        None => "no rule matches",
    };
    // Writing to a String cannot fail, here and below.
    for (descriptor, status) in descriptors.iter().zip(&response.statuses) {
        let _ = writeln!(text, "  {descriptor}: {}", status_line(status, no_rule));
    }
    let given = response.statuses.len();
    let wanted = descriptors.len();
    if given != wanted {
        let _ = writeln!(text, "  the response has {given} statuses for {wanted} descriptors");
    }
    add_headers(&mut text, "response headers", &response.response_headers_to_add);
    add_headers(&mut text, "request headers", &response.request_headers_to_add);
    add_body(&mut text, &response.raw_body);
    if let Some(metadata) = &response.dynamic_metadata {
        let metadata = mapped("google.protobuf.Struct", metadata, serde_json::to_string)?;
        let _ = writeln!(text, "dynamic metadata\n  {metadata}");
    }
    Ok(text)
}

/// `OK, 2 of 3 per minute remaining, resets in 17s, limit "name"`
fn status_line(status: &DescriptorStatus, no_rule: &str) -> String {
    let style = if status.code() == Code::Ok { GOOD } else { ERROR };
    let code = paint(style, status.code().as_str_name());
    let Some(limit) = &status.current_limit else {
        // The status of an unlimited rule has no limit and the maximum of `limit_remaining`.
        let reason = if status.limit_remaining == u32::MAX { "unlimited" } else { no_rule };
        return format!("{code}, {reason}");
    };
    let RateLimit { requests_per_unit, name, .. } = limit;
    let unit = Unit::from_number(limit.unit).unwrap_or(Unit::Unknown);
    let calendar = limit.calendar.as_ref().map(printable_calendar);
    let schedule = Some(printable(&limit.schedule).into_owned()).filter(|words| !words.is_empty());
    let notes: Vec<String> = calendar.into_iter().chain(schedule).collect();
    let has_notes = !notes.is_empty();
    let units = limit.unit_multiplier.unwrap_or(1);
    let words = in_words((*requests_per_unit).into(), unit, units.into(), notes);
    let left = thousands(status.limit_remaining.into());
    let seconds = status.duration_until_reset.as_ref().map(|reset| reset.seconds);
    let end = seconds.map(|seconds| match (&limit.calendar, u64::try_from(seconds)) {
        (Some(_), Ok(seconds)) => format!(", ends in {}", duration::short(seconds)),
        _ => format!(", resets in {seconds}s"),
    });
    let end = end.unwrap_or_default();
    let mut line = if has_notes {
        format!("{code}, {left} remaining of {words}{end}")
    } else {
        format!("{code}, {left} of {words} remaining{end}")
    };
    if !name.is_empty() {
        let _ = write!(line, ", limit {name:?}");
    }
    line
}

/// `Europe/Berlin, from the 15th`
fn printable_calendar(Calendar { time_zone, week_start, anchor_day }: &Calendar) -> String {
    let fields = CalendarFields {
        time_zone,
        week_start: Some(week_start.as_str()).filter(|day| !day.is_empty()),
        anchor_day: Some(u64::from(*anchor_day)).filter(|day| *day > 0),
    };
    printable(&fields.to_string()).into_owned()
}

fn add_headers(text: &mut String, title: &str, headers: &[HeaderValue]) {
    if !headers.is_empty() {
        let _ = writeln!(text, "{title}");
    }
    for HeaderValue { key, value, raw_value } in headers {
        let value =
            if value.is_empty() { String::from_utf8_lossy(raw_value) } else { Cow::Borrowed(value.as_str()) };
        let _ = writeln!(text, "  {}: {}", printable(key), printable(&value));
    }
}

fn add_body(text: &mut String, body: &[u8]) {
    if !body.is_empty() {
        let _ = writeln!(text, "body");
    }
    for line in String::from_utf8_lossy(body).lines() {
        let _ = writeln!(text, "  {}", printable(line));
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Duration, Struct, Value, value::Kind};

    use super::*;
    use crate::terminal::plain;
    use proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

    fn limited(code: Code, remaining: u32, name: &str) -> DescriptorStatus {
        let limit = RateLimit {
            requests_per_unit: 3,
            unit: Unit::Minute.into(),
            name: name.to_owned(),
            unit_multiplier: None,
            schedule: String::new(),
            calendar: None,
        };
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(limit),
            limit_remaining: remaining,
            duration_until_reset: Some(Duration { seconds: 17, nanos: 0 }),
            quota: None,
        }
    }

    fn descriptors(count: usize) -> Vec<Descriptor> {
        (0..count).map(|index| format!("key={index}").parse().unwrap()).collect()
    }

    fn header(key: &str, value: &str) -> HeaderValue {
        HeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: Vec::new() }
    }

    /// A response with something in every field that is printed.
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
    fn the_text_has_every_descriptor_header_and_metadata() {
        let expected = r#"OVER_LIMIT
  key=0: OK, 2 of 3 per minute remaining, resets in 17s
  key=1: OVER_LIMIT, 0 of 3 per minute remaining, resets in 17s, limit "daily"
  key=2: OK, unlimited
  key=3: OK, no rule matches, or another one replaces it
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
        assert_eq!(plain(&text(&descriptors(4), &full(), None).unwrap()), expected);
    }

    #[test]
    fn a_calendar_is_shown_with_the_end_of_its_window() {
        let mut status = limited(Code::Ok, 499, "budget");
        let calendar =
            Calendar { time_zone: "Europe/Berlin".into(), week_start: String::new(), anchor_day: 15 };
        status.current_limit.as_mut().unwrap().requests_per_unit = 500;
        status.current_limit.as_mut().unwrap().unit = Unit::Month.into();
        status.current_limit.as_mut().unwrap().calendar = Some(calendar);
        status.duration_until_reset = Some(Duration { seconds: 3 * 86_400 + 4 * 3600 + 59, nanos: 0 });
        let expected = "OK, 499 remaining of 500 per month (Europe/Berlin, from the 15th), ends in 3d 4h, limit \"budget\"";
        assert_eq!(plain(&status_line(&status, "")), expected);
    }

    #[test]
    fn distinguishes_an_unknown_domain_and_a_missing_rule() {
        let status = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let response = RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        let text = |unknown| plain(&text(&descriptors(1), &response, unknown).unwrap());
        assert_eq!(text(None), "OK\n  key=0: OK, no rule matches\n");
        assert_eq!(text(Some("unknown domain \"d\"")), "OK\n  key=0: OK, unknown domain \"d\"\n");
    }

    #[test]
    fn a_missing_status_is_reported() {
        let text = text(&descriptors(2), &RateLimitResponse::default(), None).unwrap();
        assert_eq!(plain(&text), "UNKNOWN\n  the response has 0 statuses for 2 descriptors\n");
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
    fn unknown_enum_values_are_printed_as_unknown() {
        let mut odd = limited(Code::Ok, 0, "");
        odd.code = 99;
        odd.current_limit = Some(RateLimit { unit: -1, ..Default::default() });
        assert_eq!(plain(&status_line(&odd, "")), "UNKNOWN, 0 of 0 at a time remaining, resets in 17s");
    }
}
