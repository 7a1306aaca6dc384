//! The servers of memcached and the connections to them, as the settings name them.

use std::{fmt, time::Duration};

use net::{ServerAddress, tls::ClientTls};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memcached {
    pub servers: MemcachedServers,
    pub tls: Option<ClientTls>,
    pub timeout: Duration,
    pub connect_timeout: Duration,
    /// Maximum number of checks queued per connection; at least one.
    pub max_queued: usize,
    /// The service is unhealthy while it has no connection to one of the servers.
    pub unhealthy_without: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemcachedServers {
    /// These, in this order; at least one.
    Named(Vec<ServerAddress>),
    Srv {
        /// The name of the record: `_service._protocol.name`.
        name: String,
        /// The interval at which it is resolved again; `None` is never after the first answer.
        refresh: Option<Duration>,
    },
}

impl fmt::Display for MemcachedServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(servers) => {
                f.write_str(&servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
            Self::Srv { name, .. } => f.write_str(name),
        }
    }
}
