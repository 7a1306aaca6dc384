//! The HTTP/1.1 server of the ports for health checks and `/json`, debug pages, metrics, and the admin API.
//!
//! `app` serves each port with [`serve`] and its [`Handler`], which judges a request by its head and answers it with its body.
//! The server bounds everything around them: connections (in total and of one address), the time to send a request and to
//! read the response, the size of heads, bodies and pipelined requests. While all connections of a port are busy, further ones
//! wait for a place, and probes on them are answered at once. Cross-site requests (CSRF) are rejected.
//!
//! Connections take turns: a turn answers at most one request, and the first turn of a new connection comes before the
//! others'. So a probe waits for a turn of each of a few dozen connections, whatever their clients send.

pub mod debug;
pub mod json;

mod body;
mod cross_site;
mod shared_page;
mod watched;

use std::{
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use budget::{Budget, Reservation};
use bytes::Bytes;
use futures_util::{
    FutureExt as _, Stream, StreamExt as _, TryStreamExt as _,
    stream::{self, FuturesUnordered},
};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tracing::{debug, warn};

pub use self::{body::BodyLimit, cross_site::cross_site_header, shared_page::SharedPage};

use self::{
    body::Bodies,
    watched::{HttpActivity, Watched},
};
use super::{
    connections::{ConnectionLimits, Registry},
    listen::{AcceptLoop, Accepted, Listener, Peer},
    socket::{self, Socket},
    tls::{HTTP_1, Tls},
};
use faults::panics::{self, Boundary, Panicked, caught};
use metrics::{ConnectionClosed, ConnectionRefused, Port, Stats};

/// An idle connection is closed to make room for another after this time. A burst of clients that have sent their
/// requests is served before.
const PATIENCE: Duration = Duration::from_millis(100);

const PLACE_TIMEOUT: Duration = Duration::from_millis(200);

/// The interval at which a connection tries to get a place, and at which the shutdown counts connections.
const RETRY: Duration = Duration::from_millis(20);

/// Further connections beyond those that wait for a place, which only serve the path of probes. A kubelet, a load
/// balancer and two Prometheus servers open no more at a time.
const RESERVED: usize = 16;

/// The turns of a new connection that come before those of others, after the one that accepts it: one in which the
/// request arrives.
const FIRST_TURNS: usize = 1;

/// The size of a request's head, and of bytes read ahead of the current request. Further pipelined requests stay in the
/// kernel.
const READ_AHEAD: usize = 16 * 1024;

/// The time for pending responses at shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The time at shutdown for the first request of a connection.
const LAST_REQUEST: Duration = Duration::from_millis(100);

pub struct Options {
    pub port: Port,
    pub stats: Arc<Stats>,
    /// Connections at a time; at most three quarters of them from one address.
    pub max_connections: usize,
    /// The time to send the head of a request, to send its body, and to read the response.
    pub timeout: Duration,
    /// The memory for bodies of requests.
    pub bodies: Arc<Budget>,
    pub probe: Arc<str>,
    pub tls: Option<Arc<Tls>>,
    /// True if `admit` checks the origin of requests itself, because pages of the port may send them.
    pub has_own_pages: bool,
}

/// What a port answers.
pub trait Handler: 'static {
    /// What an admitted request asks for.
    type Asked;

    /// Routes and authenticates a request by its head, before anything of its body is read. Returns how much of the body
    /// it may have, or the answer of a request without a claim to one.
    #[expect(clippy::result_large_err, reason = "an answer is moved once, and ends the request")]
    fn admit(&self, head: &Parts) -> Result<(Self::Asked, BodyLimit), Answer>;

    fn answer(self: Arc<Self>, asked: Self::Asked, request: Request<Bytes>) -> impl Future<Output = Answer>;
}

/// Serves a port until `stop` turns true; then finishes the pending responses. Must run on a
/// [`LocalSet`](tokio::task::LocalSet).
pub async fn serve(
    listener: Listener,
    options: Options,
    handler: Arc<impl Handler>,
    stop: watch::Receiver<bool>,
) {
    let server = Rc::new(Server::new(options, handler));
    let accept = async || accept_until(&listener, &server, stop.clone()).await;
    net::restart::task(Boundary::Listener, accept).await;
    drop(listener);
    server.finish().await;
}

