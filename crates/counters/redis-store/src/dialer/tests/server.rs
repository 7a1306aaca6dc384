//! A scripted server for one connection.

use std::sync::Arc;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use net::{HostPort, ServerAddress};

/// A server for one connection.
pub(super) struct Server {
    pub(super) address: ServerAddress,
    /// Returns the received bytes.
    pub(super) received: JoinHandle<Vec<u8>>,
}

/// Receives until the bytes end with `until`, sends `reply`, and closes unless it `stays`.
pub(super) async fn talk(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    until: &[u8],
    reply: &[u8],
    stays: bool,
) -> Vec<u8> {
    let mut received = Vec::new();
    while let Ok(1..) = socket.read_buf(&mut received).await {
        if received.ends_with(until) {
            let _ = socket.write_all(reply).await;
            if stays {
                let _ = socket.read_to_end(&mut received).await;
            }
            break;
        }
    }
    let _ = socket.shutdown().await;
    received
}

pub(super) async fn server(
    until: &'static [u8],
    reply: &'static [u8],
    stays: bool,
    tls: Option<Arc<ServerConfig>>,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let received = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        match tls {
            None => talk(socket, until, reply, stays).await,
            Some(config) => match TlsAcceptor::from(config).accept(socket).await {
                Ok(socket) => talk(socket, until, reply, stays).await,
                Err(_) => Vec::new(),
            },
        }
    });
    Server { address: ServerAddress::Tcp(HostPort { host: "127.0.0.1".to_owned(), port }), received }
}
