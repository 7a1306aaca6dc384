//! The head of a call that asks for a decision: its deadline and its span. Used by `calls` and the tonic `reference`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderMap;
use tonic::{Code, Status};

use super::status::{self, Failure};
use crate::{traced, wire::DecisionRpc};
use exporters::tracing::{OpenSpan, Tracer};
use limiter::{Answer, Concluded};

/// The properties of a call that are known before its message.
pub(super) struct RequestHead {
    pub(super) begun: Instant,
    pub(super) timeout: Option<Duration>,
    pub(super) span: Option<Box<OpenSpan>>,
}

/// The maximum part of the timeout that is reserved for sending the response.
const MARGIN: Duration = Duration::from_millis(2);

impl RequestHead {
    pub(super) fn new(
        begun: Instant,
        timeout: Option<Duration>,
        traced: Option<(DecisionRpc, &HeaderMap)>,
        tracer: Option<&Arc<Tracer>>,
    ) -> Self {
        let span = tracer.zip(traced).and_then(|(tracer, (rpc, headers))| {
            // OpenTelemetry names the span of a call by its path without the slash.
            let mut span = tracer.join(headers, rpc.name().trim_start_matches('/'))?;
            let (service, method) = rpc.names()?;
            span.add("rpc.system", "grpc".into());
            span.add("rpc.service", service.into());
            span.add("rpc.method", method.into());
            Some(span)
        });
        Self { begun, timeout, span }
    }

    /// The deadline of the message and of the store: early enough for the response to arrive before the caller's deadline.
    pub(super) fn until(&self) -> Option<Instant> {
        let timeout = self.timeout?;
        let margin = timeout.checked_div(4).map_or(MARGIN, |quarter| quarter.min(MARGIN));
        self.begun.checked_add(timeout.saturating_sub(margin))
    }
}

/// The answer to a call that has waited for the store. Ends its span.
pub(super) fn concluded(
    rpc: DecisionRpc,
    mut span: Option<Box<OpenSpan>>,
    concluded: Concluded,
) -> Result<Answer, Failure> {
    let decided = traced::concluded(span.as_deref_mut(), concluded);
    let answer = decided.map_err(|error| Failure::from(status::of_error(rpc, &error)));
    finish_span(span, answer.as_ref().err().map(AsRef::as_ref));
    answer
}

/// Ends the span of a call, if it has one, with the status of a failure or with OK.
pub(super) fn finish_span(span: Option<Box<OpenSpan>>, failure: Option<&Status>) {
    let Some(mut span) = span else { return };
    let code = failure.map_or(Code::Ok, Status::code);
    span.add("rpc.grpc.status_code", i64::from(i32::from(code)).into());
    if let Some(status) = failure {
        span.fail(status.message());
    }
    span.answered();
}

/// Fuzzes `grpc-timeout`: any value must be safe to add to a time.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_timeout(bytes: &[u8]) {
    let timeout = super::head::grpc_timeout(bytes);
    let head = RequestHead { begun: Instant::now(), timeout, span: None };
    assert_eq!(head.until().is_some(), timeout.is_some());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_deadline_is_shortly_before_the_callers() {
        let begun = Instant::now();
        let of = |timeout| RequestHead { begun, timeout, span: None };
        for (millis, micros) in [(20, 18_000), (8, 6_000), (4, 3_000), (0, 0), (60_000, 59_998_000)] {
            let until = of(Some(Duration::from_millis(millis))).until().unwrap();
            assert_eq!(until - begun, Duration::from_micros(micros), "{millis} ms");
        }
        assert_eq!(of(None).until(), None);
    }
}
