//! The settings of Redis, as the program relies on them.
//!
//! `read` makes them of variables: `place` and `url` say what `REDIS_URL` means, `login` who logs in, and how a URL is
//! shown.

mod login;
mod place;
mod read;
#[cfg(test)]
mod tests;
mod url;

use std::{fmt, time::Duration};

pub use self::place::{RedisType, Socket};
pub(super) use self::{
    login::masked,
    read::{pool_size, read},
};

pub use super::{ClientTls as RedisTls, ServerAddress as RedisAddress};

use super::HostPort;

/// Redis as a store of counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redis {
    /// Where counters are, but those of seconds if they have a Redis of their own.
    pub main: RedisPool,
    /// Where the counters of limits per second are, when they are kept apart.
    pub per_second: Option<RedisPool>,
    /// The service is unhealthy while it has no connection.
    pub unhealthy_without: bool,
    /// How far apart the attempts to reach a Redis are that was never reached.
    pub startup: Startup,
}

/// How long is waited for a Redis that was never reached since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Startup {
    /// The pause after the first attempt.
    pub initial_interval: Duration,
    /// The longest pause.
    pub max_interval: Duration,
    /// After this the service stops; none retries for ever.
    pub give_up_after: Option<Duration>,
}

/// One Redis: a server, or several that act as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisPool {
    /// Where it is.
    pub servers: RedisServers,
    /// Who we are to it.
    pub credentials: Option<Credentials>,
    /// The number of the database.
    pub database: u32,
    /// TLS, if it is spoken.
    pub tls: Option<RedisTls>,
    /// Connections to each server, at most; one at least.
    pub connections: usize,
    /// How long an operation may take, from the question to the answer.
    pub timeout: Duration,
    /// How long connecting may take, with TLS and the log-in.
    pub connect_timeout: Duration,
    /// How long what is to be asked is gathered before it is sent; zero sends at once.
    pub pipeline_window: Duration,
    /// Checks that may wait for one connection; one at least.
    pub max_queued: usize,
}

/// Which servers are one Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedisServers {
    /// One server.
    Single(RedisAddress),
    /// A master that sentinels know.
    Sentinel {
        /// What the sentinels call it.
        master: String,
        /// Where they are; one at least.
        sentinels: Vec<HostPort>,
        /// Who we are to them.
        credentials: Option<Credentials>,
    },
    /// Masters that share the keys.
    Cluster {
        /// Some of them; one at least.
        seeds: Vec<HostPort>,
    },
}

impl fmt::Display for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |servers: &[HostPort]| servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Single(address) => address.fmt(f),
            Self::Sentinel { master, sentinels, .. } => write!(f, "{master},{}", list(sentinels)),
            Self::Cluster { seeds } => f.write_str(&list(seeds)),
        }
    }
}

/// A name and a password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The user; none is the one that Redis calls `default`.
    pub user: Option<String>,
    /// Their password.
    pub password: Secret,
}

/// What must never be printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
