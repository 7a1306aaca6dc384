//! The connection to the collector, opened on demand and reused.
//!
//! OTLP over HTTP/1.1, or the unary gRPC call with the same message over HTTP/2, both directly on hyper.

use std::{io, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

use super::settings::{Collector, CollectorTls, Protocol, Signal};
use net::tls::{self, Hints};
use proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;

/// The largest response. An ordinary one has less than a hundred bytes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

const MAX_MESSAGE_CHARS: usize = 200;

pub(crate) struct CollectorConnection {
    signal: Signal,
    to: Uri,
    protocol: Protocol,
    headers: HeaderMap,
    gzip: bool,
    tls: Option<Tls>,
    open: Option<Open>,
}

enum Open {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Full<Bytes>>),
}

#[derive(Debug, Default)]
pub(crate) struct Accepted {
    /// The spans or points that the collector left out.
    pub(crate) rejected: u64,
    pub(crate) message: String,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) is_retryable: bool,
    pub(crate) why: String,
}

impl Failure {
    pub(crate) fn retryable(why: impl Into<String>) -> Self {
        Self { is_retryable: true, why: why.into() }
    }

    fn permanent(why: impl Into<String>) -> Self {
        Self { is_retryable: false, why: why.into() }
    }
}

impl CollectorConnection {
    pub(crate) fn new(collector: &Collector) -> Result<Self, Vec<String>> {
        let tls =
            collector.tls.as_ref().map(|files| Tls::load(files, &collector.endpoint, collector.protocol));
        let mut headers = collector.headers.clone();
        let fixed = match collector.protocol {
            Protocol::Http => [(header::CONTENT_TYPE, "application/x-protobuf"), (header::ACCEPT, "*/*")],
            Protocol::Grpc => [(header::CONTENT_TYPE, "application/grpc"), (header::TE, "trailers")],
        };
        headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
        let own = HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
        headers.entry(header::USER_AGENT).or_insert(own);
        Ok(Self {
            signal: collector.signal,
            to: collector.endpoint.clone(),
            protocol: collector.protocol,
            headers,
            gzip: collector.gzip,
            tls: tls.transpose()?,
            open: None,
        })
    }

    /// Sends a message and reads the response. A connection that failed, or whose response was not awaited, is not
    /// reused.
    pub(crate) async fn send(&mut self, message: &Bytes) -> Result<Accepted, Failure> {
        let open = match self.open.take() {
            Some(open) => open.if_ready().await,
            None => None,
        };
        let mut open = match open {
            Some(open) => open,
            None => self
                .connect()
                .await
                .map_err(|error| Failure::retryable(format!("cannot connect: {error}")))?,
        };
        let response = open.send(self.request(message)?).await;
        let response = response.map_err(|error| Failure::retryable(format!("connection lost: {error}")))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| Failure::retryable(format!("incomplete response: {error}")))?;
        self.open = Some(open);
        let trailers = body.trailers().cloned().unwrap_or_default();
        match self.protocol {
            Protocol::Http => of_http(self.signal, head.status, &body.to_bytes()),
            Protocol::Grpc => of_grpc(head.status, [&trailers, &head.headers], &body.to_bytes()),
        }
    }

    fn request(&self, message: &Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::new(Full::new(message.clone()));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = self.headers.clone();
        let mut to = self.to.clone().into_parts();
        match self.protocol {
            Protocol::Http => {
                let host = self.to.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
                request.headers_mut().extend(host.map(|host| (header::HOST, host)));
                if self.gzip {
                    request.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                }
                // HTTP/1.1 requests have the path alone.
                (to.scheme, to.authority) = (None, None);
            }
            Protocol::Grpc => {
                if self.gzip {
                    request.headers_mut().insert("grpc-encoding", HeaderValue::from_static("gzip"));
                }
                to.path_and_query = Some(PathAndQuery::from_static(self.signal.method()));
                *request.body_mut() = Full::new(framed(message, self.gzip));
            }
        }
        let to = Uri::from_parts(to).map_err(|error| Failure::permanent(error.to_string()))?;
        *request.uri_mut() = to;
        Ok(request)
    }

    async fn connect(&self) -> io::Result<Open> {
        let host = self.to.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.to.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some(tls) => open(self.protocol, tls.handshake(stream).await?).await,
            None => open(self.protocol, stream).await,
        }
    }
}

async fn open(
    protocol: Protocol,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<Open> {
    let io = TokioIo::new(stream);
    // The next request on the connection returns its error.
    Ok(match protocol {
        Protocol::Http => {
            let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Open::Http(sender)
        }
        Protocol::Grpc => {
            let handshake = http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).handshake(io);
            let (sender, connection) = handshake.await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Open::Grpc(sender)
        }
    })
}

impl Open {
    /// The connection, unless the collector has closed it.
    async fn if_ready(mut self) -> Option<Self> {
        let ready = match &mut self {
            Self::Http(sender) => sender.ready().await,
            Self::Grpc(sender) => sender.ready().await,
        };
        ready.is_ok().then_some(self)
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http(sender) => sender.send_request(request).await,
            Self::Grpc(sender) => sender.send_request(request).await,
        }
    }
}

