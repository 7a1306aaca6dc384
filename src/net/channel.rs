//! A gRPC channel over a connection that is open already, secured where TLS is spoken.
//!
//! The subscription to a control plane and `tollgate request` connect by themselves, and so have their own words for
//! what fails. Such a channel does not come back when its connection breaks.

use std::{
    future::{Ready, ready},
    io,
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower_service::Service;

/// Both ways of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection of any kind.
pub type Socket = Box<dyn Duplex>;

/// Begins HTTP/2 on a connection. Requests name `origin` as the server's.
///
/// # Errors
/// When no HTTP/2 is spoken there.
pub async fn over(
    socket: Socket,
    origin: Uri,
    set: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Channel, Error> {
    // The address is never looked at: the connection is there.
    let endpoint = set(Endpoint::from_static("http://server").origin(origin));
    endpoint.connect_with_connector(Once(Some(socket))).await
}

/// Hands out one connection, once: tonic asks for another when it is used after its end.
struct Once(Option<Socket>);

impl Service<Uri> for Once {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let ended = || io::Error::new(io::ErrorKind::NotConnected, "the connection has ended");
        ready(self.0.take().map(TokioIo::new).ok_or_else(ended))
    }
}
