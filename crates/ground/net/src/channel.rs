//! A connection to a server of gRPC, and a channel over it once it is open, with or without TLS.
//!
//! The subscription to a control plane and `tollgate request` secure it by themselves, for their own errors. Such a
//! channel does not reconnect.

use std::{future::ready, io, time::Duration};

use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower::service_fn;

use crate::{ServerAddress, edges::Transport};

/// Probes that detect a dead peer within a minute: the idle time, the interval and the number of probes.
const TCP_KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

pub async fn connect(to: &ServerAddress) -> io::Result<Transport> {
    Ok(match to {
        ServerAddress::Tcp(at) => {
            let socket = TcpStream::connect((&*at.host, at.port)).await?;
            // A failure costs latency, or time until a dead peer is detected.
            let _ = socket.set_nodelay(true);
            let _ = SockRef::from(&socket).set_tcp_keepalive(&TCP_KEEPALIVE);
            Box::new(socket)
        }
        ServerAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
    })
}

/// Starts HTTP/2 on a connection. `origin` is the authority of requests.
pub async fn over(
    socket: Transport,
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
