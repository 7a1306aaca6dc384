//! Servers that may all be asked the same: one after the other until one answers.
//!
//! Each is asked through deadpool-redis over one connection that is kept: recycling it would say `UNWATCH`,
//! which sentinels do not know. The beginning and the end of a server's silence are logged, once each.

use std::{mem, time::Duration};

use deadpool_redis::{
    Connection, Manager, Pool, PoolError,
    redis::{
        AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo,
        RedisConnectionInfo, RedisError, TlsCertificates, Value,
    },
};
use tracing::{info, warn};

use super::super::{tls, wire};
use crate::{
    net::tls::Client as Tls,
    settings::{HostPort, redis::Credentials},
};

/// All that is needed to ask a server but its address.
pub(super) struct Connector {
    /// What stands before the address in a log line.
    role: &'static str,
    /// Where the credentials were set.
    variable: &'static str,
    login: RedisConnectionInfo,
    /// An address, of which only the certificates count.
    tls: Option<ConnectionAddr>,
    /// How long connecting may take, and an answer.
    bound: Duration,
}

impl Connector {
    /// # Errors
    /// When the `redis` crate does not take the certificates.
    pub(super) fn new(
        role: &'static str,
        credentials: Option<&Credentials>,
        variable: &'static str,
        tls: Option<(Tls, bool)>,
        bound: Duration,
    ) -> Result<Self, String> {
        let mut login = RedisConnectionInfo::default();
        if let Some(Credentials { user, password }) = credentials {
            login = login.set_password(&password.0);
            login = user.iter().fold(login, RedisConnectionInfo::set_username);
        }
        let tls = tls.map(|(tls, skip_hostname)| certificates(tls, skip_hostname)).transpose();
        let tls = tls.map_err(|error| format!("the certificates for redis: {error}"))?;
        Ok(Self { role, variable, login, tls, bound })
    }

