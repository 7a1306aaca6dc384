//! A small HTTP/1.1 server for probes, people and Prometheus: bounded in every direction.

use std::{convert::Infallible, error::Error, future::Future, rc::Rc, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tracing::{debug, warn};

use crate::panics::{self, Boundary, Panicked, caught};

/// Connections that one port takes at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 512;

/// A caller that is slower than this with its headers or its body is cut off.
const PATIENCE: Duration = Duration::from_secs(10);

/// No more space is made before a body is there: its length is what the caller says.
const MOST_AT_ONCE: usize = 4 << 20;

/// What is answered.
pub type Answer = Response<Full<Bytes>>;

/// Serves a port with `answer`, until `stop` turns true. Run it on a [`LocalSet`](tokio::task::LocalSet).
pub async fn serve<F, A>(listener: TcpListener, answer: F, stop: watch::Receiver<bool>)
where
    F: Fn(Request<Incoming>) -> A + 'static,
    A: Future<Output = Answer> + 'static,
{
    let answer = Rc::new(answer);
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accept = async || accept_until(&listener, &answer, &free, stop.clone()).await;
    panics::restart_task(Boundary::Listener, accept).await;
}

async fn accept_until<F, A>(
    listener: &TcpListener,
    answer: &Rc<F>,
    free: &Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) where
    F: Fn(Request<Incoming>) -> A + 'static,
    A: Future<Output = Answer> + 'static,
{
    loop {
        let Ok(place) = free.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        panics::point("http_accept");
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let answer = answer.clone();
        tokio::task::spawn_local(caught(Boundary::HttpConnection, async move {
            let _place = place;
            panics::point("http_connection");
            let service = service_fn(move |request| answer_or_500(answer.clone(), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                debug!(%error, "an HTTP connection ended early");
            }
        }));
    }
}

async fn answer_or_500<F, A>(answer: Rc<F>, request: Request<Incoming>) -> Result<Answer, Infallible>
where
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer>,
{
    let answered = caught(Boundary::HttpRequest, async {
        panics::point("http_request");
        answer(request).await
    });
    Ok(answered.await.unwrap_or_else(|Panicked| internal_error()))
}

/// The answer to a request that panicked.
#[must_use]
pub fn internal_error() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal error; the log has the details.\n")
}

/// Reads a body of at most so many bytes.
///
/// # Errors
/// When it is larger, slower than is taken, or breaks off; the text says which.
pub async fn read_body(body: Incoming, most: usize) -> Result<Bytes, String> {
    match tokio::time::timeout(PATIENCE, collect(Limited::new(body, most))).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => {
            Err(format!("the body could not be read (at most {most} bytes are taken): {error}"))
        }
        Err(_) => Err(format!("the body did not come within {} seconds", PATIENCE.as_secs())),
    }
}

/// A body in one piece. Where its length is known the space is made at once, so that no piece is kept twice.
async fn collect(mut body: Limited<Incoming>) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut whole = BytesMut::with_capacity(length.unwrap_or_default().min(MOST_AT_ONCE));
    while let Some(frame) = body.frame().await {
        whole.extend_from_slice(&frame?.into_data().unwrap_or_default());
    }
    Ok(whole.freeze())
}

/// An answer in plain text.
#[must_use]
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

/// An answer of this content type.
#[must_use]
pub fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
