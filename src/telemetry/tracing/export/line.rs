//! The connection to the collector: opened when something is to be sent, kept while it lasts.
//!
//! OTLP over HTTP/1.1, or the unary gRPC call of the same message over HTTP/2, both straight on hyper.

use std::{fmt, io};

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

use super::{Failure, tls::Tls};
use crate::{
    proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse,
    settings::spans::{Collector, Protocol},
};

/// Where gRPC takes spans.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A collector's answer has hardly a hundred bytes; one that has more than this is not read.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Of a collector's words so many characters are repeated.
const LONGEST_WORDS: usize = 200;

/// The way to the collector.
pub(super) struct Line {
    to: Uri,
    protocol: Protocol,
    headers: HeaderMap,
    gzip: bool,
    tls: Option<Tls>,
    open: Option<Open>,
}

/// A connection.
enum Open {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Full<Bytes>>),
}

/// What the collector says of a batch that it has taken.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// So many spans were left out.
    pub(super) refused: u64,
    /// Its words to us.
    pub(super) message: String,
}

impl Line {
    /// # Errors
    /// All that is wrong with the files that the settings name.
    pub(super) fn new(collector: &Collector) -> Result<Self, Vec<String>> {
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
            to: collector.endpoint.clone(),
            protocol: collector.protocol,
            headers,
            gzip: collector.gzip,
            tls: tls.transpose()?,
            open: None,
        })
    }

    /// The collector as it may stand in a log.
    pub(super) fn shown(&self) -> String {
        let authority = self.to.authority().map_or("", |authority| authority.as_str());
        format!("{}://{authority}", self.to.scheme_str().unwrap_or_default())
    }

    /// Sends a message and reads the answer. A connection on which something went wrong, or whose answer was
    /// not waited for, is not used again.
    pub(super) async fn send(&mut self, message: &Bytes) -> Result<Taken, Failure> {
        let open = match self.open.take() {
            Some(open) => open.still_there().await,
            None => None,
        };
        let mut open = match open {
            Some(open) => open,
            None => self.connect().await.map_err(|error| Failure::passing(error.to_string()))?,
        };
        let answer = open.ask(self.request(message)?).await;
        let answer = answer.map_err(|error| Failure::passing(format!("the connection broke: {error}")))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| Failure::passing(format!("the answer broke off: {error}")))?;
        self.open = Some(open);
        let trailers = body.trailers().cloned().unwrap_or_default();
        match self.protocol {
            Protocol::Http => of_http(head.status, &body.to_bytes()),
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
                // HTTP/1.1 wants the path alone.
                (to.scheme, to.authority) = (None, None);
            }
            Protocol::Grpc => {
                if self.gzip {
                    request.headers_mut().insert("grpc-encoding", HeaderValue::from_static("gzip"));
                }
                to.path_and_query = Some(PathAndQuery::from_static(EXPORT));
                *request.body_mut() = Full::new(framed(message, self.gzip));
            }
        }
        let to = Uri::from_parts(to).map_err(|error| Failure::lasting(error.to_string()))?;
        *request.uri_mut() = to;
        Ok(request)
    }

    async fn connect(&self) -> io::Result<Open> {
        let host = self.to.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.to.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some(tls) => open(self.protocol, tls.shake(stream).await?).await,
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
    async fn still_there(mut self) -> Option<Self> {
        let ready = match &mut self {
            Self::Http(sender) => sender.ready().await,
            Self::Grpc(sender) => sender.ready().await,
        };
        ready.is_ok().then_some(self)
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http(sender) => sender.send_request(request).await,
            Self::Grpc(sender) => sender.send_request(request).await,
        }
    }
}

/// A message with gRPC's prefix.
fn framed(message: &Bytes, gzip: bool) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len().saturating_add(5));
    framed.put_u8(u8::from(gzip));
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

fn of_http(status: StatusCode, body: &[u8]) -> Result<Taken, Failure> {
    if status.is_success() {
        return Ok(taken(body));
    }
    let why = format!("the collector answered {status}{}", help(status));
    // Those that OTLP lets be asked again.
    Err(Failure { may_pass: matches!(status.as_u16(), 429 | 502 | 503 | 504), why })
}

fn help(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "; its credentials belong in OTEL_EXPORTER_OTLP_HEADERS",
        404 | 405 => {
            "; spans are taken at /v1/traces, which is put behind OTEL_EXPORTER_OTLP_ENDPOINT but not behind \
             OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
        }
        _ => "",
    }
}

/// The status stands behind the message, or in the head where there is none.
fn of_grpc(status: StatusCode, sources: [&HeaderMap; 2], body: &[u8]) -> Result<Taken, Failure> {
    if status != StatusCode::OK {
        let why = format!("the collector answered {status}, which gRPC does not; is its gRPC port meant?");
        return Err(Failure { may_pass: matches!(status.as_u16(), 429 | 502 | 503 | 504), why });
    }
    let find = |name| sources.into_iter().find_map(|headers| headers.get(name)?.to_str().ok());
    match find("grpc-status").and_then(|code| code.parse().ok()) {
        Some(0) => Ok(taken(body.get(5..).unwrap_or_default())),
        code => {
            let code: i32 = code.unwrap_or(2);
            let words = shortened(find("grpc-message").unwrap_or_default());
            let why = format!("the collector answered with gRPC status {code}: {words:?}");
            // Those that OTLP lets be asked again.
            Err(Failure { may_pass: matches!(code, 1 | 4 | 8 | 10 | 11 | 14 | 15), why })
        }
    }
}

/// What stands in the answer to a batch that was taken. One that cannot be read says nothing.
fn taken(body: &[u8]) -> Taken {
    let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    let Some(part) = answer.partial_success else { return Taken::default() };
    let refused = u64::try_from(part.rejected_spans).unwrap_or_default();
    Taken { refused, message: shortened(&part.error_message) }
}

fn shortened(words: &str) -> String {
    words.chars().take(LONGEST_WORDS).collect()
}

/// Its headers may hold secrets.
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("to", &self.shown()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_whether_trying_again_may_help() {
        for (status, may_pass) in
            [(400, false), (401, false), (404, false), (500, false), (429, true), (503, true)]
        {
            let failure = of_http(StatusCode::from_u16(status).unwrap(), b"").unwrap_err();
            assert_eq!(failure.may_pass, may_pass, "{status}");
        }
        for (code, may_pass) in [(3, false), (7, false), (12, false), (16, false), (8, true), (14, true)] {
            let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(code))]);
            let failure = of_grpc(StatusCode::OK, [&trailers, &HeaderMap::new()], b"").unwrap_err();
            assert_eq!(failure.may_pass, may_pass, "{code}");
        }
        assert!(of_grpc(StatusCode::OK, [&HeaderMap::new(); 2], b"").is_err(), "without a status");
    }

    #[test]
    fn what_was_left_out_is_read() {
        let body = [0x0a, 5, 0x08, 3, 0x12, 1, b'x'];
        let taken = of_http(StatusCode::OK, &body).unwrap();
        assert_eq!((taken.refused, &*taken.message), (3, "x"));
        assert_eq!(of_http(StatusCode::ACCEPTED, b"\xff{}").unwrap().refused, 0, "an answer of another kind");
    }
}
