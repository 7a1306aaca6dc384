//! `ShouldRateLimit` as a tonic service: the reference implementation.
//!
//! `GRPC_SERVER=tonic` serves the whole gRPC port with it, and the tests compare the service's own HTTP/2 connection with
//! it. A program that embeds Tollgate adds [`RateLimit`] to a tonic server of its own. `worker` passes connections to
//! [`Reference`] as it does to `driver`.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout_at,
};
use tonic::{
    Status,
    body::Body,
    server::NamedService,
    service::Routes,
    transport::server::{Connected, Server},
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_service::Service;

use super::settings::Settings;
use super::{
    Parts,
    activity::{GrpcActivity, OpenRequest},
    driver::Lifetime,
    framing::{self, PREFIX},
    head::grpc_timeout,
    quota_stream::{QuotaParts, QuotaStream},
    request_head::{RequestHead, concluded, finish_span},
    status::{self, Failure},
};
use crate::{
    health::{self, Health},
    socket::Socket,
    traced,
    wire::{self, quota::ReportField},
};
use exporters::tracing::Tracer;
use faults::panics::{self, Boundary, Panicked, caught};
use limiter::{Decided, Limiter};
use metrics::{Method, Stats};
use proto::{
    self,
    envoy::service::{
        rate_limit_quota::v3::{
            RateLimitQuotaResponse, RateLimitQuotaUsageReports,
            rate_limit_quota_service_server::{RateLimitQuotaService, RateLimitQuotaServiceServer},
        },
        ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
        },
    },
};

/// Serves the connections of a worker with tonic's server.
pub(super) struct Reference {
    connections: mpsc::UnboundedSender<Connection>,
}

impl Reference {
    /// Starts a server on the calling thread's [`LocalSet`](tokio::task::LocalSet). The handle completes when
    /// `drain` has turned true and every connection is closed.
    pub(super) fn start(
        settings: &Settings,
        parts: &Parts,
        aux: Routes,
        mut drain: watch::Receiver<bool>,
    ) -> (Self, JoinHandle<()>) {
        let (connections, mut incoming) = mpsc::unbounded_channel();
        let incoming = stream::poll_fn(move |context| {
            incoming
                .poll_recv(context)
                .map(|connection: Option<Connection>| connection.map(Ok::<_, io::Error>))
        });
        let service = Checked {
            inner: RateLimitServiceServer::new(RateLimit::new(parts.limiter.clone(), parts.tracer.clone()))
                // `Checked` has already rejected larger ones.
                .max_decoding_message_size(usize::MAX),
            limiter: parts.limiter.clone(),
            stats: parts.stats.clone(),
            max: settings.max_request_bytes,
        };
        let parts = QuotaParts {
            limiter: parts.limiter.clone(),
            quotas: parts.quotas.clone(),
            stats: parts.stats.clone(),
        };
        let quotas = RateLimitQuotaServiceServer::new(Division { parts, drain: drain.clone() })
            .max_decoding_message_size(settings.max_request_bytes.min(MAX_REPORT));
        let Lifetime { age, keepalive_interval, keepalive_timeout, .. } = Lifetime::new(settings);
        let mut server = Server::builder()
            .max_concurrent_streams(settings.max_concurrent_streams)
            .http2_keepalive_interval(keepalive_interval)
            .http2_keepalive_timeout(Some(keepalive_timeout));
        // Without `max_connection_age_grace`: with it, tonic 0.14 sends no GOAWAY before it closes the connection.
        if let Some(age) = age {
            server = server.max_connection_age(age);
        }
        let router = server.add_routes(aux.add_service(service).add_service(quotas));
        let serving = tokio::task::spawn_local(async move {
            let drained = async move {
                // An error means that the sender is dropped, which ends the server too.
                let _ = drain.wait_for(|drain| *drain).await;
            };
            // Only a listener can fail, and this one is a channel.
            let _ = router.serve_with_incoming_shutdown(incoming, drained).await;
        });
        (Self { connections }, serving)
    }

    pub(super) fn serve(&self, io: impl Socket + 'static, activity: Arc<GrpcActivity>) {
        let watched = activity.clone();
        // tonic cannot send a GOAWAY on a single connection, so a connection that makes room reads an end of file.
        let ending = Box::pin(async move {
            tokio::select! {
                _ = watched.handle.closing() => {}
                () = watched.preface_timeout() => {}
            }
        });
        let connection = Connection { io: Box::new(io), read: 0, activity, ending: Some(ending) };
        // A server that has drained drops late connections.
        let _ = self.connections.send(connection);
    }
}

