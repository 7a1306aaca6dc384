//! The sockets of the gRPC port: TCP and Unix, with TLS or without.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::tls::Counted;

pub(super) trait GrpcSocket: AsyncRead + AsyncWrite + Send + Unpin {
    /// True if the peer has reset the connection. What it sent before can still be read.
    fn is_reset(&self) -> bool;
}

impl GrpcSocket for TcpStream {
    fn is_reset(&self) -> bool {
        !matches!(self.take_error(), Ok(None))
    }
}

impl GrpcSocket for UnixStream {
    fn is_reset(&self) -> bool {
        !matches!(self.take_error(), Ok(None))
    }
}

impl<S: GrpcSocket> GrpcSocket for Counted<S> {
    fn is_reset(&self) -> bool {
        self.get_ref().is_reset()
    }
}

impl<S: GrpcSocket> GrpcSocket for TlsStream<S> {
    fn is_reset(&self) -> bool {
        self.get_ref().0.is_reset()
    }
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
