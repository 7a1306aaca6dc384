//! A socket to a Redis that is ready to be asked: connected, secured, logged in, and alive.
//!
//! A connection dials for itself whenever it has no connection. `login` greets the server; who is to be dialled
//! is the topology's to say. Every failure tells the address, the step, and which variable to look at.

mod login;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub(super) use crate::store::remote::transport::{Transport, host};

use self::login::Login;
use super::{failure::Failure, tls};
use crate::{
    settings::redis::{RedisAddress, RedisPool, RedisServers},
    store::remote::{deadline::after, transport::Connector},
};

/// All that is needed to connect to a server but its address.
#[derive(Clone)]
pub(super) struct Dialer {
    login: Login,
    connector: Connector,
}

/// What is being said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    LogIn,
    Select,
    SetName,
    Ping,
    AskRole,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LogIn => "the log-in (AUTH)",
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::Ping => "PING",
            Self::AskRole => "ROLE",
        })
    }
}

impl Dialer {
    /// Reads certificates, if TLS is spoken.
    ///
    /// # Errors
    /// All that is wrong with their files, each with its path.
    pub(super) fn new(pool: &RedisPool) -> Result<Self, Vec<String>> {
        if let (RedisServers::Single(RedisAddress::Unix(path)), Some(_)) = (&pool.servers, &pool.tls) {
            let path = path.display();
            return Err(vec![format!("redis {path}: a unix socket speaks no TLS; unset REDIS_TLS")]);
        }
        let tls = pool.tls.as_ref().map(tls::load).transpose()?;
        Ok(Self {
            login: Login::new(pool.credentials.clone(), pool.database),
            connector: Connector {
                tls: tls.map(|tls| TlsConnector::from(Arc::new(tls.config))),
                words: &tls::WORDS,
                bound: pool.connect_timeout,
                origin: match pool.servers {
                    RedisServers::Single(_) => "see REDIS_URL (REDIS_PERSECOND_URL)",
                    RedisServers::Sentinel { .. } => "its sentinels tell this address",
                    RedisServers::Cluster { .. } => "the cluster tells this address",
                },
            },
        })
    }

    /// A connection that has answered `PING` and, where a master is needed, called itself one.
    ///
    /// # Errors
    /// Whatever kept it from that; so does a server that takes too long.
    pub(super) async fn dial(&self, to: &RedisAddress, must_be_master: bool) -> Result<Transport, Failure> {
        let dialled = self.attempt(to, must_be_master).await;
        dialled.map_err(|failure| Failure::new(failure.kind, format!("redis {to}: {}", failure.message)))
    }

    async fn attempt(&self, to: &RedisAddress, must_be_master: bool) -> Result<Transport, Failure> {
        let until = after(Instant::now(), self.connector.bound);
        let mut wire = self.connector.connect(to, until).await?;
        let mut step = Step::Ping;
        let said = self.login.perform(&mut wire, &self.connector, must_be_master, &mut step);
        let said = timeout_at(until, said).await;
        said.unwrap_or_else(|_| Err(self.connector.not_greeted(&step)))?;
        Ok(wire)
    }
}
