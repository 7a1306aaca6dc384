//! `ShouldRateLimit` of which a span tells. Apart from `unary`, so that calls without one pass by it.

use bytes::Bytes;
use hyper::body::Incoming;
use tonic::{Code, Status};

use super::{
    opening::Opening,
    unary::{Fault, ShouldRateLimit, encoded},
};
use crate::{limiter::Trail, server::told, spans::OpenSpan};

impl ShouldRateLimit {
    /// Answers the call and ends its span. Put this on the heap: it holds all that a call may need.
    pub(super) async fn traced(
        &self,
        mut span: Box<OpenSpan>,
        fault: Option<Fault>,
        opening: Opening,
        body: Incoming,
    ) -> Result<Bytes, Fault> {
        let answer = match fault {
            Some(fault) => Err(fault),
            None => self.decide_traced(&mut span, opening, body).await,
        };
        finish(span, answer.as_ref().err().map(AsRef::as_ref));
        answer
    }

    async fn decide_traced(
        &self,
        span: &mut OpenSpan,
        opening: Opening,
        mut body: Incoming,
    ) -> Result<Bytes, Fault> {
        let message = self.read_in_time(&opening, Bytes::new(), &mut body).await?;
        let request = self.read_request(&message)?;
        let mut trail = Trail::default();
        let decided = self.limiter.decide_traced(&request, opening.until(), &mut trail).await;
        told::tell(span, &request, decided.as_ref().ok(), &trail);
        encoded(decided)
    }
}

/// Ends the span of a call that failed with this status, or succeeded.
pub(super) fn finish(mut span: Box<OpenSpan>, failed: Option<&Status>) {
    span.tell("rpc.system", "grpc".into());
    span.tell("rpc.service", "envoy.service.ratelimit.v3.RateLimitService".into());
    span.tell("rpc.method", "ShouldRateLimit".into());
    let code = failed.map_or(Code::Ok, Status::code);
    span.tell("rpc.grpc.status_code", i64::from(i32::from(code)).into());
    if let Some(status) = failed {
        span.fail(status.message());
    }
    span.answered();
}
