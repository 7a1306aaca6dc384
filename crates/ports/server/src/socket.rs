//! The sockets of all ports: TCP and unix, with TLS or without.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::{listen::AcceptedSocket, tls::Counted};

pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {
    /// True if the peer has reset the connection. What it sent before can still be read.
    fn is_reset(&self) -> bool;

    /// Has the kernel drop unsent bytes when the socket is closed. Otherwise it sends them when the peer reads.
    fn discard_unsent(&self);
}

impl Socket for TcpStream {
    fn is_reset(&self) -> bool {
        !matches!(self.take_error(), Ok(None))
    }

    fn discard_unsent(&self) {
        let _ = self.set_zero_linger();
    }
}

impl Socket for UnixStream {
    fn is_reset(&self) -> bool {
        !matches!(self.take_error(), Ok(None))
    }

    fn discard_unsent(&self) {}
}

impl<S: Socket> Socket for TlsStream<Counted<S>> {
    fn is_reset(&self) -> bool {
        self.get_ref().0.get_ref().is_reset()
    }

    fn discard_unsent(&self) {
        self.get_ref().0.get_ref().discard_unsent();
    }
}

impl Socket for Box<dyn Socket> {
    fn is_reset(&self) -> bool {
        (**self).is_reset()
    }

    fn discard_unsent(&self) {
        (**self).discard_unsent();
    }
}

/// Registers an accepted socket with the runtime of this thread.
pub(super) fn open(socket: AcceptedSocket) -> io::Result<Box<dyn Socket>> {
    Ok(match socket {
        AcceptedSocket::Tcp(stream) => Box::new(TcpStream::from_std(stream)?),
        AcceptedSocket::Unix(stream) => Box::new(UnixStream::from_std(stream)?),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::{sleep, timeout},
    };

    use super::*;

    #[tokio::test]
    async fn a_reset_is_known_before_what_was_sent_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for is_reset in [false, true] {
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            peer.write_all(b"request").await.unwrap();
            if is_reset {
                peer.set_zero_linger().unwrap();
            }
            drop(peer);
            accepted.readable().await.unwrap();
            if is_reset {
                let seen = async {
                    while !accepted.is_reset() {
                        sleep(Duration::from_millis(1)).await;
                    }
                };
                timeout(Duration::from_secs(20), seen).await.unwrap();
            } else {
                assert!(!accepted.is_reset());
            }
            assert_eq!(accepted.read(&mut [0; 64]).await.unwrap(), 7);
        }
    }
}