async fn accept_until<H: Handler>(listener: &Listener, server: &Rc<Server<H>>, stop: watch::Receiver<bool>) {
    let begin = |accepted| {
        let connection = server.clone().connection(accepted, stop.clone());
        Box::pin(caught(Boundary::HttpConnection, connection))
    };
    let mut accepting = AcceptLoop::new(listener, "an HTTP connection", stop.clone());
    // Connections at their first turns, which come before those of the other tasks.
    let mut new = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = accepting.next() => {
                let Some(accepted) = accepted else { break };
                panics::point("http_accept");
                new.push(first_turns(begin(accepted)));
            }
            Some(rest) = new.next() => spawn(rest),
        }
    }
    tokio::task::spawn_local(async move {
        while let Some(rest) = new.next().await {
            spawn(rest);
        }
    });
}

/// Serves the rest of a connection, if it is still open after its first turns.
fn spawn(rest: Option<impl Future + 'static>) {
    if let Some(rest) = rest {
        tokio::task::spawn_local(async move {
            rest.await;
        });
    }
}

/// The first turns of a connection: when it is accepted, and when its request arrives. Returns the connection if it is
/// still open.
async fn first_turns<C: Future + Unpin>(mut connection: C) -> Option<C> {
    let mut turns = 0..FIRST_TURNS;
    let ended = poll_fn(|context| match (connection.poll_unpin(context), turns.next()) {
        (Poll::Ready(_), _) => Poll::Ready(true),
        (Poll::Pending, Some(_)) => Poll::Pending,
        (Poll::Pending, None) => Poll::Ready(false),
    });
    if ended.await { None } else { Some(connection) }
}

struct Server<H> {
    options: Options,
    handler: Arc<H>,
    bodies: Bodies,
    places: Arc<Registry>,
    /// Connections that wait for a place, or serve a probe without one.
    waiting: Arc<Registry>,
}

impl<H: Handler> Server<H> {
    fn new(options: Options, handler: Arc<H>) -> Self {
        let registry = |connections, per_address, patience| {
            let names = ["HTTP_MAX_CONNECTIONS", "three quarters of HTTP_MAX_CONNECTIONS"];
            // HTTP/1 clients reconnect often, so that any number of idle connections may be closed.
            let idle_closed_per_second = usize::MAX;
            let limits =
                ConnectionLimits { connections, per_address, patience, idle_closed_per_second, names };
            Registry::new(options.port, limits, options.stats.clone(), Instant::now())
        };
        let most = options.max_connections;
        let waiting = most + RESERVED;
        Self {
            bodies: Bodies::new(options.bodies.clone(), options.timeout),
            places: registry(most, most - most / 4, PATIENCE),
            waiting: registry(waiting, waiting, Duration::ZERO),
            options,
            handler,
        }
    }

    /// Takes a place for a request other than a probe, after a short wait for others to become idle.
    async fn place(&self, peer: Peer, activity: &HttpActivity) -> bool {
        let begun = Instant::now();
        loop {
            if let Ok(place) = self.places.try_admit(peer.ip(), Some(activity.handle()), Instant::now()) {
                activity.hold(place);
                return true;
            }
            if begun.elapsed() >= PLACE_TIMEOUT {
                return false;
            }
            sleep(RETRY).await;
        }
    }

    /// Waits a short time for the remaining connections.
    async fn finish(&self) {
        let begun = Instant::now();
        let open = || self.places.open() + self.waiting.open();
        while open() > 0 && begun.elapsed() < LAST_ANSWERS {
            sleep(RETRY).await;
        }
        if open() > 0 {
            let port = self.options.port.name();
            let connections = open();
            warn!(port, connections, "closed connections of clients that did not read or send in time");
        }
    }

