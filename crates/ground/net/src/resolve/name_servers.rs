//! The name servers and search domains of `/etc/resolv.conf`; `lookup` queries them.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

const RESOLV_CONF: &str = "/etc/resolv.conf";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameServers {
    /// Queried in order until one replies.
    pub addresses: Vec<SocketAddr>,
    pub search: Vec<String>,
    /// A name with this many dots is tried without search domains first.
    pub ndots: usize,
    pub timeout: Duration,
    /// The number of rounds over all name servers.
    pub attempts: usize,
}

impl NameServers {
    /// The name servers of the system; without a configuration, that of this host.
    pub fn of_system() -> Self {
        Self::parse(&fs::read_to_string(RESOLV_CONF).unwrap_or_default())
    }

    /// Parses `resolv.conf`; unknown lines are ignored.
    fn parse(text: &str) -> Self {
        let mut servers = Self {
            addresses: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines() {
            let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    servers.addresses.extend(address.map(|address| SocketAddr::new(address, 53)));
                }
                Some("search" | "domain") => servers.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|word| servers.option(word)),
                _ => {}
            }
        }
        if servers.addresses.is_empty() {
            servers.addresses.push(([127, 0, 0, 1], 53).into());
        }
        servers
    }

    fn option(&mut self, word: &str) {
        let Some((name, Ok(number))) =
            word.split_once(':').map(|(name, number)| (name, number.parse::<u32>()))
        else {
            return;
        };
        // The bounds are those of the system's own resolver.
        match name {
            "ndots" => self.ndots = number.min(15) as usize,
            "timeout" => self.timeout = Duration::from_secs(number.clamp(1, 30).into()),
            "attempts" => self.attempts = number.clamp(1, 5) as usize,
            _ => {}
        }
    }

    pub fn names(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let mut names: Vec<_> = self.search.iter().map(|domain| format!("{name}.{domain}")).collect();
        let as_it_is = if name.matches('.').count() >= self.ndots { 0 } else { names.len() };
        names.insert(as_it_is, name.to_owned());
        names
    }
}

#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    let text = &*String::from_utf8_lossy(bytes);
    let servers = NameServers::parse(text);
    assert!(!servers.addresses.is_empty());
    let _ = servers.names(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_resolv_conf() {
        let servers = NameServers::parse(
            "# a comment\nnameserver 10.0.0.10 # the cluster's\nnameserver fd00::10\nnameserver x\n\
             search default.svc.cluster.local svc.cluster.local\noptions ndots:5 timeout:2 attempts:99 rotate\n",
        );
        assert_eq!(servers.addresses, ["10.0.0.10:53".parse().unwrap(), "[fd00::10]:53".parse().unwrap()]);
        assert_eq!((servers.ndots, servers.timeout, servers.attempts), (5, Duration::from_secs(2), 5));
        assert_eq!(
            servers.names("_memcache._tcp.memcached"),
            [
                "_memcache._tcp.memcached.default.svc.cluster.local",
                "_memcache._tcp.memcached.svc.cluster.local",
                "_memcache._tcp.memcached"
            ]
        );
        assert_eq!(servers.names("a.b."), ["a.b."]);
        let usual = NameServers::parse("");
        assert_eq!(usual.addresses, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(usual.names("a.b"), ["a.b"]);
    }
}
