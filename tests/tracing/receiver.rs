//! A collector of a test's own: takes OTLP over HTTP or gRPC, on a port of its own, and keeps what comes.
//!
//! It reads the messages by the published numbers of their fields, which stand here once more: what the
//! service sends is not read by what the service was made with.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::Read,
    net::TcpListener as StdListener,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    runtime::Builder,
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use crate::support::eventually;

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

/// What came in one request.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
    pub(crate) resource: BTreeMap<String, Told>,
    pub(crate) spans: Vec<Span>,
}

/// A span as it was sent.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Span {
    #[prost(bytes, tag = "1")]
    pub(crate) trace: Vec<u8>,
    #[prost(bytes, tag = "2")]
    pub(crate) id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) trace_state: String,
    #[prost(bytes, tag = "4")]
    pub(crate) parent: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(int32, tag = "6")]
    pub(crate) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(crate) begun: u64,
    #[prost(fixed64, tag = "8")]
    pub(crate) ended: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(message, optional, tag = "15")]
    pub(crate) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(crate) flags: u32,
}

/// The status of a span.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(int32, tag = "3")]
    pub(crate) code: i32,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Told {
    Text(String),
    Number(i64),
    List(Vec<Told>),
    Nothing,
}

#[derive(Clone, PartialEq, Message)]
struct Exported {
    #[prost(message, repeated, tag = "1")]
    of_resources: Vec<OfResource>,
}

#[derive(Clone, PartialEq, Message)]
struct OfResource {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    of_scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
    #[prost(message, optional, tag = "5")]
    list: Option<List>,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Any>,
}

/// The answer to a batch of which something was left out.
#[derive(Clone, PartialEq, Message)]
struct Taken {
    #[prost(message, optional, tag = "1")]
    part: Option<Part>,
}

#[derive(Clone, PartialEq, Message)]
struct Part {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    message: String,
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

impl Span {
    /// What is told under this name.
    pub(crate) fn told(&self, key: &str) -> Told {
        told(&self.attributes).remove(key).unwrap_or(Told::Nothing)
    }
}

impl From<&str> for Told {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for Told {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<Told>, const N: usize> From<[T; N]> for Told {
    fn from(list: [T; N]) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
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
    let part = match manner {
        Manner::Silent => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            None
        }
        Manner::Answers(status) => return Ok(answer(grpc, status, Vec::new())),
        Manner::LeavesOut(rejected) => Some(Part { rejected, message: "too many".to_owned() }),
        Manner::Takes => None,
    };
    let export = read(head.uri.path(), head.headers, &body, grpc);
    kept.lock().unwrap().exports.push(export);
    Ok(answer(grpc, if grpc { 0 } else { 200 }, Taken { part }.encode_to_vec()))
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

fn read(path: &str, headers: HeaderMap, body: &[u8], grpc: bool) -> Export {
    let (is_packed, message) = if grpc {
        let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
        assert_eq!(length, body.len() - 5, "one whole message");
        (body[0] == 1, &body[5..])
    } else {
        (headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip"), body)
    };
    let mut bytes = message.to_vec();
    if is_packed {
        bytes.clear();
        GzDecoder::new(message).read_to_end(&mut bytes).expect("it is gzip");
    }
    let exported = Exported::decode(&*bytes).expect("it is an ExportTraceServiceRequest");
    let mut resource = BTreeMap::new();
    let mut spans = Vec::new();
    for of_resource in exported.of_resources {
        resource.extend(told(&of_resource.resource.unwrap_or_default().attributes));
        spans.extend(of_resource.of_scopes.into_iter().flat_map(|of_scope| of_scope.spans));
    }
    Export { path: path.to_owned(), headers, bytes, resource, spans }
}

fn told(attributes: &[Attribute]) -> BTreeMap<String, Told> {
    let value = |attribute: &Attribute| attribute.value.as_ref().map_or(Told::Nothing, any);
    attributes.iter().map(|attribute| (attribute.key.clone(), value(attribute))).collect()
}

fn any(any: &Any) -> Told {
    match any {
        Any { text: Some(text), .. } => Told::Text(text.clone()),
        Any { number: Some(number), .. } => Told::Number(*number),
        Any { list: Some(list), .. } => Told::List(list.values.iter().map(self::any).collect()),
        _ => Told::Nothing,
    }
}