    async fn connection(self: Rc<Self>, accepted: Accepted, mut stop: watch::Receiver<bool>) {
        panics::point("http_connection");
        let peer = accepted.peer;
        let now = Instant::now();
        let activity = match self.places.try_admit(peer.ip(), None, now) {
            Ok(handle) => HttpActivity::new(handle, false),
            Err(_) => match self.waiting.admit(peer.ip(), now) {
                Ok(handle) => HttpActivity::new(handle, true),
                Err(_) => return,
            },
        };
        let activity = Rc::new(activity);
        let Ok(socket) = socket::open(accepted.socket) else { return };
        let secured = tokio::select! {
            secured = self.secure(socket, peer, &mut stop) => secured,
            _ = activity.handle().closing() => None,
        };
        let Some(socket) = secured else { return };
        let io = Watched::new(socket, activity.clone(), self.options.timeout);
        let server = self.clone();
        let of_requests = activity.clone();
        let service = service_fn(move |request| {
            let server = server.clone();
            let activity = of_requests.clone();
            async move { Ok::<_, Infallible>(server.respond(request, peer, &activity).await) }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.timeout)
            .max_buf_size(READ_AHEAD)
            .keep_alive(!activity.is_waiting);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = activity.handle().closing() => return activity.discard(),
            _ = stop.wait_for(|stop| *stop) => {
                // hyper would close a silent connection at once, though its request may be in flight.
                let last = if activity.handle().is_silent() { LAST_REQUEST } else { Duration::ZERO };
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
    async fn secure(
        &self,
        socket: Box<dyn Socket>,
        peer: Peer,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<Box<dyn Socket>> {
        match (&self.options.tls, peer) {
            (Some(tls), Peer::Address(_)) => Some(Box::new(tls.handshake(HTTP_1, socket, peer, stop).await?)),
            _ => Some(socket),
        }
    }

    #[expect(clippy::result_large_err, reason = "an answer is moved once, and ends the request")]
    async fn respond(&self, request: Request<Incoming>, peer: Peer, activity: &HttpActivity) -> Answer {
        let has_body = !request.body().is_end_stream();
        activity.has_unread_body.set(has_body);
        // Until it has a place, the connection makes room for new ones.
        if activity.is_waiting
            && request.uri().path() != &*self.options.probe
            && !self.place(peer, activity).await
        {
            let refused = self.options.stats.service();
            refused.connections_refused(self.options.port, ConnectionRefused::Total).increment();
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "Service Unavailable: HTTP_MAX_CONNECTIONS reached\n",
            );
        }
        activity.take_turns().await;
        let hosts = request.headers().get_all(header::HOST).iter().count();
        // HTTP/1.0 has none. A proxy may route by another one of several than we do.
        if hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11 {
            return text(StatusCode::BAD_REQUEST, "Bad Request: expected one Host header\n");
        }
        // Browsers send the origin of the page with all methods but GET and HEAD, which change nothing here.
        let may_change = !matches!(*request.method(), Method::GET | Method::HEAD);
        if may_change && !self.options.has_own_pages && cross_site_header(request.headers(), None).is_some() {
            return text(
                StatusCode::FORBIDDEN,
                "Forbidden: sent by a page of another site (Origin or Sec-Fetch-Site)\n",
            );
        }
        let (mut head, body) = request.into_parts();
        head.extensions.insert(peer);
        let admitted = panics::catch(Boundary::HttpRequest, || self.handler.admit(&head));
        let (asked, limit) = match admitted.unwrap_or_else(|Panicked| Err(internal_error())) {
            Ok(admitted) => admitted,
            Err(answer) => return answer,
        };
        let body = match self.bodies.read(body, limit).await {
            Ok(body) => body,
            Err((status, why)) => {
                if status == StatusCode::REQUEST_TIMEOUT {
                    activity.handle().count(ConnectionClosed::ReadTimeout);
                }
                return text(status, why);
            }
        };
        activity.has_unread_body.set(has_body && limit.bytes == 0);
        activity.begin();
        let answered = caught(Boundary::HttpRequest, async {
            panics::point("http_request");
            self.handler.clone().answer(asked, Request::from_parts(head, body)).await
        });
        let answer = answered.await.unwrap_or_else(|Panicked| internal_error());
        if answer.extensions().get::<Endless>().is_none() {
            activity.end();
        }
        answer
    }
}

/// A response: a complete body, or a stream of pieces.
pub type Answer = Response<UnsyncBoxBody<Bytes, Incomplete>>;

/// A body ends before its end. The connection is closed, so that the client knows.
#[derive(Debug)]
pub struct Incomplete;

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rest of the response was not written")
    }
}

impl std::error::Error for Incomplete {}

pub fn internal_error() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal error; the log has the details.\n")
}

pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

pub fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    with_body(status, content_type, Full::new(body.into()).map_err(|never| match never {}).boxed_unsync())
}

