//! Addresses of listeners and servers: hosts, ports and unix sockets.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ServerAddress {
    Tcp(HostPort),
    Unix(PathBuf),
}

impl Default for ServerAddress {
    fn default() -> Self {
        Self::Tcp(HostPort::default())
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A host and a port; port 0 stands for any free one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct HostPort {
    /// A name, an IPv4 address, an IPv6 address without brackets, or empty for all addresses.
    pub host: String,
    pub port: u16,
}

impl HostPort {
    /// The addresses to bind, in the order to try them.
    ///
    /// An empty host, `0.0.0.0` and `::` all mean every address of the machine, as in Go: first `::`, whose listener
    /// must accept IPv4 too, then `0.0.0.0` for machines without IPv6. IPv4 addresses of a name come first, as in Go.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if self.is_every_address() {
            let every: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
            return Ok(every.map(|address| SocketAddr::new(address, self.port)).to_vec());
        }
        let found = (&*self.host, self.port).to_socket_addrs();
        let mut found: Vec<_> = found.map_err(|error| self.unresolved(&error))?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        if found.is_empty() { Err(self.unresolved(&"it has no address")) } else { Ok(found) }
    }

    /// The address to connect to: an empty host is this one, as in Go.
    pub fn or_localhost(self) -> Self {
        let host = if self.host.is_empty() { "localhost".to_owned() } else { self.host };
        Self { host, ..self }
    }

    pub fn is_every_address(&self) -> bool {
        self.host.is_empty() || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
    }

    /// True if both cannot be bound at the same time.
    pub fn collides_with(&self, other: &Self) -> bool {
        let every = self.is_every_address() || other.is_every_address();
        self.port != 0 && self.port == other.port && (every || self.host.eq_ignore_ascii_case(&other.host))
    }

    fn unresolved(&self, why: &dyn fmt::Display) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, format!("cannot resolve host {:?}: {why}", self.host))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
