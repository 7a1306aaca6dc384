//! Connections of the [`CommandPool`](super::CommandPool) by `deadpool-redis`.

use std::sync::{Arc, Mutex};

use deadpool_redis::{
    Connection, Manager, Pool as Connections, PoolError, Runtime,
    redis::{
        AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
        RedisConnectionInfo, RedisError, TlsCertificates,
    },
};
use futures_util::StreamExt as _;

use super::{
    command_pool::{Connect, Connected, Link, Messages, Pending},
    dialer::TLS_ADVICE,
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

pub(super) struct Deadpool {
    config: Arc<Config>,
    servers: Mutex<Vec<(ServerAddress, Connections)>>,
}

struct Config {
    login: RedisConnectionInfo,
    /// An address that only carries the certificates.
    tls: Option<ConnectionAddr>,
}

impl Deadpool {
    /// Returns every problem with the TLS files.
    pub(super) fn new(pool: &RedisPool) -> Result<Self, Vec<String>> {
        let mut login = RedisConnectionInfo::default().set_db(pool.database.into());
        if let Some(Credentials { user, password }) = &pool.credentials {
            login = login.set_password(&password.0);
            login = user.iter().fold(login, RedisConnectionInfo::set_username);
        }
        let certificates = |settings| {
            certificates(load_tls(settings, &TLS_ADVICE)?, settings.skip_hostname)
                .map_err(|error| vec![format!("certificates for redis: {error}")])
        };
        let tls = pool.tls.as_ref().map(certificates).transpose()?;
        Ok(Self { config: Arc::new(Config { login, tls }), servers: Mutex::default() })
    }

    fn pool(&self, address: &ServerAddress, current: &[ServerAddress]) -> Result<Connections, RedisError> {
        let mut servers = lock(&self.servers);
        if let Some((_, pool)) = servers.iter().find(|(known, _)| known == address) {
            return Ok(pool.clone());
        }
        // Forget former masters, so that they do not accumulate.
        servers.retain(|(known, _)| current.contains(known));
        // The caller has the timeouts.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let manager = Manager::new_with_config(self.info(address)?, config)?;
        let pool = Connections::builder(manager).max_size(CONNECTIONS).runtime(Runtime::Tokio1).build();
        let pool = pool.map_err(|error| RedisError::from(std::io::Error::other(error)))?;
        servers.push((address.clone(), pool.clone()));
        Ok(pool)
    }

    fn info(&self, address: &ServerAddress) -> Result<ConnectionInfo, RedisError> {
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
        Ok(address.into_connection_info()?.set_redis_settings(self.config.login.clone()))
    }
}

impl Connect for Deadpool {
    fn separate(&self) -> Arc<dyn Connect> {
        Arc::new(Self { config: self.config.clone(), servers: Mutex::default() })
    }

    fn connection<'a>(&'a self, to: &'a ServerAddress, current: &'a [ServerAddress]) -> Pending<'a, Link> {
        Box::pin(async move {
            match self.pool(to, current)?.get().await {
                Ok(connection) => Ok(Box::new(connection) as Link),
                Err(PoolError::Backend(error)) => Err(error),
                Err(error) => Err(std::io::Error::other(error).into()),
            }
        })
    }

    fn subscribe<'a>(&'a self, to: &'a ServerAddress, channel: &'a str) -> Pending<'a, Messages> {
        Box::pin(async move {
            let mut messages = Client::open(self.info(to)?)?.get_async_pubsub().await?;
            messages.subscribe(channel).await?;
            let texts =
                messages.into_on_message().map(|message| message.get_payload::<String>().unwrap_or_default());
            Ok(Box::pin(texts) as Messages)
        })
    }
}

impl Connected for Connection {
    fn discard(self: Box<Self>) {
        drop(Self::take(*self));
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
