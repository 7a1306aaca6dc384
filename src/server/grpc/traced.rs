//! `ShouldRateLimit` with a span. Apart from `calls`, so that an untraced call costs one branch.

use std::{rc::Rc, time::Instant};

use tonic::Code;

use super::calls::{Calls, Fault, not_a_request, status};
use crate::{
    limiter::{Answer, Trail},
    server::{told, wire},
    spans::OpenSpan,
};

/// Decides a call and ends its span.
pub(super) async fn decide(
    calls: Rc<Calls>,
    mut span: Box<OpenSpan>,
    message: Vec<u8>,
    until: Option<Instant>,
) -> Result<Answer, Fault> {
    let answer = match wire::read(&message) {
        Ok(request) => {
            let mut trail = Trail::default();
            let decided = calls.limiter.decide_traced(&request, until, &mut trail).await;
            told::tell(&mut span, &request, decided.as_ref().ok(), &trail);
            decided.map_err(|refusal| status(&refusal).into())
        }
        Err(error) => Err(not_a_request(&error)),
    };
    end(span, answer.as_ref().map(|_| ()));
    answer
}

/// Ends the span of a call with what it came to.
pub(super) fn end(mut span: Box<OpenSpan>, answer: Result<(), &Fault>) {
    span.tell("rpc.system", "grpc".into());
    span.tell("rpc.service", "envoy.service.ratelimit.v3.RateLimitService".into());
    span.tell("rpc.method", "ShouldRateLimit".into());
    let code = answer.err().map_or(Code::Ok, |status| status.code());
    span.tell("rpc.grpc.status_code", i64::from(i32::from(code)).into());
    if let Err(status) = answer {
        span.fail(status.message());
    }
    span.answered();
}
