//! `ShouldRateLimit` as a tonic service: the reference.
//!
//! `GRPC_SERVER=tonic` serves the whole gRPC port with it, and the tests hold the service's own HTTP/2 connection
//! against it. A program that embeds Tollgate adds [`RateLimit`] to a tonic server of its own. `worker` deals
//! connections to [`Reference`] as it does to `driver`.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout_at,
};
use tonic::{
    Status,
    body::Body,
    codegen::tokio_stream::Stream,
    server::NamedService,
    service::Routes,
    transport::server::{Connected, Server},
};
use tower_service::Service;

use super::{
    Options, Parts,
    activity::{Activity, UnderWay},
    framing::{self, Fault, PREFIX},
    http2::grpc_timeout,
    request_head::RequestHead,
    traced,
};
use crate::{
    limiter::{self, DecisionTrace, Limiter},
    panics::{self, Boundary, Panicked, caught},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
    },
    server::span_attributes,
    telemetry::{
        metrics::{Method, Stats},
        tracing::Tracer,
    },
};

/// Serves the connections that a worker gives it with tonic's own server.
pub(super) struct Reference {
    connections: mpsc::UnboundedSender<Connection>,
}

impl Reference {
    /// Starts a server on the calling thread's [`LocalSet`](tokio::task::LocalSet). The handle completes when
    /// `drain` has turned true and every connection is closed.
    pub(super) fn start(
        options: &Options,
        parts: &Parts,
        others: Routes,
        mut drain: watch::Receiver<bool>,
    ) -> (Self, JoinHandle<()>) {
        let (connections, incoming) = mpsc::unbounded_channel();
        let service =
            RateLimitServiceServer::new(RateLimit::new(parts.limiter.clone(), parts.tracer.clone()))
                // `Checked` has refused what is larger.
                .max_decoding_message_size(usize::MAX);
        let service = Checked {
            inner: service,
            limiter: parts.limiter.clone(),
            stats: parts.stats.clone(),
            max: options.max_request_bytes,
        };
        let some = |duration: Duration| Some(duration).filter(|duration| !duration.is_zero());
        let mut server = Server::builder()
            .max_concurrent_streams(options.max_concurrent_streams)
            .http2_keepalive_interval(some(options.keepalive_interval))
            .http2_keepalive_timeout(Some(options.keepalive_timeout));
        // Not its `max_connection_age_grace`: with it, tonic 0.14 sends no GOAWAY before it closes the connection.
        if let Some(age) = some(options.max_connection_age) {
            server = server.max_connection_age(age);
        }
        let router = server.add_routes(others.add_service(service));
        let serving = tokio::task::spawn_local(async move {
            let drained = async move {
                // An error means that the sender is gone, which is the end too.
                let _ = drain.wait_for(|drain| *drain).await;
            };
            // It fails for its listener alone, which here is a channel.
            let _ = router.serve_with_incoming_shutdown(Incoming(incoming), drained).await;
        });
        (Self { connections }, serving)
    }

    /// Serves a connection until it ends; `activity` counts it until then.
    pub(super) fn serve(&self, io: impl Io + 'static, activity: Arc<Activity>) {
        let watched = activity.clone();
        // tonic sends no GOAWAY to one connection alone, so that one which makes room reads its end.
        let ending = Box::pin(async move {
            tokio::select! {
                _ = watched.handle().closing() => {}
                () = watched.preface_timeout() => {}
            }
        });
        // A server that has drained closes what comes late.
        let _ =
            self.connections.send(Connection { io: Box::new(io), read: 0, activity, ending: Some(ending) });
    }
}

/// `ShouldRateLimit` for tonic's generated [`RateLimitServiceServer`].
///
/// With a store across a network each thread that serves it calls [`Limiter::start_worker`] once, within its runtime.
#[derive(Clone)]
pub struct RateLimit {
    limiter: Arc<Limiter>,
    tracer: Option<Arc<Tracer>>,
}

