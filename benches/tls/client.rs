//! HTTP/2 to a service, with or without TLS, and a request as Envoy sends it.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::rustls::{HandshakeKind, pki_types::ServerName};

use super::{Kind, Result, Service};

/// The number of different callers.
const USERS: usize = 100_000;

/// One connection.
#[derive(Clone)]
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    head: Request<()>,
    /// The session of an earlier connection was resumed.
    pub(crate) is_resumed: bool,
}

impl Client {
    pub(crate) async fn connect(service: &Service, kind: &Kind) -> Result<Self> {
        let stream = TcpStream::connect(service.address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &kind.tls else { return Self::over(stream, false).await };
        let stream = tls.connect(ServerName::from(service.address.ip()), stream).await?;
        let is_resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        Self::over(stream, is_resumed).await
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        is_resumed: bool,
    ) -> Result<Self> {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let head =
            Request::post("http://ratelimit/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
                .header("te", "trailers")
                // Envoy's default is 20 ms, which is too short on a busy machine.
                .header("grpc-timeout", "10S")
                .header("content-type", "application/grpc")
                .header("x-envoy-internal", "true")
                .header("x-envoy-expected-rq-timeout-ms", "20")
                .body(())?;
        Ok(Self { sender, head, is_resumed })
    }

    /// Sends a request, and reads the answer.
    pub(crate) async fn apply(&mut self, question: Bytes) -> Result<()> {
        self.sender.ready().await?;
        let request = self.head.clone().map(|()| Full::new(question));
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = body.collect().await?;
        let status = body.trailers().unwrap_or(&head.headers).get("grpc-status");
        if status.is_none_or(|status| status != "0") {
            return Err(format!("the service answered with the gRPC status {status:?}").into());
        }
        Ok(())
    }
}

/// Requests of many users, framed for gRPC.
pub(crate) fn questions() -> Rc<[Bytes]> {
    (0..USERS).map(question).collect()
}

/// The request of one user.
pub(crate) fn question(user: usize) -> Bytes {
    let entry = Entry { key: "user".to_owned(), value: format!("user-{user}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request =
        RateLimitRequest { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    let message = request.encode_to_vec();
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    // A request has about fifty bytes.
    framed.put_u32(u32::try_from(message.len()).unwrap_or_default());
    framed.put_slice(&message);
    framed.freeze()
}
