//! A gRPC channel over an open connection, with or without TLS.
//!
//! The subscription to a control plane and `tollgate request` connect by themselves, for their own errors. Such a
//! channel does not reconnect.

use std::{future::ready, io};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower::service_fn;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

pub type Socket = Box<dyn Duplex>;

/// Starts HTTP/2 on a connection. `origin` is the authority of requests.
pub async fn over(
    socket: Socket,
    origin: Uri,
    set: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Channel, Error> {
    // The address is not used: the connection is open. Tonic requests another when the channel is used after its end.
    let endpoint = set(Endpoint::from_static("http://server").origin(origin));
    let mut socket = Some(socket);
    let connector = service_fn(move |_: Uri| {
        let closed = || io::Error::new(io::ErrorKind::NotConnected, "connection closed");
        ready(socket.take().map(TokioIo::new).ok_or_else(closed))
    });
    endpoint.connect_with_connector(connector).await
}