/// `ShouldRateLimit` for tonic's generated [`RateLimitServiceServer`].
///
/// With a store across a network each thread that serves it calls [`Limiter::start_worker`] once, within its runtime. tonic
/// refuses a message whose texts are not UTF-8, as the Go service does; Tollgate's own port escapes them.
#[derive(Clone)]
pub struct RateLimit {
    limiter: Arc<Limiter>,
    tracer: Option<Arc<Tracer>>,
}

impl RateLimit {
    /// A service that decides with `limiter` and sends spans to `tracer`.
    pub fn new(limiter: Arc<Limiter>, tracer: Option<Arc<Tracer>>) -> Self {
        Self { limiter, tracer }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let mut head = head(&metadata.into_headers(), self.tracer.as_ref());
        let request = wire::request(&message);
        let limiter = &self.limiter;
        let until = head.until();
        let decided = traced::try_decide(limiter, head.span.as_deref_mut(), &request, limiter.now(), until);
        let answer = match decided.map_err(|error| status::of_error(&error)) {
            Ok(Decided::Answer(answer)) => Ok(answer),
            Ok(Decided::Wait(waiting)) => {
                let decided = waiting.await;
                concluded(head.span.take(), decided).map_err(|failure| *failure)
            }
            Err(status) => Err(status),
        };
        finish_span(head.span, answer.as_ref().err());
        let (mut answer, mut encoded) = (answer?, Vec::new());
        wire::encode(&answer, &mut encoded);
        if let Some(hold) = answer.hold.take() {
            hold.delivered();
        }
        let response =
            RateLimitResponse::decode(&*encoded).map_err(|error| Status::internal(error.to_string()))?;
        Ok(tonic::Response::new(response))
    }
}

/// The maximum size of a report: its buckets take up to 60 times their bytes once tonic has decoded them.
const MAX_REPORT: usize = 256 * 1024;

/// `StreamRateLimitQuotas` for tonic's generated [`RateLimitQuotaServiceServer`].
#[derive(Clone)]
struct Division {
    parts: QuotaParts,
    /// True: the streams end.
    drain: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl RateLimitQuotaService for Division {
    type StreamRateLimitQuotasStream =
        Pin<Box<dyn Stream<Item = Result<RateLimitQuotaResponse, Status>> + Send>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: tonic::Request<tonic::Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<tonic::Response<Self::StreamRateLimitQuotasStream>, Status> {
        let (mut reports, mut quota) = (request.into_inner(), QuotaStream::new(self.parts.clone()));
        let mut drain = self.drain.clone();
        let mut drained = Box::pin(async move {
            let _ = drain.wait_for(|drain| *drain).await;
        });
        let mut has_ended = false;
        let responses = stream::poll_fn(move |context| {
            if has_ended {
                return Poll::Ready(None);
            }
            let mut end = |status| {
                has_ended = true;
                Poll::Ready(Some(Err(status)))
            };
            while let Poll::Ready(report) = reports.poll_next_unpin(context) {
                let Some(report) = report else { return Poll::Ready(None) };
                if let Err(status) = report.and_then(|report| take_report(&mut quota, &report)) {
                    return end(status);
                }
            }
            match quota.poll_response(context) {
                Poll::Pending if drained.as_mut().poll(context).is_ready() => {
                    end(Status::unavailable("the connection is closing"))
                }
                polled => polled.map(|response| Some(Ok(response))),
            }
        });
        Ok(tonic::Response::new(Box::pin(responses)))
    }
}

fn take_report(quota: &mut QuotaStream, report: &RateLimitQuotaUsageReports) -> Result<(), Status> {
    let take =
        |quota: &mut QuotaStream, field: ReportField<'_>| quota.take(field).map_err(|failure| *failure);
    take(quota, ReportField::Domain(report.domain.as_bytes()))?;
    for usage in &report.bucket_quota_usages {
        take(quota, ReportField::Usage(&usage.encode_to_vec()))?;
    }
    quota.end_report().map_err(|failure| *failure)
}

/// Checks and counts the calls of tonic's generated service, which decodes a message before the service sees it: the size
/// of a message and the number of its parts are checked before, and texts that it would refuse are escaped.
#[derive(Clone)]
struct Checked {
    inner: RateLimitServiceServer<RateLimit>,
    limiter: Arc<Limiter>,
    stats: Arc<Stats>,
    max: usize,
}

impl NamedService for Checked {
    const NAME: &'static str = RateLimitServiceServer::<RateLimit>::NAME;
}

impl Service<Request<Body>> for Checked {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = head(request.headers(), None);
        let open_request = request.extensions().get::<Arc<GrpcActivity>>().cloned().map(OpenRequest::new);
        let mut checked = self.clone();
        Box::pin(async move {
            let _open_request = open_request;
            let (head, body) = request.into_parts();
            let response = caught(Boundary::GrpcRequest, async {
                panics::point("grpc_request");
                let message = read_in_time(&call, body, checked.max, &checked.stats).await;
                let message = message.and_then(|message| check(message, &checked.limiter));
                match message {
                    Ok(message) => {
                        let body = Body::new(Full::new(message));
                        checked.inner.call(Request::from_parts(head, body)).await
                    }
                    Err(failure) => Ok(failure.into_http()),
                }
            });
            let response = response.await.unwrap_or_else(|Panicked| Ok(status::internal_error().into_http()));
            let service = checked.stats.service();
            service.requests(Method::ShouldRateLimit).increment();
            service.response_time(Method::ShouldRateLimit).observe(call.begun.elapsed());
            response
        })
    }
}

