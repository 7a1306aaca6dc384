//! A collector: receives OTLP over HTTP or gRPC on its own port, and keeps the exports, which `spans` and `metrics` decode.

mod metrics;
mod spans;

use std::{
    convert::Infallible,
    net::TcpListener as StdListener,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    runtime::Builder,
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use super::eventually;

pub use metrics::{Metric, Number};
pub use spans::{AttributeValue, Export, Span};

/// The behaviour of the collector.
#[derive(Clone, Debug)]
pub enum Manner {
    /// Accepts every batch.
    Takes,
    /// Accepts a batch, but rejects this many of its spans or points.
    LeavesOut(i64),
    /// Returns an HTTP or gRPC status.
    Answers(u16),
    /// Does not answer.
    Silent,
}

/// A running collector; stops when dropped.
pub struct Receiver {
    pub port: u16,
    kept: Arc<Mutex<Kept>>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Kept {
    manner: Manner,
    exports: Vec<Export>,
}

impl Receiver {
    /// A collector that accepts everything, over gRPC or HTTP, optionally with TLS.
    pub fn start(grpc: bool, tls: Option<TlsAcceptor>) -> Self {
        Self::on(0, grpc, tls)
    }

    /// The same on this port.
    pub fn on(port: u16, grpc: bool, tls: Option<TlsAcceptor>) -> Self {
        let listener = StdListener::bind(("127.0.0.1", port)).expect("cannot bind a port");
        let port = listener.local_addr().expect("the listener has no address").port();
        listener.set_nonblocking(true).expect("cannot make the listener non-blocking");
        let kept = Arc::new(Mutex::new(Kept { manner: Manner::Takes, exports: Vec::new() }));
        let (stop, stopping) = watch::channel(());
        let (keeping, mut stopped) = (kept.clone(), stopping);
        let thread = thread::spawn(move || {
            let runtime =
                Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = listen(listener, grpc, tls, keeping) => {}
                    _ = stopped.changed() => {}
                }
            });
        });
        Self { port, kept, stop: Some(stop), thread: Some(thread) }
    }

    /// Changes the behaviour.
    pub fn set(&self, manner: Manner) {
        self.kept.lock().unwrap().manner = manner;
    }

    /// All exports so far.
    pub fn exports(&self) -> Vec<Export> {
        self.kept.lock().unwrap().exports.clone()
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.exports().into_iter().flat_map(|export| export.spans).collect()
    }

    /// Waits for this many spans, and returns all.
    pub fn wait_for(&self, spans: usize) -> Vec<Span> {
        eventually("the spans have come", || {
            let come = self.spans();
            if come.len() >= spans { Ok(come) } else { Err(format!("{} of {spans}", come.len())) }
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn listen(listener: StdListener, grpc: bool, tls: Option<TlsAcceptor>, kept: Arc<Mutex<Kept>>) {
    let listener = TcpListener::from_std(listener).expect("cannot use the listener");
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, kept) = (tls.clone(), kept.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, grpc, kept).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, grpc, kept).await;
                    }
                }
            }
        });
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    grpc: bool,
    kept: Arc<Mutex<Kept>>,
) {
    let io = TokioIo::new(stream);
    let service = service_fn(move |request| take(request, grpc, kept.clone()));
    // Errors of a connection are for the service to handle.
    let _ = if grpc {
        http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
    } else {
        http1::Builder::new().serve_connection(io, service).await
    };
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn take(request: Request<Incoming>, grpc: bool, kept: Arc<Mutex<Kept>>) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("the request is truncated").to_bytes();
    let manner = kept.lock().unwrap().manner.clone();
    let left_out = match manner {
        Manner::Silent => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            None
        }
        Manner::Answers(status) => return Ok(answer(grpc, status, Vec::new())),
        Manner::LeavesOut(spans) => Some(spans),
        Manner::Takes => None,
    };
    let export = spans::read(head.uri.path(), head.headers, &body, grpc);
    kept.lock().unwrap().exports.push(export);
    Ok(answer(grpc, if grpc { 0 } else { 200 }, spans::taken(left_out)))
}

fn answer(grpc: bool, status: u16, message: Vec<u8>) -> Answer {
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    if !grpc {
        *response.status_mut() = StatusCode::from_u16(status).expect("invalid status");
        *response.body_mut() = Full::new(message.into()).boxed();
        return response;
    }
    let length = u32::try_from(message.len()).expect("the message is too large");
    let framed = [&[0][..], &length.to_be_bytes(), &message].concat();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(status))]);
    let body = if status == 0 { Full::new(framed.into()) } else { Full::new(Bytes::new()) };
    *response.body_mut() = body.with_trailers(async move { Some(Ok(trailers)) }).boxed();
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}
