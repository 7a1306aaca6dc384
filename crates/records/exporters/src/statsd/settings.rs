//! What sinks are made of: addresses, tags, and rules for names.

use std::{fmt, path::PathBuf};

use net::HostPort;
use regex::Regex;

/// A rule that turns a statsd name into another name and tags.
#[derive(Clone, Debug)]
pub struct Mogrifier {
    /// Matches the names that the rule applies to.
    pub pattern: Regex,
    pub name: String,
    pub tags: Tags,
}

impl PartialEq for Mogrifier {
    fn eq(&self, other: &Self) -> bool {
        let parts = |rule: &Self| (rule.pattern.to_string(), rule.name.clone(), rule.tags.clone());
        parts(self) == parts(other)
    }
}

pub type Tags = Vec<(String, String)>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SinkAddress {
    Tcp(HostPort),
    Udp(HostPort),
    /// The path of a unix socket, of datagrams or a stream.
    Unix(PathBuf),
}

impl fmt::Display for SinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(HostPort { host, port }) => write!(f, "{host}:{port} (TCP)"),
            Self::Udp(HostPort { host, port }) => write!(f, "{host}:{port} (UDP)"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