impl RateLimit {
    /// A service that decides with `limiter` and sends spans to `tracer`.
    #[must_use]
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
        let request = limiter::Request::from(&message);
        let decided = match head.span.take() {
            None => self.limiter.decide(&request, head.until(), None).await,
            Some(mut span) => {
                let mut trace = DecisionTrace::default();
                let decided = self.limiter.decide(&request, head.until(), Some(&mut trace)).await;
                span_attributes::add(&mut span, &request, decided.as_ref().ok(), &trace);
                traced::finish(span, decided.as_ref().err().map(framing::status).as_ref());
                decided
            }
        };
        let answer = decided.map_err(|refusal| framing::status(&refusal))?;
        Ok(tonic::Response::new(answer.into()))
    }
}

/// The bounds and statistics of the call, around tonic's generated service: what a message holds is known only
/// when it is built, so its size and the number of its parts are checked before.
#[derive(Clone)]
struct Checked<S> {
    inner: S,
    limiter: Arc<Limiter>,
    stats: Arc<Stats>,
    max: usize,
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

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = head(request.headers(), None);
        let under_way = request.extensions().get::<Arc<Activity>>().cloned().map(UnderWay::new);
        let mut checked = self.clone();
        Box::pin(async move {
            let _under_way = under_way;
            let (head, body) = request.into_parts();
            let response = caught(Boundary::GrpcRequest, async {
                panics::point("grpc_request");
                let message = read_in_time(&call, body, checked.max, &checked.stats).await;
                let message = message.and_then(|message| check(&message, &checked.limiter).map(|()| message));
                match message {
                    Ok(message) => {
                        let body = Body::new(Full::new(message));
                        checked.inner.call(Request::from_parts(head, body)).await
                    }
                    Err(fault) => Ok(fault.into_http()),
                }
            });
            let response =
                response.await.unwrap_or_else(|Panicked| Ok(framing::internal_error().into_http()));
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

/// Refuses what exceeds a bound before a message is built of it.
fn check(message: &[u8], limiter: &Limiter) -> Result<(), Fault> {
    let request = framing::read(message.get(PREFIX..).unwrap_or_default(), limiter.bounds())?;
    limiter.check(&request).map_err(|refusal| framing::status(&refusal).into())
}

/// Reads one message with its prefix, unless its caller gives up before. tonic's own answer to that is CANCELLED,
/// which gRPC reserves for callers.
async fn read_in_time(call: &RequestHead, body: Body, max: usize, stats: &Stats) -> Result<Bytes, Fault> {
    let reading = read_message(body, max, stats);
    let Some(deadline) = call.deadline() else { return reading.await };
    let read = timeout_at(deadline.into(), reading).await;
    read.unwrap_or_else(|_| Err(framing::deadline_exceeded(stats).into()))
}

/// Reads one message with its prefix, and the end of the request behind it.
async fn read_message(mut body: Body, max: usize, stats: &Stats) -> Result<Bytes, Fault> {
    let mut data = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::cancelled(format!("the request broke off: {error}")))?;
        data.extend_from_slice(frame.data_ref().map_or(&[], |piece| piece));
        if let Some(prefix) = data.first_chunk() {
            let length = framing::length(*prefix, max, stats)?;
            if data.len().saturating_sub(PREFIX) > length {
                return Err(framing::several_messages().into());
            }
        }
    }
    match data.first_chunk() {
        Some(prefix) if data.len().saturating_sub(PREFIX) == framing::length(*prefix, max, stats)? => {
            Ok(data.freeze())
        }
        _ => Err(framing::incomplete().into()),
    }
}

/// Connections as tonic's server accepts them.
struct Incoming(mpsc::UnboundedReceiver<Connection>);

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// TCP, a unix socket, or TLS on either.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The preface, and the header of the SETTINGS behind it.
const PREFACE: usize = 24 + 9;

struct Connection {
    io: Box<dyn Io>,
    /// The bytes that were read, until they are a preface.
    read: usize,
    activity: Arc<Activity>,
    /// Completes when the service closes the connection; none when it has.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Connected for Connection {
    type ConnectInfo = Arc<Activity>;

    fn connect_info(&self) -> Arc<Activity> {
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
            self.read = self.read.saturating_add(into.filled().len().saturating_sub(before));
            if self.read >= PREFACE {
                self.activity.handle().ready(Instant::now());
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
