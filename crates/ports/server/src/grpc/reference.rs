//! The calls that ask for a decision as tonic services: the reference implementation.
//!
//! `GRPC_SERVER=tonic` serves the whole gRPC port with it, and the tests compare the service's own HTTP/2 connection with
//! it. A program that embeds Tollgate adds [`RateLimit`] to a tonic server of its own. `worker` passes connections to
//! [`Reference`] as it does to `driver`.

use std::{
    convert::Infallible,
    future::{self, Future},
    io::Cursor,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message as _;
use tokio::{
    io::AsyncReadExt as _,
    sync::watch,
    time::{sleep, timeout, timeout_at},
};
use tonic::{Status, body::Body, server::NamedService, service::Routes};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_service::Service;

use super::{
    Parts,
    activity::{GrpcActivity, OpenRequest, PREFACE_TIMEOUT},
    driver::Lifetime,
    framing::{self, PREFIX},
    head::grpc_timeout,
    quota_stream::QuotaStream,
    request_head::{RequestHead, concluded, finish_span},
    settings::Settings,
    status::{self, Failure},
};
use crate::{
    connections::FAREWELL,
    health::{self, Health},
    socket::Socket,
    traced,
    wire::{self, DecisionRpc, rlqs::ReportField},
};
use exporters::tracing::Tracer;
use faults::panics::{self, Boundary, Panicked, caught};
use limiter::{Decided, Limiter};
use metrics::{ConnectionClosed, Stats};
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
    kuadrant::service::ratelimit::v1::{
        CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
        rate_limit_service_server::{RateLimitService as Kuadrant, RateLimitServiceServer as KuadrantServer},
    },
};

/// The size of the preface and the header of the first SETTINGS.
const PREFACE: usize = 24 + 9;

/// Serves the connections of a worker with tonic's services, on hyper's HTTP/2 as tonic's own server does. That one has no
/// means to close a single connection with a GOAWAY.
pub(super) struct Reference {
    routes: Routes,
    http: http2::Builder<TokioExecutor>,
    lifetime: Lifetime,
}

impl Reference {
    pub(super) fn new(
        settings: &Settings,
        parts: &Parts,
        aux: Routes,
        drain: &watch::Receiver<bool>,
    ) -> Self {
        let service = RateLimit::new(parts.limiter.clone(), parts.tracer.clone());
        // `Checked` has already rejected larger ones.
        let envoys = RateLimitServiceServer::new(service.clone()).max_decoding_message_size(usize::MAX);
        let kuadrants = KuadrantServer::new(service).max_decoding_message_size(usize::MAX);
        let envoys = Checked::new(envoys, settings, parts);
        let kuadrants = Checked::new(kuadrants, settings, parts);
        let division = Division { parts: parts.clone(), drain: drain.clone() };
        let quotas = RateLimitQuotaServiceServer::new(division)
            .max_decoding_message_size(settings.max_request_bytes.min(MAX_REPORT));
        let lifetime = Lifetime::new(settings);
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(settings.max_concurrent_streams)
            .keep_alive_interval(lifetime.keepalive_interval)
            .keep_alive_timeout(lifetime.keepalive_timeout);
        let routes = aux.add_service(envoys).add_service(kuadrants).add_service(quotas);
        Self { routes, http, lifetime }
    }

    /// Serves a connection until it ends; `drain` turns true to end it.
    pub(super) async fn serve(
        &self,
        mut io: impl Socket + 'static,
        activity: Arc<GrpcActivity>,
        mut drain: watch::Receiver<bool>,
    ) {
        let mut preface = [0; PREFACE];
        let read = tokio::select! {
            read = timeout(PREFACE_TIMEOUT, io.read_exact(&mut preface)) => read,
            _ = activity.handle.closing() => return,
        };
        match read {
            Ok(Ok(_)) => activity.handle.ready(Instant::now()),
            Ok(Err(_)) => return,
            Err(_) => return activity.handle.count(ConnectionClosed::PrefaceTimeout),
        }
        let (reader, writer) = tokio::io::split(io);
        let io = TokioIo::new(tokio::io::join(Cursor::new(preface).chain(reader), writer));
        let routes = self.routes.clone();
        let of_requests = activity.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(of_requests.clone());
            routes.clone().call(request.map(Body::new))
        });
        let mut connection = pin!(self.http.serve_connection(io, service));
        let old = async {
            match self.lifetime.age {
                Some(age) => sleep(age).await,
                None => future::pending().await,
            }
        };
        let grace = tokio::select! {
            _ = connection.as_mut() => return,
            _ = drain.wait_for(|drain| *drain) => self.lifetime.grace,
            () = old => self.lifetime.grace,
            _ = activity.handle.closing() => Some(FAREWELL),
        };
        connection.as_mut().graceful_shutdown();
        let _ = match grace {
            Some(grace) => timeout(grace, connection).await,
            None => Ok(connection.await),
        };
    }
}

