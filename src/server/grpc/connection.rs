//! One HTTP/2 connection, from its first byte to its last.
//!
//! Envoy opens one connection for each of its workers and keeps it. It is asked to go elsewhere when it
//! has reached its age, or when the service is about to end: a GOAWAY, time for what is under way, then
//! the end.

use std::{
    future::{self, Future},
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::{Instant, sleep_until},
};
use tower_service::Service;

use crate::{
    panics::{self, Boundary, Panicked, caught},
    server::connections::{Closing, FAREWELL},
    stats::Method,
};

use super::{
    activity::{Activity, UnderWay, Watched},
    body::AnswerBody,
    opening::Opening,
    reference::Reference,
    unary::{self, ShouldRateLimit},
};

/// What a connection needs; one of it for each core.
pub(super) struct Calls {
    pub(super) hot: ShouldRateLimit,
    /// Health, reflection, and the answer to calls that do not exist.
    pub(super) others: tonic::service::Routes,
    /// Serves every connection, where the settings choose it.
    pub(super) reference: Option<Reference>,
    pub(super) lifetime: Lifetime,
    pub(super) http2: http2::Builder<LocalExecutor>,
}

/// How long a connection may last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    /// After this it is asked to go; none lets it stay.
    pub(super) age: Option<Duration>,
    /// After this, from then on, it is cut; none waits.
    pub(super) grace: Option<Duration>,
}

/// Spawns onto the core's own runtime, where nothing need be shared between threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// How HTTP/2 is spoken on every connection.
pub(super) fn http2(
    max_concurrent_streams: u32,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
) -> http2::Builder<LocalExecutor> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        // No gRPC client reads a date.
        .auto_date_header(false)
        .max_concurrent_streams(max_concurrent_streams)
        .max_header_list_size(16 * 1024)
        // Requests are small and many: the connection's window must not be what they wait for.
        .initial_connection_window_size(1 << 20)
        .keep_alive_interval(Some(keepalive_interval).filter(|interval| !interval.is_zero()))
        .keep_alive_timeout(keepalive_timeout);
    builder
}

/// Serves a connection until it ends; `drain` turns true when it should.
pub(super) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    calls: Rc<Calls>,
    mut drain: watch::Receiver<bool>,
    activity: Arc<Activity>,
) {
    panics::point("grpc_connection");
    let lifetime = calls.lifetime;
    let age = lifetime.age.map(|age| Instant::now() + jittered(age));
    let builder = calls.http2.clone();
    let io = Watched::new(io, activity.clone());
    let of_requests = activity.clone();
    let service = service_fn(move |request| {
        let under_way = UnderWay::new(of_requests.clone());
        let answer = answer(calls.clone(), request);
        async move {
            let _under_way = under_way;
            answer.await
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let grace = tokio::select! {
        // Errors here are the peer's: it went away or spoke no HTTP/2. hyper has told it.
        _ = connection.as_mut() => return,
        () = wait_until(age) => lifetime.grace,
        _ = drain.wait_for(|drain| *drain) => lifetime.grace,
        closing = activity.handle().closing() => match closing {
            Closing::Silent => return,
            Closing::Idle => Some(FAREWELL),
        },
        () = activity.preface_timeout() => return,
    };
    connection.as_mut().graceful_shutdown();
    let cut = grace.map(|grace| Instant::now() + grace);
    tokio::select! {
        _ = connection => {}
        () = wait_until(cut) => {}
        _ = activity.handle().closing() => {}
    }
}

/// Begins to answer a call.
fn answer(
    calls: Rc<Calls>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<AnswerBody>, tonic::Status>> {
    // The head of the hot call ends here, and the other calls' future is on the heap: what is moved
    // about for every call is small.
    let way = panics::catch(Boundary::GrpcRequest, || {
        panics::point("grpc_request_head");
        if request.uri().path() == unary::PATH {
            let (head, body) = request.into_parts();
            Way::Hot(Opening::of(&head, calls.hot.tracer.as_ref()), body)
        } else {
            let check = (request.uri().path() == HEALTH_CHECK).then(Instant::now);
            Way::Other(Box::pin(calls.others.clone().call(request)), check)
        }
    });
    async move {
        match way {
            Err(Panicked) => Ok(unary::internal_error().into_http()),
            Ok(Way::Hot(opening, body)) => Ok(calls.hot.call(opening, body).await),
            Ok(Way::Other(answer, check)) => {
                let answer = caught(Boundary::GrpcRequest, async {
                    panics::point("grpc_request_other");
                    answer.await
                });
                let answer = answer.await;
                if let Some(begun) = check {
                    let service = calls.hot.stats.service();
                    service.requests(Method::Check).increment();
                    service.response_time(Method::Check).observe(begun.elapsed());
                }
                match answer {
                    Ok(Ok(response)) => Ok(response.map(AnswerBody::Tonic)),
                    Ok(Err(never)) => match never {},
                    Err(Panicked) => Ok(unary::internal_error().into_http()),
                }
            }
        }
    }
}

enum Way<F> {
    Hot(Opening, Incoming),
    /// With the moment at which it began, where it is a health check.
    Other(Pin<Box<F>>, Option<Instant>),
}

/// The other call that is counted, as the Go service counts it.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => future::pending().await,
    }
}

/// ±10 %, so that connections which were opened together do not all come back together.
fn jittered(age: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(age) % 2001;
    #[expect(clippy::cast_precision_loss, reason = "the number is at most 2000")]
    age.mul_f64(0.9 + random as f64 / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let ages: Vec<_> = (0..1000).map(|_| jittered(Duration::from_secs(1000)).as_secs()).collect();
        assert!(ages.iter().all(|age| (900..=1100).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age < 950) && ages.iter().any(|age| *age > 1050), "{ages:?}");
    }
}
