//! Encodes a response as protobuf, without the allocations of prost's messages for the statuses and names.
//!
//! Field numbers are those of Envoy's API; a property test compares every byte with prost's encoding.

use limit::calendar::CalendarFields;
use limiter::{Answer, Code, CurrentLimit, Status};
use proto::encode::{eight_bytes, explicit_number, explicit_text, message, number, text};
use rules::{Metadata, Value};

/// Appends the encoded response to `out`.
pub(crate) fn encode(answer: &Answer, out: &mut Vec<u8>) {
    number(out, 1, code(answer.code));
    for status in &answer.statuses {
        message(out, 2, |out| encode_status(status, out));
    }
    for (field, headers) in [(3, &answer.response_headers), (4, &answer.request_headers)] {
        for header in headers {
            message(out, field, |out| {
                text(out, 1, &header.name);
                text(out, 2, &header.value);
            });
        }
    }
    text(out, 5, &answer.body);
    if let Some(metadata) = &answer.dynamic_metadata {
        message(out, 6, |out| encode_struct(metadata, out));
    }
}

/// The number of a code in `RateLimitResponse.Code`.
pub(super) fn code(code: Code) -> u64 {
    match code {
        Code::Ok => 1,
        Code::OverLimit => 2,
    }
}

fn encode_status(status: &Status, out: &mut Vec<u8>) {
    number(out, 1, code(status.code));
    if let Some(limit) = &status.current_limit {
        message(out, 2, |out| encode_limit(limit, out));
    }
    number(out, 3, in_32_bits(status.limit_remaining));
    if let Some(limit) = &status.current_limit {
        // A `google.protobuf.Duration`.
        message(out, 4, |out| number(out, 1, limit.seconds_until_reset.min(i64::MAX as u64)));
    }
}

fn encode_limit(limit: &CurrentLimit, out: &mut Vec<u8>) {
    number(out, 1, in_32_bits(limit.requests_per_unit));
    number(out, 2, limit.unit as u64);
    text(out, 3, limit.name.as_deref().unwrap_or_default());
    if limit.multiplier.get() != 1 {
        // A `google.protobuf.UInt32Value`.
        message(out, 4, |out| number(out, 1, limit.multiplier.get().into()));
    }
    if let Some(calendar) = limit.calendar {
        let CalendarFields { time_zone, week_start, anchor_day } = calendar.fields();
        message(out, 1000, |out| {
            text(out, 1, time_zone);
            text(out, 2, week_start.unwrap_or_default());
            number(out, 3, anchor_day.unwrap_or_default());
        });
    }
    if let Some(schedule) = &limit.schedule {
        text(out, 1001, &schedule.words);
    }
}

/// A number of a limit, whose field has 32 bits: larger ones saturate. Headers and metadata have all of it.
fn in_32_bits(number: u64) -> u64 {
    number.min(u32::MAX.into())
}

/// A `google.protobuf.Struct`.
fn encode_struct(metadata: &Metadata, out: &mut Vec<u8>) {
    for (key, value) in metadata {
        message(out, 1, |out| {
            text(out, 1, key);
            message(out, 2, |out| encode_value(value, out));
        });
    }
}

