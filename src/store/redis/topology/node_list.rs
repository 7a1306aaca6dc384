//! Nodes that can answer the same query: they are queried in turn until one replies.
//!
//! Each is queried through deadpool-redis over one kept connection: recycling it would send `UNWATCH`, which sentinels
//! do not know. When a node starts to fail and when it recovers is logged once.

use std::{mem, time::Duration};

use deadpool_redis::{
    Connection, Manager, Pool, PoolError, Runtime,
    redis::{
        AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
        IntoConnectionInfo, RedisConnectionInfo, RedisError, TlsCertificates, Value,
    },
};
use tracing::{info, warn};

use super::super::wire::{self, TLS_ADVICE};
use crate::{
    net::tls::Client as Tls,
    settings::{
        HostPort,
        redis::{Credentials, RedisAddress},
    },
};

/// Connects to nodes.
pub(in crate::store::redis) struct Connector {
    /// Precedes the address in log lines.
    role: &'static str,
    /// The variable of the credentials.
    variable: &'static str,
    login: RedisConnectionInfo,
    /// An address that only carries the certificates.
    tls: Option<ConnectionAddr>,
    /// The timeout of connecting and of a reply.
    timeout: Duration,
}

impl Connector {
    /// # Errors
    /// When the `redis` crate refuses the certificates.
    pub(super) fn new(
        role: &'static str,
        credentials: Option<&Credentials>,
        variable: &'static str,
        tls: Option<(Tls, bool)>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let mut login = RedisConnectionInfo::default();
        if let Some(Credentials { user, password }) = credentials {
            login = login.set_password(&password.0);
            login = user.iter().fold(login, RedisConnectionInfo::set_username);
        }
        let tls = tls.map(|(tls, skip_hostname)| certificates(tls, skip_hostname)).transpose();
        let tls = tls.map_err(|error| format!("certificates for redis: {error}"))?;
        Ok(Self { role, variable, login, tls, timeout })
    }

    /// Connections to a server, of which at most so many are open.
    pub(in crate::store::redis) fn pool(
        &self,
        address: &RedisAddress,
        database: u32,
        size: usize,
    ) -> Result<Pool, String> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let manager = Manager::new_with_config(self.info(address, database)?, config)
            .map_err(|error| error.to_string())?;
        Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| error.to_string())
    }

    /// A client of a server, for connections that are not in a pool.
    pub(in crate::store::redis) fn client(
        &self,
        address: &RedisAddress,
        database: u32,
    ) -> Result<Client, String> {
        Client::open(self.info(address, database)?).map_err(|error| error.to_string())
    }

    fn info(&self, address: &RedisAddress, database: u32) -> Result<ConnectionInfo, String> {
        let address = match address {
            RedisAddress::Unix(path) => ConnectionAddr::Unix(path.clone()),
            RedisAddress::Tcp(address) => {
                let (host, port) = (wire::host(address).to_owned(), address.port);
                match self.tls.clone() {
                    Some(ConnectionAddr::TcpTls { insecure, tls_params, .. }) => {
                        ConnectionAddr::TcpTls { host, port, insecure, tls_params }
                    }
                    _ => ConnectionAddr::Tcp(host, port),
                }
            }
        };
        let info = address.into_connection_info().map_err(|error| error.to_string())?;
        Ok(info.set_redis_settings(self.login.clone().set_db(database.into())))
    }

    /// The error with advice. It cannot contain the password: the `redis` crate does not pass on the reply to AUTH.
    pub(in crate::store::redis) fn explain(&self, error: &RedisError) -> String {
        let text = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let (timeout, variable, has_tls) = (self.timeout, self.variable, self.tls.is_some());
        match error.code() {
            _ if error.is_timeout() && has_tls => {
                format!("no reply within {timeout:?}; {}", TLS_ADVICE.tls.plain_text)
            }
            _ if error.is_timeout() => {
                format!("no reply within {timeout:?}; check the node and the network")
            }
            _ if error.is_connection_refusal() => "connection refused".to_owned(),
            _ if error.is_io_error() && has_tls => {
                format!("{text}; see REDIS_TLS_CACERT and the other REDIS_TLS variables")
            }
            _ if error.is_connection_dropped() => format!("{text}; {}", TLS_ADVICE.use_tls),
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                format!("authentication failed; see {variable}")
            }
            Some("NOAUTH" | "WRONGPASS" | "NOPERM") => format!("{text}; see {variable}"),
            Some(_) if text.contains("cluster support disabled") => {
                format!("{text}; did you mean REDIS_TYPE=SINGLE?")
            }
            Some(_) if text.contains("unknown command") && !self.role.is_empty() => {
                "not a sentinel; REDIS_URL expects a master's name, then sentinels".to_owned()
            }
            _ => text,
        }
    }
}

/// An address with the certificates.
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

/// The nodes, in their configured order.
pub(super) struct NodeList {
    connector: Connector,
    nodes: Vec<Node>,
    /// The index of the node that replied last.
    last: usize,
}

struct Node {
    address: HostPort,
    pool: Option<Pool>,
    connection: Option<Connection>,
    fails: bool,
}

impl NodeList {
    pub(super) fn new(connector: Connector, addresses: &[HostPort]) -> Self {
        let mut list = Self { connector, nodes: Vec::new(), last: 0 };
        list.set(addresses.iter());
        list
    }