fn head(headers: &HeaderMap, tracer: Option<&Arc<Tracer>>) -> RequestHead {
    let timeout = headers.get("grpc-timeout").and_then(|value| grpc_timeout(value.as_bytes()));
    RequestHead::new(Instant::now(), timeout, Some(headers), tracer)
}

/// Rejects a message that exceeds a bound before it is decoded, and escapes its texts.
fn check(framed: Bytes, limiter: &Limiter) -> Result<Bytes, Failure> {
    let (mut escaped, mut request) = (Vec::new(), limiter::Request::default());
    let message = framed.get(PREFIX..).unwrap_or_default();
    framing::read(message, limiter.bounds(), &mut escaped, &mut request)?;
    limiter.check(&request).map_err(|error| status::of_error(&error))?;
    drop(request);
    Ok(if escaped.is_empty() { framed } else { framing::framed_bytes(&escaped).into() })
}

/// Reads one message with its prefix until shortly before the caller's deadline, at which tonic itself would return
/// CANCELLED, which gRPC reserves for callers.
async fn read_in_time(call: &RequestHead, body: Body, max: usize, stats: &Stats) -> Result<Bytes, Failure> {
    let reading = read_message(body, max, stats);
    let Some(deadline) = call.until() else { return reading.await };
    let read = timeout_at(deadline.into(), reading).await;
    read.unwrap_or_else(|_| Err(status::deadline_exceeded(stats).into()))
}

/// Reads one message with its prefix, up to the end of the request.
async fn read_message(mut body: Body, max: usize, stats: &Stats) -> Result<Bytes, Failure> {
    let (mut data, mut length) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Status::cancelled(format!("the request was interrupted: {error}")))?;
        data.extend_from_slice(frame.data_ref().map_or(&[], |piece| piece));
        if let Some(prefix) = data.first_chunk() {
            length = Some(framing::length(*prefix, (max, "GRPC_MAX_REQUEST_BYTES"), stats)? + PREFIX);
        }
        if length.is_some_and(|length| data.len() > length) {
            return Err(status::too_many_messages().into());
        }
    }
    if length == Some(data.len()) { Ok(data.freeze()) } else { Err(status::truncated().into()) }
}

/// TCP, a unix socket, or TLS on either.
/// The size of the preface and the header of the first SETTINGS.
const PREFACE: usize = 24 + 9;

struct Connection {
    io: Box<dyn Socket>,
    /// The number of bytes read, up to the preface.
    read: usize,
    activity: Arc<GrpcActivity>,
    /// Completes when the service closes the connection; `None` afterwards.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Connected for Connection {
    type ConnectInfo = Arc<GrpcActivity>;

    fn connect_info(&self) -> Arc<GrpcActivity> {
        self.activity.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ending.as_mut().is_none_or(|ending| ending.as_mut().poll(context).is_ready()) {
            self.ending = None;
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        if self.read < PREFACE {
            self.read += into.filled().len() - before;
            if self.read >= PREFACE {
                self.activity.handle.ready(Instant::now());
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// The router of the other services, shared by all workers: health checks, reflection, and the response to unknown methods.
///
/// Spawns a task that reports every change of the service's health; call it on a [`LocalSet`](tokio::task::LocalSet).
pub(super) fn routes(health: &Arc<Health>) -> Routes {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health = health.clone();
    tokio::task::spawn_local(async move {
        net::restart::task(Boundary::Maintenance, async || report(&reporter, &health).await).await;
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
