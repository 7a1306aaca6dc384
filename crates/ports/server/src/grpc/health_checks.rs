//! `grpc.health.v1.Health`: health checks, and streams that report every change of the service's health.

use std::task::Context;

use http2::{
    End,
    meter::{Work, count},
};
use prost::Message as _;
use tonic::Status;
use tonic_health::pb::HealthCheckRequest;

use super::{
    calls::{Call, ConnectionCalls, Http},
    framing::{self, HEAD_BLOCK, PREFIX},
    pending::HealthWatch,
    request_head::RequestHead,
    rpc::Rpc,
    status::{self, Failure},
};
use crate::health::GRPC_SERVICE;
use faults::panics::{self, Boundary, Panicked};
use metrics::Method;

impl ConnectionCalls {
    pub(super) fn check(&mut self, http: &mut Http, id: u32, head: &RequestHead, framed: &[u8]) {
        match self.requested(framed) {
            Ok(()) => {
                let message = status(*self.calls.health.borrow());
                http.answer(id, &framing::OK, &message);
            }
            Err(failure) => status::send_failure(http, id, &failure),
        }
        self.count_check(head);
    }

    pub(super) fn count_check(&self, head: &RequestHead) {
        let service = self.calls.stats.service();
        service.requests(Method::Check).increment();
        service.response_time(Method::Check).observe(head.begun.elapsed());
    }

    /// Starts a stream of changes with the current health.
    pub(super) fn watch(&mut self, http: &mut Http, id: u32, framed: &[u8]) {
        let admitted = self.requested(framed).and_then(|()| self.admit_stream(http, id));
        if let Err(failure) = admitted {
            return status::send_failure(http, id, &failure);
        }
        if let Some(call) = http.call(id) {
            *call = Call::Watching(None);
        }
        http.send_head(id, HEAD_BLOCK, false);
        self.resume = true;
    }

    /// Sends a changed health to the streams that can take it, and arranges to be woken by the next change.
    pub(super) fn report_health(&mut self, http: &mut Http, context: &mut Context<'_>) {
        let health = self.health.get_or_insert_with(|| HealthWatch::new(&self.calls.health));
        health.register(context);
        let healthy = health.is_healthy();
        count(Work::Visited, self.streaming.ids.len());
        for id in &self.streaming.ids {
            let is_blocked = http.is_blocked(*id);
            if let Some(Call::Watching(sent)) = http.call(*id)
                && !is_blocked
                && sent.replace(healthy) != Some(healthy)
            {
                http.send_data(*id, &status(healthy), End::Open);
            }
        }
    }

    fn requested(&self, framed: &[u8]) -> Result<(), Failure> {
        let read = panics::catch(Boundary::GrpcRequest, || {
            panics::point("grpc_request_other");
            let message = self.calls.message_of(Rpc::Check, framed)?;
            let request = HealthCheckRequest::decode(message).map_err(|error| {
                Status::internal(format!("the message is not a HealthCheckRequest: {error}"))
            })?;
            if ["", GRPC_SERVICE].contains(&&*request.service) {
                return Ok(());
            }
            Err(Status::not_found("service not registered").into())
        });
        read.unwrap_or_else(|Panicked| Err(status::internal_error().into()))
    }
}

/// A framed `HealthCheckResponse`: its field 1 is `SERVING` or `NOT_SERVING`.
fn status(healthy: bool) -> [u8; PREFIX + 2] {
    [0, 0, 0, 0, 2, 1 << 3, if healthy { 1 } else { 2 }]
}