fn framed(message: &Bytes, gzip: bool) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(u8::from(gzip));
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

fn of_http(signal: Signal, status: StatusCode, body: &[u8]) -> Result<Accepted, Failure> {
    if status.is_success() {
        return Ok(accepted(body));
    }
    let why = format!("the collector returned {status}{}", help(signal, status));
    Err(Failure { is_retryable: is_retryable_status(status), why })
}

fn is_retryable_status(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

fn help(signal: Signal, status: StatusCode) -> String {
    match status.as_u16() {
        401 | 403 => "; set credentials in OTEL_EXPORTER_OTLP_HEADERS".to_owned(),
        404 | 405 => format!(
            "; the path is {}, which is appended to OTEL_EXPORTER_OTLP_ENDPOINT but not to OTEL_EXPORTER_OTLP_{}_ENDPOINT",
            signal.path(),
            signal.name()
        ),
        _ => String::new(),
    }
}

/// The gRPC status is in the trailers, or in the headers of a response without a message.
fn of_grpc(status: StatusCode, sources: [&HeaderMap; 2], body: &[u8]) -> Result<Accepted, Failure> {
    if status != StatusCode::OK {
        let why = format!(
            "the collector returned {status}, which is not gRPC; check that the port is its gRPC port"
        );
        return Err(Failure { is_retryable: is_retryable_status(status), why });
    }
    let find = |name| sources.into_iter().find_map(|headers| headers.get(name)?.to_str().ok());
    match find("grpc-status").and_then(|code| code.parse().ok()) {
        Some(0) => Ok(accepted(body.get(5..).unwrap_or_default())),
        code => {
            let code: i32 = code.unwrap_or(2);
            let message = shortened(find("grpc-message").unwrap_or_default());
            let why = format!("the collector returned gRPC status {code}: {message:?}");
            // The codes that OTLP allows to retry.
            Err(Failure { is_retryable: matches!(code, 1 | 4 | 8 | 10 | 11 | 14 | 15), why })
        }
    }
}

/// The response to an accepted batch; an invalid one is ignored. That to metrics has the same fields.
fn accepted(body: &[u8]) -> Accepted {
    let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    let Some(part) = response.partial_success else { return Accepted::default() };
    let rejected = u64::try_from(part.rejected_spans).unwrap_or_default();
    Accepted { rejected, message: shortened(&part.error_message) }
}

fn shortened(message: &str) -> String {
    message.chars().take(MAX_MESSAGE_CHARS).collect()
}

/// The variables in errors, unless those of the signal alone are set.
const HINTS: Hints = Hints {
    ca: "OTEL_EXPORTER_OTLP_CERTIFICATE",
    certificate: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    key: "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    other_host: "the certificate must have the host of OTEL_EXPORTER_OTLP_ENDPOINT",
    plain_text: "if the port is plaintext, write http:// in OTEL_EXPORTER_OTLP_ENDPOINT",
};

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    hints: Hints,
}

impl Tls {
    fn load(tls: &CollectorTls, endpoint: &Uri, protocol: Protocol) -> Result<Self, Vec<String>> {
        let [ca, certificate, key] = tls.variables;
        let hints = Hints { ca, certificate, key, ..HINTS };
        let mut config = tls::load(&tls.files, &hints)?;
        config.alpn_protocols = vec![match protocol {
            Protocol::Http => b"http/1.1".to_vec(),
            Protocol::Grpc => b"h2".to_vec(),
        }];
        let name = tls::server_name(endpoint.host().unwrap_or_default());
        let name = name.map_err(|why| vec![format!("TLS to the collector: {why}")])?;
        Ok(Self { connector: Arc::new(config).into(), name, hints })
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let result = self.connector.connect(self.name.clone(), stream).await;
        result.map_err(|error| match tls::explain(&error, &self.hints) {
            Some(why) => io::Error::other(format!("TLS handshake failed: {why}")),
            None => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_retryable_as_otlp_defines() {
        for (status, is_retryable) in
            [(400, false), (401, false), (404, false), (500, false), (429, true), (503, true)]
        {
            let failure = of_http(Signal::Traces, StatusCode::from_u16(status).unwrap(), b"").unwrap_err();
            assert_eq!(failure.is_retryable, is_retryable, "{status}");
        }
        for (code, is_retryable) in [(3, false), (7, false), (12, false), (16, false), (8, true), (14, true)]
        {
            let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(code))]);
            let failure = of_grpc(StatusCode::OK, [&trailers, &HeaderMap::new()], b"").unwrap_err();
            assert_eq!(failure.is_retryable, is_retryable, "{code}");
        }
        assert!(of_grpc(StatusCode::OK, [&HeaderMap::new(); 2], b"").is_err(), "without a status");
    }

    #[test]
    fn reads_the_number_of_rejected_spans() {
        let body = [0x0a, 5, 0x08, 3, 0x12, 1, b'x'];
        let accepted = of_http(Signal::Traces, StatusCode::OK, &body).unwrap();
        assert_eq!((accepted.rejected, &*accepted.message), (3, "x"));
        assert_eq!(
            of_http(Signal::Traces, StatusCode::ACCEPTED, b"\xff{}").unwrap().rejected,
            0,
            "not a message"
        );
    }
}
