//! A sentinel, or a server of a cluster, that says what a test wants.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::{
    settings::HostPort,
    store::redis::resp::{self, Reply},
};

/// Reports masters. While it has no answer it closes what it is asked on.
#[derive(Clone)]
pub(super) struct Oracle {
    pub(super) address: HostPort,
    answer: Arc<Mutex<Option<String>>>,
    asked: Arc<AtomicUsize>,
}

impl Oracle {
    pub(super) async fn new(password: Option<&'static str>, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = HostPort { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        let oracle = Self { address, answer: Arc::default(), asked: Arc::default() };
        let speaker = oracle.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (speaker, tls) = (speaker.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => speaker.speak(socket, password).await,
                        Some(config) => {
                            let socket = TlsAcceptor::from(config).accept(socket).await.unwrap();
                            speaker.speak(socket, password).await;
                        }
                    }
                });
            }
        });
        oracle
    }

    async fn speak(&self, mut socket: impl AsyncRead + AsyncWrite + Unpin, password: Option<&str>) {
        let (mut unread, mut trusted) = (Vec::new(), password.is_none());
        while let Ok(1..) = socket.read_buf(&mut unread).await {
            while let Ok(Some((Reply::List(words), length))) = resp::read(&unread) {
                unread.drain(..length);
                let words: Vec<_> = words.into_iter().map(word).collect();
                let answer = match &*words[0] {
                    "AUTH" if words.last().map(String::as_str) == password => {
                        trusted = true;
                        "+OK\r\n".to_owned()
                    }
                    "AUTH" => "-WRONGPASS invalid username-password pair\r\n".to_owned(),
                    _ if !trusted => "-NOAUTH Authentication required.\r\n".to_owned(),
                    "SENTINEL" | "CLUSTER" => {
                        self.asked.fetch_add(1, Ordering::Relaxed);
                        let Some(answer) = self.answer.lock().unwrap().clone() else { return };
                        answer
                    }
                    // As sentinels say it to UNWATCH.
                    other => format!("-ERR unknown command '{other}'\r\n"),
                };
                if socket.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    pub(super) fn says(&self, answer: impl Into<Option<String>>) {
        *self.answer.lock().unwrap() = answer.into();
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn word(reply: Reply) -> String {
    match reply {
        Reply::Text(text) => String::from_utf8(text).unwrap(),
        other => panic!("a command of {other:?}"),
    }
}

pub(super) fn master(port: u16) -> String {
    format!("*2\r\n$8\r\n10.0.0.1\r\n${}\r\n{port}\r\n", port.to_string().len())
}

/// All slots below `border` belong to one, the rest to another.
pub(super) fn halves(border: u16, one: &HostPort, other: &HostPort) -> String {
    let node = |node: &HostPort| format!("*2\r\n${}\r\n{}\r\n:{}\r\n", node.host.len(), node.host, node.port);
    let (one, other, last) = (node(one), node(other), border - 1);
    format!("*2\r\n*3\r\n:0\r\n:{last}\r\n{one}*3\r\n:{border}\r\n:16383\r\n{other}")
}
