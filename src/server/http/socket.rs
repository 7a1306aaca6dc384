//! The sockets of an HTTP port: what it listens on, what it accepts, and who is at the other end.

use std::{
    fmt, io,
    io::IoSlice,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::server::grpc::Listener;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// An address.
    Address(SocketAddr),
    /// A process of this machine, and the user that it runs as if the system says.
    Unix(Option<u32>),
}

impl Peer {
    /// Its address, if it has one.
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

/// A connection.
pub(super) enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Socket {
    /// Has the kernel drop what is not sent yet when the socket is closed. A unix socket's kernel does so anyway.
    pub(super) fn discard_unsent(&self) {
        let stream = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
            Self::Unix(_) => return,
        };
        // Without it the kernel sends the rest when the peer reads, as before.
        let _ = stream.set_zero_linger();
    }
}

/// The next connection of a port.
pub(super) async fn accept(listener: &Listener) -> io::Result<(Socket, Peer)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            Ok((Socket::Tcp(stream), Peer::Address(address)))
        }
        Listener::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred().ok().map(|peer| peer.uid());
            Ok((Socket::Unix(stream), Peer::Unix(user)))
        }
    }
}

/// Does the same with each kind of stream.
macro_rules! each {
    ($self:ident, $stream:ident => $does:expr) => {
        match $self.get_mut() {
            Self::Tcp($stream) => $does,
            Self::Tls($stream) => $does,
            Self::Unix($stream) => $does,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
