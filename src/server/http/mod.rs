//! The HTTP/1.1 server of the ports for health checks and `/json`, debug pages, metrics, and the admin API.
//!
//! `app` serves each port with [`serve`] and a function from a request to its response. The server bounds everything
//! around that function: connections (in total and of one address), the time to send a request and to read the
//! response, the size of heads, bodies and pipelined requests. While all connections of a port are busy, reserved
//! connections serve the path of probes. Requests that a page of another site makes a browser send are rejected.

pub(crate) mod json;
mod pages;
pub(crate) mod service;

mod body;
mod socket;
mod stream;

use std::{
    cell::Cell,
    convert::Infallible,
    future::Future,
    net::IpAddr,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

pub(crate) use self::socket::Peer;

use self::{
    body::Bodies,
    socket::Socket,
    stream::{Activity, Watched},
};
use super::{
    connections::{Handle, Limits, Registry},
    grpc::Listener,
    tls::{HTTP_1, Tls},
};
use crate::{
    panics::{self, Boundary, Panicked, caught},
    telemetry::metrics::{ConnectionClosed, ConnectionRefused, Port, Stats},
};

/// An idle connection is closed to make room for another after this time. A burst of clients that have sent their
/// requests is served before.
const PATIENCE: Duration = Duration::from_millis(100);

/// The interval at which a connection tries to get a place, and at which the shutdown counts connections.
const RETRY: Duration = Duration::from_millis(5);

/// Connections beyond the limit, which only serve the path of probes. A kubelet, a load balancer and two Prometheus
/// servers open no more at a time.
const RESERVED: usize = 16;

/// The maximum age of a reserved connection. Probes wait one second by default.
const RESERVED_TIME: Duration = Duration::from_secs(5);

/// The size of a request's head, and of bytes read ahead of the current request. Further pipelined requests stay in the
/// kernel.
const READ_AHEAD: usize = 16 * 1024;

/// The time for pending responses at shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// At shutdown, connections in the backlog are accepted until there is no other for `BACKLOG_QUIET`, and for
/// `BACKLOG_TIMEOUT` in all.
const BACKLOG_QUIET: Duration = Duration::from_millis(5);
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);

/// The time at shutdown for the first request of a connection.
const LAST_REQUEST: Duration = Duration::from_millis(100);

/// How a port is served.
pub(crate) struct Options {
    pub(crate) port: Port,
    /// Counts rejected and closed connections.
    pub(crate) stats: Arc<Stats>,
    /// Connections at a time; at most three quarters of them from one address.
    pub(crate) max_connections: usize,
    /// The time to send the head of a request, to send its body, and to read the response.
    pub(crate) timeout: Duration,
    /// The maximum size of a request's body.
    pub(crate) max_body: usize,
    /// The path of probes.
    pub(crate) probe: Arc<str>,
    pub(crate) tls: Option<Arc<Tls>>,
    /// True if `answer` checks the origin of requests itself, because pages of the port may send them.
    pub(crate) has_own_pages: bool,
}

/// Serves a port with `answer`, until `stop` turns true; then finishes the pending responses. Must run on a
/// [`LocalSet`](tokio::task::LocalSet).
pub(crate) async fn serve<F, A>(listener: Listener, options: Options, answer: F, stop: watch::Receiver<bool>)
where
    F: Fn(Request<Bytes>) -> A + 'static,
    A: Future<Output = Answer> + 'static,
{
    let server = Rc::new(Server::new(options, answer));
    let accept = async || accept_until(&listener, &server, stop.clone()).await;
    panics::restart_task(Boundary::Listener, accept).await;
    drop(listener);
    server.finish().await;
}

