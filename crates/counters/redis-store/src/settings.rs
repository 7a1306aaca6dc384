//! The servers of Redis and the connections to them, as the settings name them.

use std::{fmt, time::Duration};

use net::{HostPort, Secret, ServerAddress, tls::ClientTls};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redis {
    /// Counters, except those in `per_second`.
    pub main: RedisPool,
    /// Counters of limits per second, if they have their own Redis.
    pub per_second: Option<RedisPool>,
    /// The service is unhealthy while it has no connection.
    pub unhealthy_without: bool,
    /// Delays between attempts to connect until the first success.
    pub startup: Startup,
}

/// Delays between attempts to connect until the first success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Startup {
    pub initial_interval: Duration,
    pub max_interval: Duration,
    /// The time after which the service stops; `None` retries forever.
    pub give_up_after: Option<Duration>,
}

/// One Redis: a server, or several that act as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisPool {
    pub servers: RedisServers,
    pub credentials: Option<Credentials>,
    pub database: u32,
    pub tls: Option<ClientTls>,
    /// Maximum number of connections to each server; at least one.
    pub connections: usize,
    pub timeout: Duration,
    /// The time limit for connecting, including TLS and authentication.
    pub connect_timeout: Duration,
    /// The time to gather checks before they are sent; zero sends at once.
    pub pipeline_window: Duration,
    /// Maximum number of checks queued per connection; at least one.
    pub max_queued: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedisServers {
    Single(ServerAddress),
    Sentinel {
        master: String,
        /// The sentinels; at least one.
        sentinels: Vec<HostPort>,
        credentials: Option<Credentials>,
    },
    Cluster {
        /// Some of them; at least one.
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

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The user; `None` is Redis's user `default`.
    pub user: Option<String>,
    pub password: Secret,
}
