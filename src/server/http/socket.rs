//! The sockets of an HTTP port: what it accepts, and the peer of a connection.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::server::grpc::Listener;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    Address(SocketAddr),
    /// A process of this machine, and its user if the system reports it.
    Unix(Option<u32>),
}

impl Peer {
    pub(super) fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Unix(Some(user)) => write!(f, "uid {user}"),
            Self::Unix(None) => f.write_str("unix socket"),
        }
    }
}

/// A connection, with or without TLS.
pub(super) type Socket = Box<dyn Stream>;

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// Has the kernel drop unsent bytes when the socket is closed. Otherwise it sends them when the peer reads.
    fn discard_unsent(&self);
}

impl Stream for TcpStream {
    fn discard_unsent(&self) {
        let _ = self.set_zero_linger();
    }
}

impl Stream for UnixStream {
    fn discard_unsent(&self) {}
}

impl Stream for TlsStream<Socket> {
    fn discard_unsent(&self) {
        self.get_ref().0.discard_unsent();
    }
}

pub(super) async fn accept(listener: &Listener) -> io::Result<(Socket, Peer)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            Ok((Box::new(stream), Peer::Address(address)))
        }
        Listener::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred().ok().map(|peer| peer.uid());
            Ok((Box::new(stream), Peer::Unix(user)))
        }
    }
}