async fn accept_until<F, A>(listener: &Listener, server: &Rc<Server<F>>, mut stop: watch::Receiver<bool>)
where
    F: Fn(Request<Bytes>) -> A + 'static,
    A: Future<Output = Answer> + 'static,
{
    let begin = |(socket, peer): (Socket, Peer), stop: &watch::Receiver<bool>| {
        let connection = server.clone().connection(socket, peer, stop.clone());
        tokio::task::spawn_local(caught(Boundary::HttpConnection, connection));
    };
    loop {
        let accepted = tokio::select! {
            accepted = socket::accept(listener) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        panics::point("http_accept");
        match accepted {
            Ok(accepted) => begin(accepted, &stop),
            Err(error) => {
                warn!(%error, "failed to accept an HTTP connection");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Clients that are connected already get a response instead of a reset.
    let begun = Instant::now();
    while begun.elapsed() < BACKLOG_TIMEOUT
        && let Ok(Ok(accepted)) = timeout(BACKLOG_QUIET, socket::accept(listener)).await
    {
        begin(accepted, &stop);
    }
}

struct Server<F> {
    options: Options,
    answer: F,
    bodies: Bodies,
    places: Arc<Registry>,
    reserved: Arc<Registry>,
    /// Connections that wait for a place.
    waiting: Cell<usize>,
}

/// A connection's place, and whether it is one of those reserved for probes.
struct Place {
    handle: Handle,
    is_reserved: bool,
}

impl<F, A> Server<F>
where
    F: Fn(Request<Bytes>) -> A + 'static,
    A: Future<Output = Answer> + 'static,
{
    fn new(options: Options, answer: F) -> Self {
        let registry = |connections, per_address, patience| {
            let names = ["HTTP_MAX_CONNECTIONS", "three quarters of HTTP_MAX_CONNECTIONS"];
            // HTTP/1 clients reconnect often, so that any number of idle connections may be closed.
            let idle_closed_per_second = usize::MAX;
            let limits = Limits { connections, per_address, patience, idle_closed_per_second, names };
            Registry::new(options.port, limits, options.stats.clone(), Instant::now())
        };
        let most = options.max_connections;
        Self {
            bodies: Bodies::new(options.max_body, options.timeout),
            places: registry(most, most.saturating_sub(most / 4), PATIENCE),
            reserved: registry(RESERVED, RESERVED, Duration::ZERO),
            waiting: Cell::new(0),
            options,
            answer,
        }
    }

    /// A place, after a short wait for others to become idle; else a reserved one.
    async fn place(&self, peer: Option<IpAddr>) -> Option<Place> {
        let admit = || self.places.try_admit(peer, Instant::now()).ok();
        let mut handle = admit();
        if handle.is_none() && self.waiting.get() < self.options.max_connections {
            self.waiting.set(self.waiting.get().saturating_add(1));
            let begun = Instant::now();
            while handle.is_none() && begun.elapsed() < PATIENCE.saturating_mul(2) {
                sleep(RETRY).await;
                handle = admit();
            }
            self.waiting.set(self.waiting.get().saturating_sub(1));
        }
        if let Some(handle) = handle {
            return Some(Place { handle, is_reserved: false });
        }
        let handle = self.reserved.admit(peer, Instant::now()).ok()?;
        Some(Place { handle, is_reserved: true })
    }

    /// Waits a short time for the remaining connections.
    async fn finish(&self) {
        let begun = Instant::now();
        let is_open = || self.places.open().saturating_add(self.reserved.open()) > 0;
        while is_open() && begun.elapsed() < LAST_ANSWERS {
            sleep(RETRY).await;
        }
    }

    async fn connection(self: Rc<Self>, socket: Socket, peer: Peer, mut stop: watch::Receiver<bool>) {
        panics::point("http_connection");
        let Some(Place { handle, is_reserved }) = self.place(peer.ip()).await else { return };
        let activity = Rc::new(Activity::new(handle));
        let secured = tokio::select! {
            secured = self.secure(socket, peer, &mut stop) => secured,
            _ = activity.handle.closing() => None,
        };
        let Some(socket) = secured else { return };
        let io = Watched::new(socket, activity.clone(), self.options.timeout);
        let (server, of_requests) = (self.clone(), activity.clone());
        let service = service_fn(move |request| {
            let (server, activity) = (server.clone(), of_requests.clone());
            async move { Ok::<_, Infallible>(server.respond(request, peer, &activity, is_reserved).await) }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.timeout)
            .max_buf_size(READ_AHEAD)
            .keep_alive(!is_reserved);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = activity.handle.closing() => return activity.discard(),
            () = sleep(RESERVED_TIME), if is_reserved => return activity.discard(),
            _ = stop.wait_for(|stop| *stop) => {
                // hyper would close a silent connection at once, though its request may be in flight.
                let last = if activity.handle.is_silent() { LAST_REQUEST } else { Duration::ZERO };
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = sleep(last) => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                }
            }
        };
        if let Err(error) = ended {
            debug!(%error, "HTTP connection ended early");
            if error.is_timeout() {
                activity.count_late_head();
            }
        }
    }

    /// The socket, with TLS if the port has it; `None` if the handshake failed, which is counted and logged.
    async fn secure(&self, socket: Socket, peer: Peer, stop: &mut watch::Receiver<bool>) -> Option<Socket> {
        match (&self.options.tls, peer) {
            (Some(tls), Peer::Address(_)) => Some(Box::new(tls.handshake(HTTP_1, socket, peer, stop).await?)),
            _ => Some(socket),
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        activity: &Activity,
        is_reserved: bool,
    ) -> Answer {
        if is_reserved && request.uri().path() != &*self.options.probe {
            let refused = self.options.stats.service();
            refused.connections_refused(self.options.port, ConnectionRefused::Total).increment();
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "Service Unavailable: HTTP_MAX_CONNECTIONS reached\n",
            );
        }
        if !self.options.has_own_pages && is_of_another_site(request.method(), request.headers()) {
            return text(
                StatusCode::FORBIDDEN,
                "Forbidden: sent by a page of another site (Origin or Sec-Fetch-Site)\n",
            );
        }
        let (mut head, body) = request.into_parts();
        head.extensions.insert(peer);
        let body = match self.bodies.read(body).await {
            Ok(body) => body,
            Err((status, why)) => {
                if status == StatusCode::REQUEST_TIMEOUT {
                    activity.handle.count(ConnectionClosed::ReadTimeout);
                }
                return text(status, why);
            }
        };
        activity.begin();
        let answered = caught(Boundary::HttpRequest, async {
            panics::point("http_request");
            (self.answer)(Request::from_parts(head, body.bytes.clone())).await
        });
        let answer = answered.await.unwrap_or_else(|Panicked| internal_error());
        // A stream has no known size. It stays busy to its end, so that it is not closed to make room.
        if answer.body().size_hint().exact().is_some() {
            activity.end();
        }
        answer
    }
}

/// True if a page of another site makes a browser send the request. Browsers send the page's origin with all methods
/// but GET and HEAD, which change nothing here; other clients send neither header.
fn is_of_another_site(method: &Method, headers: &HeaderMap) -> bool {
    const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    if method == Method::GET || method == Method::HEAD {
        return false;
    }
    let is_own = |site: &HeaderValue| site == "same-origin" || site == "none";
    headers.contains_key(header::ORIGIN) || !headers.get_all(SEC_FETCH_SITE).iter().all(is_own)
}

/// A response: a complete body, or a stream of pieces.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The response to a request that panicked.
pub(crate) fn internal_error() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal error; the log has the details.\n")
}

/// A response in plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

/// A response with this content type.
pub(crate) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    with_body(status, content_type, Full::new(body.into()).boxed_unsync())
}

/// A response whose pieces are sent as they are received; it ends when the sender is dropped.
pub(crate) fn streamed(content_type: &'static str, mut pieces: mpsc::Receiver<Bytes>) -> Answer {
    let frames =
        poll_fn(move |context| pieces.poll_recv(context).map(|piece| piece.map(Frame::data).map(Ok)));
    with_body(StatusCode::OK, content_type, StreamBody::new(frames).boxed_unsync())
}

fn with_body(
    status: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_requests_of_other_sites_by_their_headers() {
        for (method, name, value, is_refused) in [
            (Method::POST, "origin", "http://evil.test", true),
            (Method::POST, "origin", "null", true),
            (Method::POST, "origin", "", true),
            (Method::POST, "sec-fetch-site", "cross-site", true),
            (Method::POST, "sec-fetch-site", "same-site", true),
            (Method::POST, "sec-fetch-site", "Cross-Site", true),
            (Method::OPTIONS, "origin", "http://evil.test", true),
            (Method::PUT, "sec-fetch-site", "cross-site", true),
            (Method::POST, "sec-fetch-site", "same-origin", false),
            (Method::POST, "sec-fetch-site", "none", false),
            (Method::POST, "accept", "*/*", false),
            (Method::GET, "origin", "http://grafana.test", false),
            (Method::HEAD, "sec-fetch-site", "cross-site", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(is_of_another_site(&method, &headers), is_refused, "{method} {name}: {value}");
        }
    }
}
