//! Commands to Redis other than counting: overrides, resets of counters, and the list of replicas.
//!
//! They use `deadpool-redis`, with connections separate from those that count, so that a large or slow one delays no
//! request. The connections belong to the runtime that opens them: each thread has its own [`CommandPool`].
#![expect(clippy::disallowed_methods, reason = "deadpool-redis has tokio's timers and its own connections")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use deadpool_redis::{
    Connection, Manager, Pool as Connections, PoolError, Runtime,
    redis::{
        AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
        FromRedisValue, IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, ScriptInvocation,
        TlsCertificates, aio::PubSub,
    },
};
use tokio::time::timeout;

use super::{
    dialer::{REDIS_AUTH, TLS_ADVICE},
    topology::Topology,
};
use crate::{
    redis::settings::Credentials,
    redis::settings::RedisPool,
    remote::transport::{host, load_tls},
};
use containment::mutex::lock;
use net::{ServerAddress, tls::Client as Tls};

/// Connections per server. Each runs one command at a time, so with two a slow command does not block all others.
const CONNECTIONS: usize = 2;

/// The timeout of connecting and of a command. Some commands handle thousands of keys.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connections to one Redis for everything but counting.
pub struct CommandPool {
    config: Arc<Config>,
    servers: Mutex<Vec<(ServerAddress, Connections)>>,
}

struct Config {
    topology: Topology,
    login: RedisConnectionInfo,
    /// An address that only carries the certificates.
    tls: Option<ConnectionAddr>,
    prefix: Box<str>,
}

impl CommandPool {
    /// Returns every problem with the TLS files.
    pub(super) fn new(pool: &RedisPool, topology: &Topology, prefix: &str) -> Result<Self, Vec<String>> {
        let mut login = RedisConnectionInfo::default().set_db(pool.database.into());
        if let Some(Credentials { user, password }) = &pool.credentials {
            login = login.set_password(&password.0);
            login = user.iter().fold(login, RedisConnectionInfo::set_username);
        }
        let certificates = |settings| {
            certificates(load_tls(settings, &TLS_ADVICE)?, settings.skip_hostname)
                .map_err(|error| vec![format!("certificates for redis: {error}")])
        };
        let (topology, prefix) = (topology.clone(), prefix.into());
        let tls = pool.tls.as_ref().map(certificates).transpose()?;
        Ok(Self { config: Arc::new(Config { topology, login, tls, prefix }), servers: Mutex::default() })
    }

    /// The same with connections of its own, for another thread.
    pub(super) fn separate(&self) -> Self {
        Self { config: self.config.clone(), servers: Mutex::default() }
    }

    /// The name of a key that is not a counter. All of them are on one server of a cluster.
    pub fn key(&self, name: &str) -> String {
        format!("{}{{tollgate}}:{name}", self.config.prefix)
    }

    /// Runs a command on the server that owns `key`.
    ///
    /// # Errors
    /// When the server cannot be reached or rejects the command: the address, the cause and advice.
    pub async fn command<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, String> {
        let (address, mut connection) = self.connection(key).await?;
        let result = command.query_async(&mut *connection).await;
        self.finish(&address, connection, result)
    }

    /// Runs commands in one pipeline on the server that owns `key`.
    pub async fn pipeline<T: FromRedisValue>(&self, key: &str, commands: &Pipeline) -> Result<T, String> {
        let (address, mut connection) = self.connection(key).await?;
        let result = commands.query_async(&mut *connection).await;
        self.finish(&address, connection, result)
    }

    /// Runs a script on the server that owns `key`.
    pub async fn script<T: FromRedisValue>(
        &self,
        key: &str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, String> {
        let (address, mut connection) = self.connection(key).await?;
        let result = script.invoke_async(&mut *connection).await;
        self.finish(&address, connection, result)
    }

    /// Subscribes to a channel, on the server that owns a key of this name.
    pub async fn subscribe(&self, channel: &str) -> Result<PubSub, String> {
        let address = self.owner(channel)?;
        let client = Client::open(self.info(&address)?).map_err(|error| error.to_string())?;
        let subscribed = timeout(TIMEOUT, async {
            let mut messages = client.get_async_pubsub().await?;
            messages.subscribe(channel).await?;
            Ok(messages)
        });
        match subscribed.await {
            Ok(Ok(messages)) => Ok(messages),
            Ok(Err(error)) => Err(self.explain(&address, &error)),
            Err(_) => Err(format!("redis {address}: no reply within {TIMEOUT:?}")),
        }
    }

    async fn connection(&self, key: &str) -> Result<(ServerAddress, Connection), String> {
        let address = self.owner(key)?;
        let pool = self.pool(&address)?;
        match timeout(TIMEOUT, pool.get()).await {
            Ok(Ok(connection)) => Ok((address, connection)),
            Ok(Err(PoolError::Backend(error))) => {
                self.config.topology.request_refresh();
                Err(self.explain(&address, &error))
            }
            Ok(Err(error)) => Err(format!("redis {address}: {error}")),
            Err(_) => Err(format!("redis {address}: no connection within {TIMEOUT:?}")),
        }
    }

    /// The result of a command. A broken connection is not reused.
    fn finish<T>(
        &self,
        address: &ServerAddress,
        connection: Connection,
        result: Result<T, RedisError>,
    ) -> Result<T, String> {
        result.map_err(|error| {
            if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() {
                drop(Connection::take(connection));
            }
            // A master may have become a replica, and slots may have moved.
            self.config.topology.request_refresh();
            self.explain(address, &error)
        })
    }

    /// The error with advice. It cannot contain the password: the `redis` crate does not pass on the reply to AUTH.
    fn explain(&self, address: &ServerAddress, error: &RedisError) -> String {
        let text = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let has_tls = self.config.tls.is_some();
        let late = format!("no reply within {TIMEOUT:?}");
        let text = match error.code() {
            _ if error.is_timeout() && has_tls => format!("{late}; {}", TLS_ADVICE.tls.plain_text),
            _ if error.is_timeout() => format!("{late}; check the server and the network"),
            _ if error.is_connection_refusal() => "connection refused".to_owned(),
            _ if error.is_io_error() && has_tls => {
                format!("{text}; see REDIS_TLS_CACERT and the other REDIS_TLS variables")
            }
            _ if error.is_connection_dropped() => format!("{text}; {}", TLS_ADVICE.use_tls),
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                format!("authentication failed; see {REDIS_AUTH}")
            }
            Some("NOAUTH" | "WRONGPASS" | "NOPERM") => format!("{text}; see {REDIS_AUTH}"),
            _ => text,
        };
        format!("redis {address}: {text}")
    }