/// A response of pieces that are complete. What they have reserved is returned when they are sent.
pub fn pieces(content_type: &'static str, pieces: Vec<Vec<u8>>, reserved: Reservation) -> Answer {
    let length: usize = pieces.iter().map(Vec::len).sum();
    let sent = stream::iter(pieces).map(move |piece| {
        let _held = &reserved;
        Ok(Bytes::from(piece))
    });
    with_length(framed(content_type, sent), length)
}

/// Declares the length of a body that does not know it.
fn with_length(mut answer: Answer, length: usize) -> Answer {
    answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    answer
}

/// Marks a response that waits for events. Its connection stays busy, so that it is not closed to make room; any other is
/// closed if its client reads nothing.
#[derive(Clone)]
struct Endless;

/// A response whose pieces are sent as they are received; it ends when the sender is dropped.
pub fn streamed(content_type: &'static str, mut pieces: mpsc::Receiver<Bytes>) -> Answer {
    let pieces = stream::poll_fn(move |context| pieces.poll_recv(context).map(|piece| piece.map(Ok)));
    let mut answer = framed(content_type, pieces);
    answer.extensions_mut().insert(Endless);
    answer
}

fn framed(
    content_type: &'static str,
    pieces: impl Stream<Item = Result<Bytes, Incomplete>> + Send + 'static,
) -> Answer {
    let frames = pieces.map_ok(Frame::data);
    with_body(StatusCode::OK, content_type, StreamBody::new(frames).boxed_unsync())
}

fn with_body(
    status: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Incomplete>,
) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpListener, TcpStream},
    };

    use metrics::StatsOptions;
    use tokio::{runtime::Builder, task::LocalSet};

    use super::*;

    /// Notes the order of the requests. After ten it connects a third client, and after all it stops.
    struct Noting {
        order: RefCell<String>,
        address: SocketAddr,
        late: RefCell<Option<TcpStream>>,
        stop: watch::Sender<bool>,
    }

    impl Handler for Noting {
        type Asked = ();

        fn admit(&self, _head: &Parts) -> Result<((), BodyLimit), Answer> {
            Ok(((), BodyLimit::NOTHING))
        }

        async fn answer(self: Arc<Self>, (): (), request: Request<Bytes>) -> Answer {
            let mut order = self.order.borrow_mut();
            order.push_str(request.uri().path());
            if order.len() == 20 {
                let mut client = TcpStream::connect(self.address).unwrap();
                client.write_all(b"GET /2 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
                self.late.replace(Some(client));
            }
            if order.len() == 402 {
                self.stop.send_replace(true);
            }
            text(StatusCode::OK, "")
        }
    }

    /// Two clients send a hundred requests at once, and a third one comes after ten. Each request has the number of its
    /// client.
    #[test]
    #[expect(clippy::arc_with_non_send_sync, reason = "one thread serves the pages")]
    fn a_turn_answers_one_of_many_pipelined_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..2)
            .map(|number| {
                let mut client = TcpStream::connect(address).unwrap();
                let request = format!("GET /{number} HTTP/1.1\r\nhost: localhost\r\n\r\n");
                client.write_all(request.repeat(100).as_bytes()).unwrap();
                client
            })
            .collect();
        let options = Options {
            port: Port::Http,
            stats: Arc::new(Stats::new(StatsOptions::default())),
            max_connections: 8,
            timeout: Duration::from_secs(60),
            bodies: Budget::new(1000),
            probe: "/".into(),
            tls: None,
            has_own_pages: false,
        };
        let (stop, stopping) = watch::channel(false);
        let (order, late) = Default::default();
        let pages = Arc::new(Noting { order, address, late, stop });
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            serve(Listener::tcp(listener).unwrap(), options, pages.clone(), stopping).await;
        });
        let order = pages.order.borrow();
        let (before, after) = order.split_once("/2").unwrap();
        // tokio would look at the sockets after 61 tasks.
        assert!((20..40).contains(&before.len()), "{order}");
        // Both have a turn in each round, but the last ones.
        let numbers: Vec<_> = (before.to_owned() + after).split('/').skip(1).map(str::to_owned).collect();
        let fair = numbers.chunks(2).filter(|round| round[0] != round[1]).count();
        assert!(fair >= 90, "{order}");
        assert!(pages.late.borrow().is_some());
        for mut client in clients {
            let mut answers = String::new();
            client.read_to_string(&mut answers).unwrap();
            assert_eq!(answers.matches("HTTP/1.1 200").count(), 100);
        }
    }
}
