//! Connections for overrides, resets and the list of replicas, over the simulated network: a pool as `deadpool-redis` has.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
};

use deadpool_redis::redis::{
    AsyncConnectionConfig, RedisConnectionInfo, RedisError, Value, aio::MultiplexedConnection, cmd,
    parse_redis_value,
};
use futures_util::stream;
use net::{
    ServerAddress,
    edges::{Edges, Transport},
};
use store::redis::{Connect, Connected, Link, Messages, Pending};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The most idle connections of a pool: as many as `deadpool-redis` opens for the service.
const CONNECTIONS: usize = 2;

pub struct Commands {
    edges: Edges,
    idle: Arc<Mutex<Vec<(u16, MultiplexedConnection)>>>,
}

impl Commands {
    pub fn new(edges: &Edges) -> Self {
        Self { edges: edges.clone(), idle: Arc::default() }
    }

    async fn dial(&self, port: u16) -> Result<Transport, RedisError> {
        Ok(self.edges.dial.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?)
    }

    async fn connect(&self, port: u16) -> Result<MultiplexedConnection, RedisError> {
        loop {
            let Some((_, mut idle)) = self.idle.lock().expect("nothing panics with it").pop() else { break };
            if cmd("PING").query_async::<()>(&mut idle).await.is_ok() {
                return Ok(idle);
            }
        }
        let stream = self.dial(port).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let login = RedisConnectionInfo::default();
        let (connection, driver) = MultiplexedConnection::new_with_config(&login, stream, config).await?;
        self.edges.start(driver);
        Ok(connection)
    }
}

fn port(to: &ServerAddress) -> u16 {
    match to {
        ServerAddress::Tcp(address) => address.port,
        ServerAddress::Unix(_) => unreachable!("the simulated servers have ports"),
    }
}

impl Connect for Commands {
    fn separate(&self) -> Arc<dyn Connect> {
        Arc::new(Self::new(&self.edges))
    }

    fn connection<'a>(&'a self, to: &'a ServerAddress, _: &'a [ServerAddress]) -> Pending<'a, Link> {
        Box::pin(async move {
            let port = port(to);
            self.idle.lock().expect("nothing panics with it").retain(|(known, _)| *known == port);
            let connection = Some(self.connect(port).await?);
            Ok(Box::new(Taken { connection, port, idle: self.idle.clone() }) as Link)
        })
    }

    fn subscribe<'a>(&'a self, to: &'a ServerAddress, channel: &'a str) -> Pending<'a, Messages> {
        Box::pin(async move {
            let mut subscribed = Subscribed { stream: self.dial(port(to)).await?, bytes: Vec::new() };
            let subscribe = cmd("SUBSCRIBE").arg(channel).get_packed_command();
            subscribed.stream.write_all(&subscribe).await?;
            subscribed.next().await?;
            let messages = stream::unfold(subscribed, |mut subscribed| async move {
                let text = subscribed.next().await.ok()?;
                Some((text, subscribed))
            });
            Ok(Box::pin(messages) as Messages)
        })
    }
}

struct Subscribed {
    stream: Transport,
    bytes: Vec<u8>,
}

impl Subscribed {
    /// The last word of the next message.
    async fn next(&mut self) -> Result<String, RedisError> {
        loop {
            let whole = whole(&self.bytes);
            if let Some(length) = whole {
                let message: VecDeque<u8> = self.bytes.drain(..length).collect();
                let Value::Array(mut words) = parse_redis_value(&Vec::from(message))? else {
                    return Err(io::Error::other("not a message").into());
                };
                return Ok(match words.pop() {
                    Some(Value::BulkString(text)) => String::from_utf8_lossy(&text).into_owned(),
                    _ => String::new(),
                });
            }
            if self.stream.read_buf(&mut self.bytes).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}

/// The length of the first array of bulk strings and integers, if it is complete.
fn whole(bytes: &[u8]) -> Option<usize> {
    let line = |from: usize| {
        let end = from + bytes.get(from..)?.windows(2).position(|two| two == b"\r\n")?;
        let number: usize = std::str::from_utf8(bytes.get(from + 1..end)?).ok()?.parse().ok()?;
        Some((bytes[from], number, end + 2))
    };
    let (_, words, mut at) = line(0)?;
    for _ in 0..words {
        let (kind, number, next) = line(at)?;
        at = if kind == b'$' { next + number + 2 } else { next };
    }
    (at <= bytes.len()).then_some(at)
}

struct Taken {
    /// `None` once it is discarded.
    connection: Option<MultiplexedConnection>,
    port: u16,
    idle: Arc<Mutex<Vec<(u16, MultiplexedConnection)>>>,
}

impl Deref for Taken {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        self.connection.as_ref().expect("it is discarded by value")
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        self.connection.as_mut().expect("it is discarded by value")
    }
}

impl Connected for Taken {
    fn discard(mut self: Box<Self>) {
        self.connection = None;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().expect("nothing panics with it");
        if let Some(connection) = self.connection.take().filter(|_| idle.len() < CONNECTIONS) {
            idle.push((self.port, connection));
        }
    }
}