    fn owner(&self, key: &str) -> Result<ServerAddress, String> {
        let servers = self.config.topology.servers();
        let owner = servers.owner(key.as_bytes()).and_then(|owner| servers.masters.get(owner));
        owner.cloned().ok_or_else(|| {
            self.config.topology.request_refresh();
            "redis: no known master owns the key".to_owned()
        })
    }

    fn pool(&self, address: &ServerAddress) -> Result<Connections, String> {
        let mut servers = lock(&self.servers);
        if let Some((_, pool)) = servers.iter().find(|(known, _)| known == address) {
            return Ok(pool.clone());
        }
        // Forget former masters, so that they do not accumulate.
        let current = self.config.topology.servers();
        servers.retain(|(known, _)| current.masters.contains(known));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let manager = Manager::new_with_config(self.info(address)?, config);
        let manager = manager.map_err(|error| error.to_string())?;
        let pool = Connections::builder(manager).max_size(CONNECTIONS).runtime(Runtime::Tokio1).build();
        let pool = pool.map_err(|error| error.to_string())?;
        servers.push((address.clone(), pool.clone()));
        Ok(pool)
    }

    fn info(&self, address: &ServerAddress) -> Result<ConnectionInfo, String> {
        let address = match address {
            ServerAddress::Unix(path) => ConnectionAddr::Unix(path.clone()),
            ServerAddress::Tcp(address) => {
                let (host, port) = (host(address).to_owned(), address.port);
                match self.config.tls.clone() {
                    Some(ConnectionAddr::TcpTls { insecure, tls_params, .. }) => {
                        ConnectionAddr::TcpTls { host, port, insecure, tls_params }
                    }
                    _ => ConnectionAddr::Tcp(host, port),
                }
            }
        };
        let info = address.into_connection_info().map_err(|error| error.to_string())?;
        Ok(info.set_redis_settings(self.config.login.clone()))
    }
}

fn certificates(tls: Tls, skip_hostname: bool) -> Result<ConnectionAddr, RedisError> {
    let certificates = TlsCertificates {
        client_tls: tls.identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
        root_cert: tls.ca,
    };
    let address = ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    let mut address = Client::build_with_tls(address, certificates)?.get_connection_info().addr().clone();
    address.set_danger_accept_invalid_hostnames(skip_hostname);
    Ok(address)
}

#[cfg(test)]
mod tests {
    use std::io;

    use deadpool_redis::redis::{ServerErrorKind, make_extension_error};

    use super::*;
    use crate::redis::settings::RedisServers;

    #[test]
    fn failures_contain_advice() {
        let address = ServerAddress::Unix("/run/redis.sock".into());
        let pool = RedisPool {
            servers: RedisServers::Single(address.clone()),
            credentials: None,
            database: 0,
            tls: None,
            connections: 1,
            timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
            pipeline_window: Duration::ZERO,
            max_queued: 1,
        };
        let topology =
            Topology::new(&pool, &net::edges::Edges::system()).map_err(|errors| errors.join("\n")).unwrap();
        let commands = CommandPool::new(&pool, &topology, "").map_err(|errors| errors.join("\n")).unwrap();
        let rejected =
            |text: &str| RedisError::from((ServerErrorKind::ResponseError.into(), "x", text.to_owned()));
        let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        for (error, word) in [
            (io(io::ErrorKind::TimedOut), "no reply within 5s"),
            (io(io::ErrorKind::ConnectionRefused), "connection refused"),
            (io(io::ErrorKind::ConnectionReset), "REDIS_TLS=true"),
            ((ErrorKind::AuthenticationFailed, "x").into(), "see REDIS_AUTH"),
            (
                make_extension_error("NOAUTH".to_owned(), Some("Log in.".to_owned())),
                "NOAUTH Log in.; see REDIS_AUTH",
            ),
            (rejected("odd"), "ERR odd"),
        ] {
            let error = commands.explain(&address, &error);
            assert!(error.starts_with("redis /run/redis.sock: ") && error.contains(word), "{error}");
        }
    }
}