    /// Replaces the nodes; known ones keep their connections.
    pub(super) fn set<'a>(&mut self, addresses: impl Iterator<Item = &'a HostPort>) {
        let mut known = mem::take(&mut self.nodes);
        let last = known.get(self.last).map(|node| node.address.clone());
        for address in addresses {
            if self.nodes.iter().any(|node| node.address == *address) {
                continue;
            }
            let index = known.iter().position(|node| node.address == *address);
            self.nodes.push(match index {
                Some(index) => known.swap_remove(index),
                None => Node { address: address.clone(), pool: None, connection: None, fails: false },
            });
        }
        self.last = self.nodes.iter().position(|node| Some(&node.address) == last.as_ref()).unwrap_or(0);
    }

    /// The first reply that `read` accepts. Starts with the node that replied last, or for a refresh with the next one.
    /// Nodes that failed come last.
    pub(super) async fn query<T>(
        &mut self,
        command: &Cmd,
        read: impl Fn(&Value, &HostPort) -> Result<T, String>,
        is_refresh: bool,
    ) -> Option<T> {
        let count = self.nodes.len();
        let first = self.last.saturating_add(is_refresh.into());
        let mut order: Vec<_> = (0..count).cycle().skip(first).take(count).collect();
        order.sort_by_key(|index| self.nodes.get(*index).is_some_and(|node| node.fails));
        for index in order {
            let Some(node) = self.nodes.get_mut(index) else { continue };
            let reply = node.query(command, &self.connector).await;
            let result = reply.and_then(|reply| read(&reply, &node.address));
            node.log(self.connector.role, result.as_ref().err());
            if let Ok(result) = result {
                self.last = index;
                return Some(result);
            }
        }
        None
    }
}

impl Node {
    async fn query(&mut self, command: &Cmd, connector: &Connector) -> Result<Value, String> {
        if let Some(kept) = self.connection.take() {
            match self.query_over(kept, command).await {
                // It may have been closed long ago.
                Err(error) if error.is_connection_dropped() => {}
                reply => return reply.map_err(|error| connector.explain(&error)),
            }
        }
        let fresh = self.connect(connector).await?;
        self.query_over(fresh, command).await.map_err(|error| connector.explain(&error))
    }

    /// Queries over this connection, and keeps it if a reply comes.
    async fn query_over(&mut self, mut connection: Connection, command: &Cmd) -> Result<Value, RedisError> {
        let reply = command.query_async(&mut *connection).await;
        if reply.is_ok() {
            self.connection = Some(connection);
        } else {
            drop(Connection::take(connection));
        }
        reply
    }

    async fn connect(&mut self, connector: &Connector) -> Result<Connection, String> {
        let pool = match self.pool.take() {
            Some(pool) => pool,
            None => connector.pool(&RedisAddress::Tcp(self.address.clone()), 0, 1)?,
        };
        self.pool.insert(pool).get().await.map_err(|error| match error {
            PoolError::Backend(error) => connector.explain(&error),
            error => error.to_string(),
        })
    }

    /// Logs the start and the end of failures.
    fn log(&mut self, role: &str, failure: Option<&String>) {
        let address = &self.address;
        match (self.fails, failure) {
            (false, Some(why)) => warn!("redis {role}{address}: {why}"),
            (true, None) => info!("redis {role}{address}: recovered"),
            (false, None) | (true, Some(_)) => {}
        }
        self.fails = failure.is_some();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use deadpool_redis::redis::{ServerErrorKind, make_extension_error};

    use super::*;

    fn connector(role: &'static str) -> Connector {
        Connector::new(role, None, "REDIS_AUTH", None, Duration::from_secs(1)).unwrap()
    }

    #[test]
    fn failures_say_what_to_do() {
        let refused =
            |text: &str| RedisError::from((ServerErrorKind::ResponseError.into(), "x", text.to_owned()));
        let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        for (role, error, word) in [
            ("", io(io::ErrorKind::TimedOut), "no reply within 1s"),
            ("", io(io::ErrorKind::ConnectionRefused), "connection refused"),
            ("", io(io::ErrorKind::ConnectionReset), "REDIS_TLS=true"),
            ("", (ErrorKind::AuthenticationFailed, "x").into(), "see REDIS_AUTH"),
            (
                "",
                make_extension_error("NOAUTH".to_owned(), Some("Log in.".to_owned())),
                "NOAUTH Log in.; see REDIS_AUTH",
            ),
            ("", refused("This instance has cluster support disabled"), "REDIS_TYPE=SINGLE"),
            ("sentinel ", refused("unknown command 'SENTINEL'"), "not a sentinel"),
            ("", refused("odd"), "ERR odd"),
        ] {
            let error = connector(role).explain(&error);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_nodes_remembers_whom_it_keeps() {
        let [one, two, three] = ["a", "b", "c"].map(|host| HostPort { host: host.to_owned(), port: 1 });
        let mut nodes = NodeList::new(connector(""), &[one.clone(), two.clone(), two.clone()]);
        assert_eq!(nodes.nodes.len(), 2, "each once");
        nodes.last = 1;
        nodes.nodes[1].fails = true;
        nodes.set([&three, &two].into_iter());
        let now: Vec<_> = nodes.nodes.iter().map(|node| (&*node.address.host, node.fails)).collect();
        assert_eq!((now, nodes.last), (vec![("c", false), ("b", true)], 1));
        nodes.set([&one].into_iter());
        assert_eq!(nodes.last, 0);
    }
}