    fn pool(&self, address: &HostPort) -> Result<Pool, String> {
        let (host, port) = (wire::host(address).to_owned(), address.port);
        let address = match self.tls.clone() {
            Some(ConnectionAddr::TcpTls { insecure, tls_params, .. }) => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let info = address.into_connection_info().map_err(|error| error.to_string())?;
        let bounds = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.bound))
            .set_response_timeout(Some(self.bound));
        let manager = Manager::new_with_config(info.set_redis_settings(self.login.clone()), bounds)
            .map_err(|error| error.to_string())?;
        Pool::builder(manager).max_size(1).build().map_err(|error| error.to_string())
    }

    /// What went wrong, and what to do about it. No answer of a server repeats the password: what it says
    /// to AUTH is not passed on by the `redis` crate.
    fn explain(&self, error: &RedisError) -> String {
        let text = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let (bound, variable, has_tls) = (self.bound, self.variable, self.tls.is_some());
        match error.code() {
            _ if error.is_timeout() && has_tls => format!("no answer within {bound:?}; {}", tls::WITHOUT),
            _ if error.is_timeout() => {
                format!("no answer within {bound:?}; is it frozen, or the way barred?")
            }
            _ if error.is_connection_refusal() => "nobody listens there (connection refused)".to_owned(),
            _ if error.is_io_error() && has_tls => format!("{text}; see REDIS_TLS_CACERT and its like"),
            _ if error.is_connection_dropped() => format!("{text}; {}", tls::WITH),
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                format!("the log-in was refused; see {variable}")
            }
            Some("NOAUTH" | "WRONGPASS" | "NOPERM") => format!("{text}; see {variable}"),
            Some(_) if text.contains("cluster support disabled") => {
                format!("{text}; is REDIS_TYPE=SINGLE meant?")
            }
            Some(_) if text.contains("unknown command") && !self.role.is_empty() => {
                "it is no sentinel; REDIS_URL takes a master's name, and then sentinels".to_owned()
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

/// The servers, in the order in which they were named.
pub(super) struct NodeList {
    connector: Connector,
    peers: Vec<Peer>,
    /// The place of the one that answered last.
    last: usize,
}

struct Peer {
    address: HostPort,
    pool: Option<Pool>,
    held: Option<Connection>,
    fails: bool,
}

impl NodeList {
    pub(super) fn new(connector: Connector, addresses: &[HostPort]) -> Self {
        let mut circle = Self { connector, peers: Vec::new(), last: 0 };
        circle.meet(addresses.iter());
        circle
    }

    /// These are the servers from now on; those that were known stay known.
    pub(super) fn meet<'a>(&mut self, addresses: impl Iterator<Item = &'a HostPort>) {
        let mut known = mem::take(&mut self.peers);
        let last = known.get(self.last).map(|peer| peer.address.clone());
        for address in addresses {
            if self.peers.iter().any(|peer| peer.address == *address) {
                continue;
            }
            let place = known.iter().position(|peer| peer.address == *address);
            self.peers.push(match place {
                Some(place) => known.swap_remove(place),
                None => Peer { address: address.clone(), pool: None, held: None, fails: false },
            });
        }
        self.last = self.peers.iter().position(|peer| Some(&peer.address) == last.as_ref()).unwrap_or(0);
    }

    /// The answer of the first that gives one which `read` understands: of the one that answered last, or
    /// when there is doubt about it, of the next. Those that failed come last.
    pub(super) async fn ask<T>(
        &mut self,
        question: &Cmd,
        read: impl Fn(&Value, &HostPort) -> Result<T, String>,
        doubted: bool,
    ) -> Option<T> {
        let count = self.peers.len();
        let first = self.last.saturating_add(doubted.into());
        let mut order: Vec<_> = (0..count).cycle().skip(first).take(count).collect();
        order.sort_by_key(|place| self.peers.get(*place).is_some_and(|peer| peer.fails));
        for place in order {
            let Some(peer) = self.peers.get_mut(place) else { continue };
            let answer = peer.ask(question, &self.connector).await;
            let answer = answer.and_then(|answer| read(&answer, &peer.address));
            peer.note(self.connector.role, answer.as_ref().err());
            if let Ok(answer) = answer {
                self.last = place;
                return Some(answer);
            }
        }
        None
    }
}

impl Peer {
    async fn ask(&mut self, question: &Cmd, connector: &Connector) -> Result<Value, String> {
        if let Some(held) = self.held.take() {
            match self.ask_over(held, question).await {
                // It may have been closed long ago, which tells nothing about now.
                Err(error) if error.is_connection_dropped() => {}
                answer => return answer.map_err(|error| connector.explain(&error)),
            }
        }
        let fresh = self.connect(connector).await?;
        self.ask_over(fresh, question).await.map_err(|error| connector.explain(&error))
    }

    /// Asks over this connection, and keeps it if an answer comes.
    async fn ask_over(&mut self, mut connection: Connection, question: &Cmd) -> Result<Value, RedisError> {
        let answer = question.query_async(&mut *connection).await;
        if answer.is_ok() {
            self.held = Some(connection);
        } else {
            drop(Connection::take(connection));
        }
        answer
    }

    async fn connect(&mut self, connector: &Connector) -> Result<Connection, String> {
        let pool = match self.pool.take() {
            Some(pool) => pool,
            None => connector.pool(&self.address)?,
        };
        self.pool.insert(pool).get().await.map_err(|error| match error {
            PoolError::Backend(error) => connector.explain(&error),
            error => error.to_string(),
        })
    }

    /// Logs that it began to fail, or ceased to.
    fn note(&mut self, role: &str, failure: Option<&String>) {
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
            ("", io(io::ErrorKind::TimedOut), "no answer within 1s"),
            ("", io(io::ErrorKind::ConnectionRefused), "nobody listens there"),
            ("", io(io::ErrorKind::ConnectionReset), "REDIS_TLS=true"),
            ("", (ErrorKind::AuthenticationFailed, "x").into(), "see REDIS_AUTH"),
            (
                "",
                make_extension_error("NOAUTH".to_owned(), Some("Log in.".to_owned())),
                "NOAUTH Log in.; see REDIS_AUTH",
            ),
            ("", refused("This instance has cluster support disabled"), "REDIS_TYPE=SINGLE"),
            ("sentinel ", refused("unknown command 'SENTINEL'"), "it is no sentinel"),
            ("", refused("odd"), "ERR odd"),
        ] {
            let told = connector(role).explain(&error);
            assert!(told.contains(word), "{told}");
        }
    }

    #[test]
    fn a_circle_remembers_whom_it_keeps() {
        let [one, two, three] = ["a", "b", "c"].map(|host| HostPort { host: host.to_owned(), port: 1 });
        let mut circle = NodeList::new(connector(""), &[one.clone(), two.clone(), two.clone()]);
        assert_eq!(circle.peers.len(), 2, "each once");
        circle.last = 1;
        circle.peers[1].fails = true;
        circle.meet([&three, &two].into_iter());
        let now: Vec<_> = circle.peers.iter().map(|peer| (&*peer.address.host, peer.fails)).collect();
        assert_eq!((now, circle.last), (vec![("c", false), ("b", true)], 1));
        circle.meet([&one].into_iter());
        assert_eq!(circle.last, 0);
    }
}
