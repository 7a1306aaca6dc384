//! The sockets of an HTTP port.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::{listen::AcceptedSocket, tls::Counted};

/// A connection, with or without TLS.
pub(super) type HttpSocket = Box<dyn Stream>;

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

impl Stream for TlsStream<Counted<HttpSocket>> {
    fn discard_unsent(&self) {
        self.get_ref().0.get_ref().discard_unsent();
    }
}

/// Registers an accepted socket with the runtime of this thread.
pub(super) fn open(socket: AcceptedSocket) -> io::Result<HttpSocket> {
    Ok(match socket {
        AcceptedSocket::Tcp(stream) => Box::new(TcpStream::from_std(stream)?),
        AcceptedSocket::Unix(stream) => Box::new(UnixStream::from_std(stream)?),
    })
}
