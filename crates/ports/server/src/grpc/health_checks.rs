//! `grpc.health.v1.Health`: health checks, and streams that report every change of the service's health.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt as _, stream};
use prost::Message as _;
use tokio::sync::watch;
use tonic::Status;
use tonic_health::pb::HealthCheckRequest;

use super::{
    calls::{Calls, ConnectionCalls, Http},
    framing::{self, PREFIX},
    request_head::RequestHead,
    rpc::Rpc,
    status::{self, Failure},
    streaming::{Part, StreamMethod},
};
use crate::health::GRPC_SERVICE;
use faults::panics::{self, Boundary, Panicked};
use metrics::Method;

impl ConnectionCalls {
    pub(super) fn check(&mut self, http: &mut Http, id: u32, head: &RequestHead, framed: &[u8]) {
        let read = panics::catch(Boundary::GrpcRequest, || {
            panics::point("grpc_request_other");
            check_service(self.calls.message_of(Rpc::Check, framed)?)
        });
        match read.unwrap_or_else(|Panicked| Err(status::internal_error().into())) {
            Ok(()) => {
                let message = status(*self.calls.health.borrow());
                http.answer(id, &framing::OK, &message);
            }
            Err(failure) => status::send_failure(http, id, &failure),
        }
        self.count_check(head);
    }

    pub(super) fn count_check(&self, head: &RequestHead) {
        let service = self.calls.parts.stats.service();
        service.requests(Method::Check).increment();
        service.response_time(Method::Check).observe(head.begun.elapsed());
    }
}

/// Sends the health, and then each change of it, once its one message is complete.
pub(super) struct Watch {
    changes: Pin<Box<dyn Stream<Item = bool>>>,
    has_request: bool,
}

impl Watch {
    pub(super) fn new(health: &watch::Receiver<bool>) -> Self {
        let changes = stream::unfold((health.clone(), None), |(mut health, sent)| async move {
            let healthy = *health.wait_for(|healthy| sent != Some(*healthy)).await.ok()?;
            Some((healthy, (health, Some(healthy))))
        });
        // The health changes no more when its sender is gone; the call lasts.
        Self { changes: Box::pin(changes.chain(stream::pending())), has_request: false }
    }
}

impl StreamMethod for Watch {
    fn take(&mut self, unread: &[u8], calls: &Calls) -> Result<Option<Part>, Failure> {
        if self.has_request {
            return if unread.is_empty() { Ok(None) } else { Err(status::too_many_messages().into()) };
        }
        let Some(message) = calls.first_message(Rpc::Watch, unread)? else { return Ok(None) };
        check_service(message)?;
        self.has_request = true;
        Ok(Some(Part { length: PREFIX + message.len(), answer: None, pays_for_frame: false }))
    }

    fn is_within_message(&self) -> bool {
        !self.has_request
    }

    fn outlasts_request(&self) -> bool {
        true
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        match self.has_request.then(|| self.changes.poll_next_unpin(context)) {
            Some(Poll::Ready(Some(healthy))) => Poll::Ready(status(healthy).into()),
            _ => Poll::Pending,
        }
    }
}

/// Accepts a request for the health of this service.
fn check_service(message: &[u8]) -> Result<(), Failure> {
    let request = HealthCheckRequest::decode(message)
        .map_err(|error| Status::internal(format!("the message is not a HealthCheckRequest: {error}")))?;
    if ["", GRPC_SERVICE].contains(&&*request.service) {
        return Ok(());
    }
    Err(Status::not_found("service not registered").into())
}

/// A framed `HealthCheckResponse`: its field 1 is `SERVING` or `NOT_SERVING`.
fn status(healthy: bool) -> [u8; PREFIX + 2] {
    [0, 0, 0, 0, 2, 1 << 3, if healthy { 1 } else { 2 }]
}
