//! The head of a call: whether it is one that can be answered, and how long its caller waits.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, header, request};
use tokio::time::Instant;
use tonic::Status;

use super::unary::{Fault, PATH};
use crate::{
    spans::{OpenSpan, Tracer},
    stats::{Refusal, Stats},
};

/// What is known of a call before its message has come.
pub(super) struct Opening {
    pub(super) begun: Instant,
    /// How long the caller waits, if it says so.
    time_out: Option<Duration>,
    /// Why it cannot be answered, if so.
    pub(super) fault: Option<Fault>,
    /// Its span, if it is traced.
    pub(super) span: Option<Box<OpenSpan>>,
}

/// The longest time that is kept back for the way of an answer to its caller.
const MARGIN: Duration = Duration::from_millis(2);

impl Opening {
    /// Reads the head of a call.
    pub(super) fn of(head: &request::Parts, tracer: Option<&Arc<Tracer>>) -> Self {
        Self { fault: check_call(head).err(), ..Self::new(&head.headers, tracer) }
    }

    /// Reads the headers of a call that can be answered.
    pub(super) fn new(headers: &HeaderMap, tracer: Option<&Arc<Tracer>>) -> Self {
        Self {
            begun: Instant::now(),
            time_out: time_out(headers),
            fault: None,
            // The path without its slash is what gRPC's instrumentations call a span.
            span: tracer.and_then(|tracer| tracer.join(headers, &PATH[1..])),
        }
    }

    /// When the caller gives up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.begun + self.time_out?)
    }

    /// When counters that have not answered are answered for: early enough that the caller hears of it.
    pub(super) fn until(&self) -> Option<std::time::Instant> {
        let time_out = self.time_out?;
        Some((self.begun + time_out - MARGIN.min(time_out / 4)).into_std())
    }
}

/// The answer to a call whose message did not come in the caller's time; it is counted.
pub(super) fn deadline_exceeded(stats: &Stats) -> Status {
    stats.service().refused(Refusal::DeadlineExceeded).increment();
    Status::deadline_exceeded("the caller's grpc-timeout has passed")
}

fn check_call(head: &request::Parts) -> Result<(), Fault> {
    if head.method != Method::POST {
        return Err(Status::internal(format!("the method is {}, gRPC calls are POST", head.method)).into());
    }
    let content_type = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !content_type.starts_with(b"application/grpc") {
        return Err(Status::internal("the content-type is not application/grpc").into());
    }
    Ok(())
}

/// The caller's `grpc-timeout`: at most eight digits and a unit. What cannot be read is as if not sent.
fn time_out(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_time_outs_as_grpc_writes_them() {
        for (text, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("1H", Some(Duration::from_secs(3600))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("0u", Some(Duration::ZERO)),
            ("", None),
            ("m", None),
            ("-1m", None),
            ("1x", None),
            ("100000000S", None),
        ] {
            let headers = HeaderMap::from_iter([(
                header::HeaderName::from_static("grpc-timeout"),
                HeaderValue::from_static(text),
            )]);
            assert_eq!(time_out(&headers), expected, "{text}");
        }
    }

    #[test]
    fn counters_have_until_shortly_before_the_caller_gives_up() {
        let begun = Instant::now();
        let of = |millis| Opening {
            begun,
            time_out: Some(Duration::from_millis(millis)),
            fault: None,
            span: None,
        };
        for (millis, micros) in [(20, 18_000), (8, 6_000), (4, 3_000), (0, 0), (60_000, 59_998_000)] {
            let until = of(millis).until().unwrap();
            assert_eq!(until - begun.into_std(), Duration::from_micros(micros), "{millis} ms");
        }
        let opening = Opening { begun, time_out: None, fault: None, span: None };
        assert_eq!((opening.until(), opening.deadline()), (None, None));
    }
}
