//! The servers of Redis and the connections to them, as the settings name them.

use std::{fmt, path::PathBuf, time::Duration};

use aws_iam::settings::Iam;
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
    pub credentials: Option<CredentialSource>,
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
        credentials: Option<CredentialSource>,
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
pub enum CredentialSource {
    Fixed(Credentials),
    File(CredentialFile),
    Iam(Box<Iam>),
}

/// A file with one line, `password` or `user:password`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CredentialFile {
    /// The variable that names the file, for errors.
    pub variable: &'static str,
    pub path: PathBuf,
    /// The user if the file names none.
    pub user: Option<String>,
}

impl fmt::Display for CredentialFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.variable, self.path.display())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// The user; `None` is Redis's user `default`.
    pub user: Option<String>,
    pub password: Secret,
}

impl Credentials {
    /// Those of two texts that may be empty.
    pub fn new(user: String, password: String) -> Self {
        Self { user: Some(user).filter(|user| !user.is_empty()), password: Secret(password) }
    }

    pub fn is_empty(&self) -> bool {
        self.user.is_none() && self.password.0.is_empty()
    }

    /// These, with missing parts taken from others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let password = if self.password.0.is_empty() { other.password } else { self.password };
        Self { user: self.user.or(other.user), password }
    }

    /// Parses `password` or `user:password`; both may be empty.
    pub fn parse(text: &str) -> Self {
        let (user, password) = text.split_once(':').unwrap_or(("", text));
        Self::new(user.to_owned(), password.to_owned())
    }
}
