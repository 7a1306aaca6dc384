//! What the head of a call says to both implementations of it: how long its caller waits, and its trace.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderMap;

use super::calls::PATH;
use crate::telemetry::tracing::{OpenSpan, Tracer};

/// What is known of a call before its message has come.
pub(super) struct RequestHead {
    pub(super) begun: Instant,
    /// How long the caller waits, if it says so.
    pub(super) timeout: Option<Duration>,
    /// Its span, if it is traced.
    pub(super) span: Option<Box<OpenSpan>>,
}

/// The time that is kept for the answer's way to its caller, at most.
const MARGIN: Duration = Duration::from_millis(2);

impl RequestHead {
    pub(super) fn new(
        begun: Instant,
        timeout: Option<Duration>,
        headers: Option<&HeaderMap>,
        tracer: Option<&Arc<Tracer>>,
    ) -> Self {
        let span = tracer.zip(headers).and_then(|(tracer, headers)| {
            // The path without its slash is what gRPC's instrumentations call a span.
            tracer.join(headers, PATH.trim_start_matches('/'))
        });
        Self { begun, timeout, span }
    }

    /// When the caller gives up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.begun.checked_add(self.timeout?)
    }

    /// When counters that have not been answered are decided without: early enough for the caller to learn.
    pub(super) fn until(&self) -> Option<Instant> {
        let timeout = self.timeout?;
        let margin = timeout.checked_div(4).map_or(MARGIN, |quarter| quarter.min(MARGIN));
        self.begun.checked_add(timeout.saturating_sub(margin))
    }
}

/// A caller's `grpc-timeout`: what is read of it is added to moments.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_timeout(bytes: &[u8]) {
    let head = RequestHead { begun: Instant::now(), timeout: super::http2::grpc_timeout(bytes), span: None };
    assert_eq!(head.until().is_some(), head.deadline().is_some());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_until_shortly_before_the_caller_gives_up() {
        let begun = Instant::now();
        let of = |timeout| RequestHead { begun, timeout, span: None };
        for (millis, micros) in [(20, 18_000), (8, 6_000), (4, 3_000), (0, 0), (60_000, 59_998_000)] {
            let until = of(Some(Duration::from_millis(millis))).until().unwrap();
            assert_eq!(until - begun, Duration::from_micros(micros), "{millis} ms");
        }
        assert_eq!((of(None).until(), of(None).deadline()), (None, None));
    }
}
