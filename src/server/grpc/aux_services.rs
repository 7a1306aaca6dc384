//! The calls that tonic's router serves: health checks, reflection, and unknown methods.
//!
//! [`routes`] makes the router. [`AuxCalls`] are the calls of one connection: data of a stream is passed to the body of a
//! request, and the response is sent as the peer's windows allow.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_service::Service as _;

use super::{
    framing::{self, end_with, send_failure, write_head},
    http2::{Budget, Connection, End, Head, Reason, Service, Share},
};
use crate::{
    panics::{self, Boundary, Panicked},
    proto,
    server::health::{self, Health},
    telemetry::metrics::{Method, Stats},
};

/// The only one of these calls that is counted, as in the Go service.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// A `WINDOW_UPDATE` is sent for at least this much data.
const CREDIT_STEP: usize = 16 * 1024;

/// The calls of a connection that the router serves, by stream.
#[derive(Default)]
pub(super) struct AuxCalls {
    pub(super) calls: BTreeMap<u32, AuxCall>,
    /// Some calls were never polled.
    pub(super) has_fresh: bool,
}

pub(super) struct AuxCall {
    stage: Stage,
    /// Passes data to the service; `None` after the last.
    body: Option<UnboundedSender<Bytes>>,
    received: usize,
    /// Bytes that the service has read.
    read: Arc<AtomicUsize>,
    /// Bytes that were returned to the peer's window.
    credited: usize,
    share: Share,
    /// The start time of a health check.
    check: Option<Instant>,
}

enum Stage {
    Calling(Pin<Box<dyn Future<Output = Result<Response<tonic::body::Body>, Infallible>>>>),
    Answering(tonic::body::Body),
}

impl AuxCalls {
    pub(super) fn open(&mut self, id: u32, head: &Head, routes: &Routes, budget: &Arc<Budget>, now: Instant) {
        let (sender, receiver) = unbounded_channel();
        let read = Arc::<AtomicUsize>::default();
        let body = fed_body(receiver, read.clone());
        let request = head.request.as_deref().cloned().unwrap_or_default().map(|()| body);
        let check = (request.uri().path() == HEALTH_CHECK).then_some(now);
        let call = AuxCall {
            stage: Stage::Calling(Box::pin(routes.clone().call(request))),
            body: Some(sender),
            received: 0,
            read,
            credited: 0,
            share: Share::new(budget),
            check,
        };
        self.calls.insert(id, call);
        self.has_fresh = true;
    }

    /// Passes request data to the service.
    pub(super) fn data<S: Service>(&mut self, http: &mut Connection<S>, id: u32, data: &[u8], end: bool) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.received = call.received.saturating_add(data.len());
        let unread = call.received.saturating_sub(call.read.load(Ordering::Relaxed));
        if !call.share.resize(unread) {
            http.reset(id, Reason::EnhanceYourCalm);
            return self.remove(id);
        }
        if let Some(body) = &call.body
            && !data.is_empty()
        {
            // The service may have dropped the body.
            let _ = body.send(Bytes::copy_from_slice(data));
        }
        if end {
            call.body = None;
        }
        self.has_fresh = true;
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.calls.remove(&id);
    }

    pub(super) fn poll<S: Service>(
        &mut self,
        context: &mut Context<'_>,
        http: &mut Connection<S>,
        stats: &Stats,
    ) {
        self.has_fresh = false;
        self.calls.retain(|id, call| {
            let polled =
                panics::catch(Boundary::GrpcRequest, || call.poll(*id, context, http, stats).is_ready());
            let is_done = polled.unwrap_or_else(|Panicked| {
                send_failure(http, *id, &framing::internal_error().into());
                true
            });
            call.credit(*id, http);
            !is_done && http.call(*id).is_some()
        });
        http.take_unblocked();
    }
}

impl AuxCall {
    fn poll<S: Service>(
        &mut self,
        id: u32,
        context: &mut Context<'_>,
        http: &mut Connection<S>,
        stats: &Stats,
    ) -> Poll<()> {
        loop {
            match &mut self.stage {
                Stage::Calling(response) => {
                    panics::point("grpc_request_other");
                    let Ok(response) = ready!(response.as_mut().poll(context));
                    if let Some(begun) = self.check {
                        let service = stats.service();
                        service.requests(Method::Check).increment();
                        service.response_time(Method::Check).observe(begun.elapsed());
                    }
                    let mut block = Vec::with_capacity(256);
                    write_head(&response, &mut block);
                    let body = response.into_body();
                    http.send_head(id, &block, body.is_end_stream());
                    if body.is_end_stream() {
                        return Poll::Ready(());
                    }
                    self.stage = Stage::Answering(body);
                }
                Stage::Answering(body) => {
                    if http.is_blocked(id) {
                        return Poll::Pending;
                    }
                    match ready!(Pin::new(body).poll_frame(context)) {
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => http.send_data(id, &data, End::Open),
                            Err(frame) => {
                                http.send_data(id, &[], end_with(frame.trailers_ref()));
                                return Poll::Ready(());
                            }
                        },
                        None => {
                            http.send_data(id, &[], end_with(None));
                            return Poll::Ready(());
                        }
                        Some(Err(_)) => {
                            http.reset(id, Reason::Cancel);
                            return Poll::Ready(());
                        }
                    }
                }
            }
        }
    }

    /// Returns the bytes that the service has read to the peer's window.
    fn credit<S: Service>(&mut self, id: u32, http: &mut Connection<S>) {
        let read = self.read.load(Ordering::Relaxed);
        let more = read.saturating_sub(self.credited);
        if more >= CREDIT_STEP {
            self.credited = read;
            self.share.resize(self.received.saturating_sub(read));
            http.open_window(id, u32::try_from(more).unwrap_or(u32::MAX));
        }
    }
}

/// The body of a request, filled by the connection; `read` counts the bytes that the service has read.
fn fed_body(
    mut receiver: UnboundedReceiver<Bytes>,
    read: Arc<AtomicUsize>,
) -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
    StreamBody::new(stream::poll_fn(move |context| {
        receiver.poll_recv(context).map(|data| {
            let data = data?;
            read.fetch_add(data.len(), Ordering::Relaxed);
            Some(Ok(Frame::data(data)))
        })
    }))
}

/// The router, shared by all workers.
///
/// Spawns a task that reports every change of the service's health; call it on a [`LocalSet`](tokio::task::LocalSet).
pub(super) fn routes(health: &Arc<Health>) -> Routes {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health = health.clone();
    tokio::task::spawn_local(async move {
        panics::restart_task(Boundary::Maintenance, async || report(&reporter, &health).await).await;
    });
    let mut routes = Routes::new(health_service);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The descriptors are compiled into this binary, so neither fails; a test calls both.
    if let Ok(service) = reflection().build_v1() {
        routes = routes.add_service(service);
    }
    if let Ok(service) = reflection().build_v1alpha() {
        routes = routes.add_service(service);
    }
    routes.prepare()
}

async fn report(reporter: &HealthReporter, health: &Health) {
    let mut changes = health.changes();
    loop {
        let status =
            if *changes.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", health::GRPC_SERVICE] {
            reporter.set_service_status(service, status).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