/// A `google.protobuf.Value`. It is written even if it is 0 or empty, because its presence selects the kind.
fn encode_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => explicit_number(out, 1, 0),
        Value::Number(value) => eight_bytes(out, 2, value.to_le_bytes()),
        Value::Text(text) => explicit_text(out, 3, text),
        Value::Bool(value) => explicit_number(out, 4, u64::from(*value)),
        Value::Map(map) => message(out, 5, |out| encode_struct(map, out)),
        Value::List(values) => message(out, 6, |out| {
            for value in values {
                message(out, 1, |out| encode_value(value, out));
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, sync::Arc};

    use proptest::prelude::*;
    use prost::Message;
    use prost_types::{ListValue, Struct, Value as ProtoValue, value::Kind};

    use super::*;
    use limit::{
        InForce, Unit,
        calendar::{AnchorDay, Calendar, Cycle, Weekday, Zone},
    };
    use limiter::Header;
    use proto::envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{self as response, DescriptorStatus, RateLimit},
        },
    };

    fn response_of(answer: Answer) -> RateLimitResponse {
        RateLimitResponse {
            overall_code: proto_code(answer.code).into(),
            statuses: answer.statuses.into_iter().map(status_of).collect(),
            response_headers_to_add: answer.response_headers.into_iter().map(header_of).collect(),
            request_headers_to_add: answer.request_headers.into_iter().map(header_of).collect(),
            raw_body: answer.body.into_string().into_bytes(),
            dynamic_metadata: answer.dynamic_metadata.map(|metadata| to_struct(&metadata)),
            ..RateLimitResponse::default()
        }
    }

    fn status_of(status: Status) -> DescriptorStatus {
        let duration_until_reset = status.current_limit.as_ref().map(|limit| prost_types::Duration {
            seconds: i64::try_from(limit.seconds_until_reset).unwrap_or(i64::MAX),
            nanos: 0,
        });
        DescriptorStatus {
            code: proto_code(status.code).into(),
            current_limit: status.current_limit.map(limit_of),
            limit_remaining: u32::try_from(status.limit_remaining).unwrap_or(u32::MAX),
            duration_until_reset,
            quota: None,
        }
    }

    fn limit_of(limit: CurrentLimit) -> RateLimit {
        RateLimit {
            requests_per_unit: u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX),
            unit: limit.unit as i32,
            unit_multiplier: unit_multiplier(&limit),
            calendar: limit.calendar.map(calendar_of),
            schedule: limit.schedule.map(|schedule| schedule.words.to_string()).unwrap_or_default(),
            name: limit.name.map(|name| name.as_ref().to_owned()).unwrap_or_default(),
        }
    }

    fn calendar_of(calendar: Calendar) -> response::Calendar {
        let CalendarFields { time_zone, week_start, anchor_day } = calendar.fields();
        response::Calendar {
            time_zone: time_zone.to_owned(),
            week_start: week_start.unwrap_or_default().to_owned(),
            anchor_day: u32::try_from(anchor_day.unwrap_or_default()).unwrap(),
        }
    }

    fn calendar() -> impl Strategy<Value = Calendar> {
        let cycle = prop_oneof![
            Just(Cycle::Day),
            prop::sample::select(&Weekday::ALL[..]).prop_map(Cycle::Week),
            (1_u64..=31).prop_map(|day| Cycle::Month(AnchorDay::new(day).unwrap())),
        ];
        let zone = prop::sample::select(Zone::names().collect::<Vec<_>>());
        (zone, cycle).prop_map(|(zone, cycle)| Calendar::new(Zone::find(zone).unwrap(), cycle))
    }

    /// The number of units in a window, omitted if it is one.
    fn unit_multiplier(limit: &CurrentLimit) -> Option<u32> {
        Some(limit.multiplier.get()).filter(|units| *units != 1)
    }

    fn header_of(header: Header) -> HeaderValue {
        HeaderValue { key: header.name.as_ref().to_owned(), value: header.value, raw_value: Vec::new() }
    }

    fn proto_code(code: Code) -> response::Code {
        match code {
            Code::Ok => response::Code::Ok,
            Code::OverLimit => response::Code::OverLimit,
        }
    }

    fn to_struct(metadata: &Metadata) -> Struct {
        Struct { fields: metadata.iter().map(|(key, value)| (key.clone(), to_value(value))).collect() }
    }

    fn to_value(value: &Value) -> ProtoValue {
        let kind = match value {
            Value::Null => Kind::NullValue(0),
            Value::Bool(value) => Kind::BoolValue(*value),
            Value::Number(value) => Kind::NumberValue(*value),
            Value::Text(value) => Kind::StringValue(value.clone()),
            Value::List(values) => {
                Kind::ListValue(ListValue { values: values.iter().map(to_value).collect() })
            }
            Value::Map(map) => Kind::StructValue(to_struct(map)),
        };
        ProtoValue { kind: Some(kind) }
    }

    fn any_code() -> impl Strategy<Value = Code> {
        prop::sample::select(vec![Code::Ok, Code::OverLimit])
    }

    fn large() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u32>().prop_map(u64::from), any::<u64>(), Just(u32::MAX.into()), Just(1 << 32)]
    }

    fn status() -> impl Strategy<Value = Status> {
        let name = prop::option::of("\\PC{0,200}".prop_map(|name| name.as_str().into()));
        let multiplier = prop_oneof![Just(1), 1..=u32::MAX].prop_map(|units| NonZeroU32::new(units).unwrap());
        let unit = prop::sample::select(&Unit::ALL[..]);
        let schedule = prop::option::of("\\PC{0,200}".prop_map(|words| {
            let words = words.into_boxed_str();
            Arc::new(InForce { words, ..InForce::default() })
        }));
        let calendar = prop::option::of(calendar());
        let limit = (large(), unit, multiplier, calendar, schedule, name, any::<u64>());
        let limit =
            limit.prop_map(|(requests_per_unit, unit, multiplier, calendar, schedule, name, reset)| {
                let seconds_until_reset = reset;
                CurrentLimit {
                    requests_per_unit,
                    unit,
                    multiplier,
                    calendar,
                    schedule,
                    name,
                    seconds_until_reset,
                }
            });
        (any_code(), prop::option::of(limit), large()).prop_map(|(code, current_limit, limit_remaining)| {
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
            code in any_code(),
            statuses in prop::collection::vec(status(), 0..5),
            [headers, forwarded] in [(); 2].map(|()| prop::collection::vec(("\\PC{0,20}", "\\PC{0,20}"), 0..4)),
            body in prop_oneof![Just(String::new()), "\\PC{0,300}"].prop_map(String::into_boxed_str),
            dynamic_metadata in prop::option::of(metadata().prop_map(Box::new)),
        ) -> Answer {
            let header = |(name, value): (String, String)| Header { name: name.into(), value };
            let [response_headers, request_headers] =
                [headers, forwarded].map(|headers| headers.into_iter().map(header).collect());
            let (hold, released) = (None, false);
            Answer { code, statuses, response_headers, request_headers, body, dynamic_metadata, hold, released }
        }
    }

    proptest! {
        #[test]
        fn matches_the_encoding_of_prost(answer in answer()) {
            let mut written = Vec::new();
            encode(&answer, &mut written);
            prop_assert_eq!(written, response_of(answer).encode_to_vec());
        }
    }
}
