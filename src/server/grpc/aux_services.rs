//! The calls that tonic's router answers: health checks, reflection, and calls that do not exist.
//!
//! [`routes`] makes the router, [`AuxCalls`] are the calls of one connection on their way through it: what
//! comes on their streams is fed to a request's body, and the response's body is sent as the peer's windows allow.

use std::{
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
use http::{Request, Response, Uri, Version};
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_service::Service;

use super::{
    calls::{Call, Calls, GONE, end_with, send_fault, write_head},
    framing,
    http2::{Budget, Connection, End, Fields, Head, Reason, Share},
};
use crate::{
    panics::{self, Boundary, Panicked},
    proto,
    server::health::{self, Health},
    telemetry::metrics::Method,
};

/// The call of these that is counted, as the Go service counts it.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// The peer receives a `WINDOW_UPDATE` when this much of its data was read.
const CREDIT_STEP: usize = 16 * 1024;

/// The calls of a connection that the router answers.
pub(super) struct AuxCalls {
    budget: Arc<Budget>,
    calls: Vec<Option<AuxCall>>,
    free: Vec<usize>,
    fresh: bool,
}

struct AuxCall {
    /// The stream; it is known when its first data comes.
    id: u32,
    stage: Stage,
    /// Where what comes goes; nothing when all has come.
    body: Option<UnboundedSender<Bytes>>,
    received: usize,
    /// What the service has read of it.
    read: Arc<AtomicUsize>,
    /// What of that the peer knows.
    credited: usize,
    share: Share,
    /// When it began, if it is a health check.
    check: Option<Instant>,
}

enum Stage {
    Calling(Pin<Box<dyn Future<Output = Result<Response<tonic::body::Body>, Infallible>>>>),
    Answering(tonic::body::Body),
}

impl AuxCalls {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: budget.clone(), calls: Vec::new(), free: Vec::new(), fresh: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.len() == self.free.len()
    }

    /// True if there are calls that were never polled.
    pub(super) fn has_fresh(&self) -> bool {
        self.fresh
    }

    /// Begins a call.
    pub(super) fn open(&mut self, id: u32, head: &Head, calls: &Calls, now: Instant) -> Call {
        let (body, receiver) = unbounded_channel();
        let read = Arc::<AtomicUsize>::default();
        let request = request(head.fields.as_deref(), fed_body(receiver, read.clone()));
        let check = (request.uri().path() == HEALTH_CHECK).then_some(now);
        let call = AuxCall {
            id,
            stage: Stage::Calling(Box::pin(calls.routes.clone().call(request))),
            body: Some(body),
            received: 0,
            read,
            credited: 0,
            share: Share::new(&self.budget),
            check,
        };
        let place = self.free.pop().unwrap_or(self.calls.len());
        match self.calls.get_mut(place) {
            Some(free) => *free = Some(call),
            None => self.calls.push(Some(call)),
        }
        self.fresh = true;
        Call::Aux(place)
    }

    /// Hands on what came.
    pub(super) fn data(&mut self, place: usize, http: &mut Connection<Call>, data: &[u8], end: bool) {
        let Some(Some(call)) = self.calls.get_mut(place) else { return };
        call.received = call.received.saturating_add(data.len());
        let unread = call.received.saturating_sub(call.read.load(Ordering::Relaxed));
        if !call.share.resize(unread) {
            http.reset(call.id, Reason::EnhanceYourCalm);
            return self.remove(place);
        }
        if let Some(body) = &call.body
            && !data.is_empty()
        {
            // A service that has answered need not read on.
            let _ = body.send(Bytes::copy_from_slice(data));
        }
        if end {
            call.body = None;
        }
        self.fresh = true;
    }

    pub(super) fn remove(&mut self, place: usize) {
        if self.calls.get_mut(place).is_some_and(|call| call.take().is_some()) {
            self.free.push(place);
        }
    }

    /// Goes on with all of them.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, http: &mut Connection<Call>, calls: &Calls) {
        self.fresh = false;
        for place in 0..self.calls.len() {
            let Some(Some(call)) = self.calls.get_mut(place) else { continue };
            let polled = panics::catch(Boundary::GrpcRequest, || call.poll(context, http, calls).is_ready());
            let done = polled.unwrap_or_else(|Panicked| {
                send_fault(http, call.id, &framing::internal_error().into());
                true
            });
            call.credit(http);
            match http.call(call.id) {
                Some(kept) if done => *kept = Call::Answered,
                Some(_) => continue,
                None => {}
            }
            self.remove(place);
        }
        http.take_unblocked();
        if self.is_empty() && self.calls.capacity() > 64 {
            *self = Self::new(&self.budget);
        }
    }
}

impl AuxCall {
    fn poll(&mut self, context: &mut Context<'_>, http: &mut Connection<Call>, calls: &Calls) -> Poll<()> {
        loop {
            match &mut self.stage {
                Stage::Calling(response) => {
                    panics::point("grpc_request_other");
                    let Ok(response) = ready!(response.as_mut().poll(context));
                    if let Some(begun) = self.check {
                        let service = calls.stats.service();
                        service.requests(Method::Check).increment();
                        service.response_time(Method::Check).observe(begun.elapsed());
                    }
                    let mut block = Vec::with_capacity(256);
                    write_head(&response, &mut block);
                    let body = response.into_body();
                    http.send_head(self.id, &block, body.is_end_stream());
                    if body.is_end_stream() {
                        return Poll::Ready(());
                    }
                    self.stage = Stage::Answering(body);
                }
                Stage::Answering(body) => {
                    if http.is_blocked(self.id) {
                        return Poll::Pending;
                    }
                    match ready!(Pin::new(body).poll_frame(context)) {
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => http.send_data(self.id, &data, End::Open),
                            Err(frame) => {
                                http.send_data(self.id, &[], end_with(frame.trailers_ref()));
                                return Poll::Ready(());
                            }
                        },
                        None => {
                            http.send_data(self.id, &[], end_with(None));
                            return Poll::Ready(());
                        }
                        Some(Err(_)) => {
                            http.reset(self.id, GONE);
                            return Poll::Ready(());
                        }
                    }
                }
            }
        }
    }

    /// Opens the window for as much as was read.
    fn credit(&mut self, http: &mut Connection<Call>) {
        let read = self.read.load(Ordering::Relaxed);
        let more = read.saturating_sub(self.credited);
        if more >= CREDIT_STEP {
            self.credited = read;
            self.share.resize(self.received.saturating_sub(read));
            http.open_window(self.id, u32::try_from(more).unwrap_or(u32::MAX));
        }
    }
}

/// The body of a request, fed by the connection; `read` counts the bytes that the service takes.
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

fn request<B>(fields: Option<&Fields>, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.version_mut() = Version::HTTP_2;
    if let Some(Fields { method, path, headers }) = fields {
        *request.method_mut() = method.clone();
        // What is no path leads nowhere, as the default does.
        *request.uri_mut() = Uri::try_from(path.as_slice()).unwrap_or_default();
        *request.headers_mut() = headers.clone();
    }
    request
}

/// The routes of these calls, made once and shared by all workers.
///
/// Spawns a task that hands every change of the service's health on; call it on a
/// [`LocalSet`](tokio::task::LocalSet).
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
    // The descriptors are compiled into this binary, so neither fails; a test asks for both.
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
