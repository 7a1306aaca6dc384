//! A collector of a test's own: takes OTLP over HTTP or gRPC, on a port of its own, and keeps what comes.
//!
//! `spans` reads what came.

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

pub(crate) use spans::{AttributeValue, Export, Span};

/// What the collector does with what it is sent.
#[derive(Clone, Debug)]
pub(crate) enum Manner {
    /// Takes it.
    Takes,
    /// Takes it, but so many spans of each batch.
    LeavesOut(i64),
    /// Answers with a status of HTTP, or of gRPC.
    Answers(u16),
    /// Never answers.
    Silent,
}

/// A running collector; it ends when this is dropped.
pub(crate) struct Receiver {
    pub(crate) port: u16,
    kept: Arc<Mutex<Kept>>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Kept {
    manner: Manner,
    exports: Vec<Export>,
}

impl Receiver {
    /// A collector that takes everything; it speaks gRPC or HTTP, with TLS where there is something for it.
    pub(crate) fn start(grpc: bool, tls: Option<TlsAcceptor>) -> Self {
        Self::on(0, grpc, tls)
    }

    /// The same on this port.
    pub(crate) fn on(port: u16, grpc: bool, tls: Option<TlsAcceptor>) -> Self {
        let listener = StdListener::bind(("127.0.0.1", port)).expect("a port can be had");
        let port = listener.local_addr().expect("a listener has an address").port();
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let kept = Arc::new(Mutex::new(Kept { manner: Manner::Takes, exports: Vec::new() }));
        let (stop, stopping) = watch::channel(());
        let (keeping, mut stopped) = (kept.clone(), stopping);
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
            runtime.block_on(async {
                tokio::select! {
                    () = listen(listener, grpc, tls, keeping) => {}
                    _ = stopped.changed() => {}
                }
            });
        });
        Self { port, kept, stop: Some(stop), thread: Some(thread) }
    }

    /// Behaves so from now on.
    pub(crate) fn set(&self, manner: Manner) {
        self.kept.lock().unwrap().manner = manner;
    }

    /// Everything that has come.
    pub(crate) fn exports(&self) -> Vec<Export> {
        self.kept.lock().unwrap().exports.clone()
    }

    /// All spans that have come.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.exports().into_iter().flat_map(|export| export.spans).collect()
    }

    /// Waits until so many spans have come; then all of them.
    pub(crate) fn wait_for(&self, spans: usize) -> Vec<Span> {
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
    let listener = TcpListener::from_std(listener).expect("a listener can be taken over");
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
    // How a connection ends is the service's affair.
    let _ = if grpc {
        http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
    } else {
        http1::Builder::new().serve_connection(io, service).await
    };
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn take(request: Request<Incoming>, grpc: bool, kept: Arc<Mutex<Kept>>) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a request comes whole").to_bytes();
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
        *response.status_mut() = StatusCode::from_u16(status).expect("it is a status");
        *response.body_mut() = Full::new(message.into()).boxed();
        return response;
    }
    let length = u32::try_from(message.len()).expect("it is short");
    let framed = [&[0][..], &length.to_be_bytes(), &message].concat();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(status))]);
    let body = if status == 0 { Full::new(framed.into()) } else { Full::new(Bytes::new()) };
    *response.body_mut() = body.with_trailers(async move { Some(Ok(trailers)) }).boxed();
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}