/// The methods of tonic's generated [`RateLimitServiceServer`], Envoy's and Kuadrant's.
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

    /// Answers a call of Kuadrant's service.
    async fn answer<R: prost::Message + Default>(
        &self,
        rpc: DecisionRpc,
        request: tonic::Request<impl prost::Message>,
    ) -> Result<tonic::Response<R>, Status> {
        let (metadata, _, message) = request.into_parts();
        let message = message.encode_to_vec();
        let mut request = limiter::Request::default();
        wire::read_escaped(rpc, &message, self.limiter.policy().bounds, &mut request)
            .map_err(|error| framing::malformed(rpc, error))?;
        if request.domain.is_empty() {
            return Ok(tonic::Response::new(R::default()));
        }
        self.decide(rpc, &metadata.into_headers(), &request).await
    }

    async fn decide<R: prost::Message + Default>(
        &self,
        rpc: DecisionRpc,
        headers: &HeaderMap,
        request: &limiter::Request<'_>,
    ) -> Result<tonic::Response<R>, Status> {
        let mut head = head(rpc, headers, self.tracer.as_ref());
        let limiter = &self.limiter;
        let until = head.until();
        let decided = traced::try_decide(limiter, head.span.as_deref_mut(), request, limiter.now(), until);
        let answer = match decided.map_err(|error| status::of_error(rpc, &error)) {
            Ok(Decided::Answer(answer)) => Ok(answer),
            Ok(Decided::Wait(waiting)) => {
                let decided = waiting.await;
                concluded(rpc, head.span.take(), decided).map_err(|failure| *failure)
            }
            Err(status) => Err(status),
        };
        finish_span(head.span, answer.as_ref().err());
        let mut answer = answer?;
        let mut encoded = Vec::new();
        rpc.encode(&answer, &mut encoded);
        if let Some(hold) = answer.hold.take() {
            hold.delivered();
        }
        let response = R::decode(&*encoded).map_err(|error| Status::internal(error.to_string()))?;
        Ok(tonic::Response::new(response))
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        self.decide(DecisionRpc::ShouldRateLimit, &metadata.into_headers(), &wire::request(&message)).await
    }
}

#[tonic::async_trait]
impl Kuadrant for RateLimit {
    async fn check_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        self.answer(DecisionRpc::CheckRateLimit, request).await
    }

    async fn report(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        self.answer(DecisionRpc::Report, request).await
    }

    async fn reserve(
        &self,
        request: tonic::Request<ReserveRequest>,
    ) -> Result<tonic::Response<ReserveResponse>, Status> {
        self.answer(DecisionRpc::Reserve, request).await
    }

    async fn commit(
        &self,
        request: tonic::Request<CommitRequest>,
    ) -> Result<tonic::Response<CommitResponse>, Status> {
        self.answer(DecisionRpc::Commit, request).await
    }
}

/// The maximum size of a report: its buckets take up to 60 times their bytes once tonic has decoded them.
const MAX_REPORT: usize = 256 * 1024;

/// `StreamRateLimitQuotas` for tonic's generated [`RateLimitQuotaServiceServer`].
#[derive(Clone)]
struct Division {
    parts: Parts,
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
        let mut reports = request.into_inner();
        let mut quota = QuotaStream::new(self.parts.clone());
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

/// Checks and counts the calls of a generated service of tonic, which decodes a message before the service sees it: the size
/// of a message and the number of its parts are checked before, and texts that it would refuse are escaped.
#[derive(Clone)]
struct Checked<S> {
    inner: S,
    limiter: Arc<Limiter>,
    stats: Arc<Stats>,
    max: usize,
}

impl<S> Checked<S> {
    fn new(inner: S, settings: &Settings, Parts { limiter, stats, .. }: &Parts) -> Self {
        Self { inner, limiter: limiter.clone(), stats: stats.clone(), max: settings.max_request_bytes }
    }
}

impl<S: NamedService> NamedService for Checked<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Checked<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(rpc) = DecisionRpc::at(request.uri().path().as_bytes()) else {
            // The service says that there is no such method, without a look at the message.
            return Box::pin(self.inner.call(request));
        };
        let call = head(rpc, request.headers(), None);
        let open_request = request.extensions().get::<Arc<GrpcActivity>>().cloned().map(OpenRequest::new);
        let mut checked = self.clone();
        Box::pin(async move {
            let _open_request = open_request;
            let (head, body) = request.into_parts();
            let response = caught(Boundary::GrpcRequest, async {
                panics::point("grpc_request");
                let message = read_in_time(&call, body, checked.max, &checked.stats).await;
                let message = message.and_then(|message| check(rpc, message, &checked.limiter));
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
            service.requests(rpc.method()).increment();
            service.response_time(rpc.method()).observe(call.begun.elapsed());
            response
        })
    }
}

fn head(rpc: DecisionRpc, headers: &HeaderMap, tracer: Option<&Arc<Tracer>>) -> RequestHead {
    let timeout = headers.get("grpc-timeout").and_then(|value| grpc_timeout(value.as_bytes()));
    RequestHead::new(Instant::now(), timeout, Some((rpc, headers)), tracer)
}

/// Rejects a message that exceeds a bound before it is decoded, and escapes its texts.
fn check(rpc: DecisionRpc, framed: Bytes, limiter: &Limiter) -> Result<Bytes, Failure> {
    let mut escaped = Vec::new();
    let mut request = limiter::Request::default();
    let message = framed.get(PREFIX..).unwrap_or_default();
    wire::read(rpc, message, limiter.policy().bounds, &mut escaped, &mut request)
        .map_err(|error| framing::malformed(rpc, error))?;
    if !rpc.is_kuadrants() || !request.domain.is_empty() {
        limiter.check(&request).map_err(|error| status::of_error(rpc, &error))?;
    }
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
    let mut data = BytesMut::new();
    let mut length = None;
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
