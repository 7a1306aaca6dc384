//! A gRPC channel over an open connection, with or without TLS.
//!
//! The subscription to a control plane and `tollgate request` connect by themselves, for their own errors. Such a
//! channel does not reconnect.

use std::{
    future::{Ready, ready},
    io,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower_service::Service;

/// A stream in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection of any kind.
pub type Socket = Box<dyn Duplex>;

/// Starts HTTP/2 on a connection. `origin` is the authority of requests.
///
/// # Errors
/// If the server does not use HTTP/2.
pub async fn over(
    socket: Socket,
    origin: Uri,
    set: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Channel, Error> {
    // The address is not used: the connection is open.
    let endpoint = set(Endpoint::from_static("http://server").origin(origin));
    endpoint.connect_with_connector(Once(Some(socket))).await
}

/// A connector with one connection. Tonic requests another when the channel is used after the end of the first.
struct Once(Option<Socket>);

impl Service<Uri> for Once {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let closed = || io::Error::new(io::ErrorKind::NotConnected, "connection closed");
        ready(self.0.take().map(TokioIo::new).ok_or_else(closed))
    }
}
