//! Opens connections to Redis: connect, TLS handshake, and `login`.
//!
//! Every failure names the address, the step and the variable to check.

mod login;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub(super) use crate::store::remote::transport::{Transport, host};

use self::login::Login;
use super::failure::Failure;
use crate::{
    net::tls::Words as Names,
    settings::redis::{RedisAddress, RedisPool, RedisServers},
    store::remote::{
        after,
        transport::{Connector, TlsAdvice, load_tls},
    },
};

/// Variables and advice in errors about TLS; also for the topology's connections, which the `redis` crate opens.
pub(super) static TLS_ADVICE: TlsAdvice = TlsAdvice {
    tls: Names {
        ca: "REDIS_TLS_CACERT",
        certificate: "REDIS_TLS_CLIENT_CERT",
        key: "REDIS_TLS_CLIENT_KEY",
        other_host: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true accepts a certificate for another host",
        plain_text: "if the server does not use TLS, unset REDIS_TLS (REDIS_PERSECOND_TLS) and use redis:// instead of \
                     rediss://",
    },
    use_tls: "if the server uses TLS, set REDIS_TLS=true (REDIS_PERSECOND_TLS)",
};

/// Opens connections.
#[derive(Clone)]
pub(super) struct Dialer {
    login: Login,
    connector: Connector,
}

/// The command in progress, for failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    LogIn,
    Select,
    SetName,
    Ping,
    Role,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LogIn => "AUTH",
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::Ping => "PING",
            Self::Role => "ROLE",
        })
    }
}

impl Dialer {
    /// Loads certificates if TLS is enabled.
    ///
    /// # Errors
    /// Every problem with the files.
    pub(super) fn new(pool: &RedisPool) -> Result<Self, Vec<String>> {
        if let (RedisServers::Single(RedisAddress::Unix(path)), Some(_)) = (&pool.servers, &pool.tls) {
            let path = path.display();
            return Err(vec![format!("redis {path}: unix sockets do not support TLS; unset REDIS_TLS")]);
        }
        let tls = pool.tls.as_ref().map(|tls| load_tls(tls, &TLS_ADVICE)).transpose()?;
        Ok(Self {
            login: Login::new(pool.credentials.clone(), pool.database),
            connector: Connector {
                tls: tls.map(|tls| TlsConnector::from(Arc::new(tls.config))),
                advice: &TLS_ADVICE,
                timeout: pool.connect_timeout,
                origin: match pool.servers {
                    RedisServers::Single(_) => "see REDIS_URL (REDIS_PERSECOND_URL)",
                    RedisServers::Sentinel { .. } => "the address comes from its sentinels",
                    RedisServers::Cluster { .. } => "the address comes from the cluster",
                },
            },
        })
    }

    /// Opens a connection to a server that answers `PING` and, if required, is a master.
    ///
    /// # Errors
    /// When a step fails or takes too long.
    pub(super) async fn dial(&self, to: &RedisAddress, must_be_master: bool) -> Result<Transport, Failure> {
        let dialled = self.attempt(to, must_be_master).await;
        dialled.map_err(|failure| Failure::new(failure.kind, format!("redis {to}: {}", failure.message)))
    }

    async fn attempt(&self, to: &RedisAddress, must_be_master: bool) -> Result<Transport, Failure> {
        let until = after(Instant::now(), self.connector.timeout);
        let mut transport = self.connector.connect(to, until).await?;
        let mut step = Step::Ping;
        let login = self.login.perform(&mut transport, &self.connector, must_be_master, &mut step);
        let login = timeout_at(until, login).await;
        login.unwrap_or_else(|_| Err(self.connector.handshake_timed_out(&step)))?;
        Ok(transport)
    }
}
