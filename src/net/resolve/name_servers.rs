//! Whom to ask for the servers behind a name, and by which names, as the system's configuration has it.
//!
//! `lookup` asks them.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Where the system says whom to ask.
const CONFIGURATION: &str = "/etc/resolv.conf";

/// Name servers, and how they are asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameServers {
    /// Asked one after the other until one answers.
    pub addresses: Vec<SocketAddr>,
    /// What is tried behind a name that is not in full.
    pub search: Vec<String>,
    /// A name with so many dots is tried as it is first.
    pub dots: usize,
    /// How long each is waited for.
    pub patience: Duration,
    /// How often all are asked.
    pub attempts: usize,
}

impl NameServers {
    /// Those that the system uses; without a configuration the one of this machine.
    #[must_use]
    pub fn of_system() -> Self {
        Self::read(&fs::read_to_string(CONFIGURATION).unwrap_or_default())
    }

    /// Those of a configuration in the form of `resolv.conf`; what it does not know it passes over.
    fn read(text: &str) -> Self {
        let mut read = Self {
            addresses: Vec::new(),
            search: Vec::new(),
            dots: 1,
            patience: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines() {
            let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    read.addresses.extend(address.map(|address| SocketAddr::new(address, 53)));
                }
                Some("search" | "domain") => read.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|word| read.option(word)),
                _ => {}
            }
        }
        if read.addresses.is_empty() {
            read.addresses.push(([127, 0, 0, 1], 53).into());
        }
        read
    }

    fn option(&mut self, word: &str) {
        let Some((name, Ok(number))) =
            word.split_once(':').map(|(name, number)| (name, number.parse::<u32>()))
        else {
            return;
        };
        // The bounds are those of the system's own resolver.
        match name {
            "ndots" => self.dots = number.min(15) as usize,
            "timeout" => self.patience = Duration::from_secs(number.clamp(1, 30).into()),
            "attempts" => self.attempts = number.clamp(1, 5) as usize,
            _ => {}
        }
    }

    /// The names that are to be tried for one.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let mut names: Vec<_> = self.search.iter().map(|domain| format!("{name}.{domain}")).collect();
        let as_it_is = if name.matches('.').count() >= self.dots { 0 } else { names.len() };
        names.insert(as_it_is, name.to_owned());
        names
    }
}

/// There is always somebody to ask.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(text: &str) {
    let read = NameServers::read(text);
    assert!(!read.addresses.is_empty());
    let _ = read.names(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_configuration_is_read() {
        let read = NameServers::read(
            "# a comment\nnameserver 10.0.0.10 # the cluster's\nnameserver fd00::10\nnameserver x\n\
             search default.svc.cluster.local svc.cluster.local\noptions ndots:5 timeout:2 attempts:99 rotate\n",
        );
        assert_eq!(read.addresses, ["10.0.0.10:53".parse().unwrap(), "[fd00::10]:53".parse().unwrap()]);
        assert_eq!((read.dots, read.patience, read.attempts), (5, Duration::from_secs(2), 5));
        assert_eq!(
            read.names("_memcache._tcp.memcached"),
            [
                "_memcache._tcp.memcached.default.svc.cluster.local",
                "_memcache._tcp.memcached.svc.cluster.local",
                "_memcache._tcp.memcached"
            ]
        );
        assert_eq!(read.names("a.b."), ["a.b."]);
        let usual = NameServers::read("");
        assert_eq!(usual.addresses, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(usual.names("a.b"), ["a.b"]);
    }
}
