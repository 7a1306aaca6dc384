//! A scripted sentinel or cluster node.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::resp::{self, Reply};
use net::HostPort;

/// A node that reports masters. If it has no reply, it closes the connection of the query.
#[derive(Clone)]
pub(super) struct FakeNode {
    pub(super) address: HostPort,
    reply: Arc<Mutex<Option<String>>>,
    queries: Arc<AtomicUsize>,
}

impl FakeNode {
    pub(super) async fn new(password: Option<&'static str>, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = HostPort { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        let node = Self { address, reply: Arc::default(), queries: Arc::default() };
        let server = node.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (server, tls) = (server.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => server.serve(socket, password).await,
                        Some(config) => {
                            let socket = TlsAcceptor::from(config).accept(socket).await.unwrap();
                            server.serve(socket, password).await;
                        }
                    }
                });
            }
        });
        node
    }

    async fn serve(&self, mut socket: impl AsyncRead + AsyncWrite + Unpin, password: Option<&str>) {
        let (mut unread, mut trusted) = (Vec::new(), password.is_none());
        while let Ok(1..) = socket.read_buf(&mut unread).await {
            while let Ok(Some((Reply::List(words), length))) = resp::read(&unread) {
                unread.drain(..length);
                let words: Vec<_> = words.into_iter().map(word).collect();
                let reply = match &*words[0] {
                    "AUTH" if words.last().map(String::as_str) == password => {
                        trusted = true;
                        "+OK\r\n".to_owned()
                    }
                    "AUTH" => "-WRONGPASS invalid username-password pair\r\n".to_owned(),
                    _ if !trusted => "-NOAUTH Authentication required.\r\n".to_owned(),
                    "SENTINEL" | "CLUSTER" => {
                        self.queries.fetch_add(1, Ordering::Relaxed);
                        let Some(reply) = self.reply.lock().unwrap().clone() else { return };
                        reply
                    }
                    "PING" => "+PONG\r\n".to_owned(),
                    other => format!("-ERR unknown command '{other}'\r\n"),
                };
                if socket.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    pub(super) fn set_reply(&self, reply: impl Into<Option<String>>) {
        *self.reply.lock().unwrap() = reply.into();
    }

    pub(super) fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }
}

fn word(reply: Reply) -> String {
    match reply {
        Reply::Text(text) => String::from_utf8(text).unwrap(),
        other => panic!("expected a string, got {other:?}"),
    }
}

pub(super) fn master(port: u16) -> String {
    format!("*2\r\n$8\r\n10.0.0.1\r\n${}\r\n{port}\r\n", port.to_string().len())
}

/// The slots below `border` belong to one node, the rest to the other.
pub(super) fn halves(border: u16, one: &HostPort, other: &HostPort) -> String {
    let node = |node: &HostPort| format!("*2\r\n${}\r\n{}\r\n:{}\r\n", node.host.len(), node.host, node.port);
    let (one, other, last) = (node(one), node(other), border - 1);
    format!("*2\r\n*3\r\n:0\r\n:{last}\r\n{one}*3\r\n:{border}\r\n:16383\r\n{other}")
}
