//! `ShouldRateLimit` with a span. Apart from `calls`, so that an untraced call costs one branch.

use std::{rc::Rc, time::Instant};

use tonic::{Code, Status};

use super::{
    calls::Calls,
    framing::{self, Fault},
};
use crate::{
    limiter::{Answer, DecisionTrace},
    server::span_attributes,
    telemetry::tracing::OpenSpan,
};

/// Decides a call and ends its span.
pub(super) async fn decide(
    calls: Rc<Calls>,
    mut span: Box<OpenSpan>,
    message: Vec<u8>,
    until: Option<Instant>,
) -> Result<Answer, Fault> {
    let answer = match framing::read(&message, calls.limiter.bounds()) {
        Ok(request) => {
            let mut trace = DecisionTrace::default();
            let decided = calls.limiter.decide(&request, until, Some(&mut trace)).await;
            span_attributes::add(&mut span, &request, decided.as_ref().ok(), &trace);
            decided.map_err(|refusal| framing::status(&refusal).into())
        }
        Err(fault) => Err(fault),
    };
    finish(span, answer.as_ref().err().map(AsRef::as_ref));
    answer
}

/// Ends the span of a call that failed with this status, or succeeded.
pub(super) fn finish(mut span: Box<OpenSpan>, failed: Option<&Status>) {
    span.add("rpc.system", "grpc".into());
    span.add("rpc.service", "envoy.service.ratelimit.v3.RateLimitService".into());
    span.add("rpc.method", "ShouldRateLimit".into());
    let code = failed.map_or(Code::Ok, Status::code);
    span.add("rpc.grpc.status_code", i64::from(i32::from(code)).into());
    if let Some(status) = failed {
        span.fail(status.message());
    }
    span.answered();
}
