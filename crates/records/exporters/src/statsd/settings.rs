//! The sinks of metrics, as the settings name them.

use std::{fmt, path::PathBuf};

use net::HostPort;
use regex::Regex;

#[derive(Clone, PartialEq, Debug)]
pub struct Sinks {
    pub statsd: Option<Statsd>,
    pub dog: Option<DogStatsd>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statsd {
    pub address: SinkAddress,
    /// False if it is the default; then a refused connection causes no warning.
    pub is_configured: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct DogStatsd {
    pub address: SinkAddress,
    /// Tags that Datadog's clients add.
    pub tags: Tags,
    /// Rules for names; the first match applies.
    pub mogrifiers: Vec<Mogrifier>,
}

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
