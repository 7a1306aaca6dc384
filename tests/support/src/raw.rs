//! gRPC without the generated client: any bytes as the message, any headers, and the difference between a failed request
//! and one that the service did not accept.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::oneshot,
    time::{Sleep, sleep},
};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// An HTTP/2 connection. It runs on the runtime where it was created.
#[derive(Clone)]
pub struct RawClient {
    sender: SendRequest<Question>,
}

/// The result of a request.
#[derive(Debug)]
pub enum Exchange {
    /// The service answered with this gRPC status.
    Answered(GrpcStatus),
    /// The connection was closing, and the service did not accept the request: it may be retried.
    NotTaken,
    /// The service accepted the request, and did not answer.
    Failed(String),
}

/// A gRPC status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcStatus {
    pub code: i32,
    pub message: String,
}

impl RawClient {
    /// Connects to a gRPC port of 127.0.0.1.
    pub async fn connect(port: u16) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Self::over(stream).await
    }

    /// HTTP/2 on an open connection.
    pub async fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Self, String> {
        let (sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Sends a framed message to `ShouldRateLimit`.
    pub async fn exchange(&mut self, body: impl Into<Question>, headers: &HeaderMap) -> Exchange {
        match self.call(body, headers).await {
            Ok((status, _)) => Exchange::Answered(status),
            Err(unanswered) => unanswered,
        }
    }

    /// Sends a framed message to `ShouldRateLimit`, and decodes the answer.
    pub async fn ask(&mut self, body: Bytes, headers: &HeaderMap) -> Result<RateLimitResponse, Exchange> {
        let (status, message) = self.call(body, headers).await?;
        if status.code != 0 {
            return Err(Exchange::Answered(status));
        }
        let answer = message.get(5..).and_then(|message| RateLimitResponse::decode(message).ok());
        answer.ok_or_else(|| Exchange::Failed(format!("no answer but {message:?}")))
    }

    /// The status, and the framed message before it.
    async fn call(
        &mut self,
        body: impl Into<Question>,
        headers: &HeaderMap,
    ) -> Result<(GrpcStatus, Bytes), Exchange> {
        if self.sender.ready().await.is_err() {
            return Err(Exchange::NotTaken);
        }
        let mut request = Request::post(format!("http://localhost{METHOD}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body.into())
            .expect("a constant request is valid");
        request.headers_mut().extend(headers.clone());
        let response = match self.sender.try_send_request(request).await {
            Ok(response) => response,
            Err(error) if error.message().is_some() || is_farewell(error.error()) => {
                return Err(Exchange::NotTaken);
            }
            Err(error) => return Err(Exchange::Failed(format!("{:?}", error.error()))),
        };
        let (head, body) = response.into_parts();
        match body.collect().await {
            Err(error) => Err(Exchange::Failed(format!("{error:?}"))),
            Ok(body) => match status(body.trailers()).or_else(|| status(Some(&head.headers))) {
                Some(status) => Ok((status, body.to_bytes())),
                None => Err(Exchange::Failed(format!("HTTP status {} and no gRPC status", head.status))),
            },
        }
    }
}

/// The body of a request.
pub enum Question {
    /// Sent with the request.
    Now(Bytes),
    /// Sent when the test provides it; never if the test drops the sender.
    Later(oneshot::Receiver<Bytes>),
    /// Sent with the request; the end of the stream follows later in a separate frame.
    Apart(Bytes),
    /// All but the end of the stream was sent.
    Ending(Pin<Box<Sleep>>),
    /// Everything was sent.
    Done,
}

impl From<Bytes> for Question {
    fn from(body: Bytes) -> Self {
        Self::Now(body)
    }
}

impl From<oneshot::Receiver<Bytes>> for Question {
    fn from(body: oneshot::Receiver<Bytes>) -> Self {
        Self::Later(body)
    }
}

impl Body for Question {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = match &mut *self {
            Self::Now(body) => Some(std::mem::take(body)),
            Self::Apart(body) => {
                let body = std::mem::take(body);
                *self = Self::Ending(Box::pin(sleep(Duration::from_millis(2))));
                return Poll::Ready(Some(Ok(Frame::data(body))));
            }
            Self::Ending(pause) => {
                ready!(pause.as_mut().poll(context));
                None
            }
            Self::Later(body) => ready!(Pin::new(body).poll(context)).ok(),
            Self::Done => None,
        };
        *self = Self::Done;
        Poll::Ready(body.map(|body| Ok(Frame::data(body))))
    }
}

/// The message with the gRPC prefix: uncompressed, and its length.
pub fn framed(request: &impl Message) -> Bytes {
    frame(&request.encode_to_vec())
}

/// Any bytes as a gRPC message.
pub fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("the message is too large"));
    framed.put_slice(message);
    framed.freeze()
}

/// True for an error by a GOAWAY with `NO_ERROR`. Only requests after the last accepted one fail with it.
fn is_farewell(error: &hyper::Error) -> bool {
    let reason = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    reason.is_some_and(|error| {
        error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
    })
}

fn status(headers: Option<&HeaderMap>) -> Option<GrpcStatus> {
    let headers = headers?;
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message =
        headers.get("grpc-message").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    Some(GrpcStatus { code, message: message.unwrap_or_default() })
}
