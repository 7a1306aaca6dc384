//! The settings as the program relies on them: the groups of [`vars`](super::vars) that are used as they are read,
//! and what is made of the others.

use std::path::PathBuf;

pub use super::memcached::{Memcached, MemcachedServers};
pub use super::redis::{Credentials, Redis, RedisAddress, RedisPool, RedisServers, RedisTls, Secret};
pub use super::sinks::Sinks;
pub use super::vars::{Answers, Http, Log, Overrides, Rules, Server, Store};
pub use super::xds::{Xds, XdsBackoff, XdsTls};
use super::{
    Admin, Decisions, GrpcTls, HostPort,
    parse::{InvalidValue, Value, choice},
    spans::Spans,
};
use crate::rules::{CountingMode, OnStoreFailure};

/// All settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The gRPC server.
    pub server: Server,
    /// TLS on its port, if any.
    pub grpc_tls: Option<GrpcTls>,
    /// The HTTP ports.
    pub http: Http,
    /// The admin API, where it is on.
    pub admin: Option<Admin>,
    /// What is kept and shown of decisions.
    pub decisions: Decisions,
    /// Where rules come from and how they are read.
    pub rules: Rules,
    /// The control plane, where rules come from one instead of files.
    pub control_plane: Option<Box<Xds>>,
    /// How hits are counted.
    pub store: Store,
    /// Overrides, and the replicas that share them.
    pub overrides: Overrides,
    /// Where hits are counted.
    pub backend: Backend,
    /// Neither `BACKEND_TYPE` nor a variable of Redis is set.
    pub is_backend_default: bool,
    /// What responses contain.
    pub answers: Answers,
    /// Metrics and where they are sent.
    pub stats: StatsSettings,
    /// Tracing, where it is on.
    pub spans: Option<Spans>,
    /// The log.
    pub log: Log,
}

impl Server {
    /// Where the server listens.
    #[must_use]
    pub fn listen(&self) -> GrpcListen {
        match &self.socket {
            Some(path) => GrpcListen::Unix(path.clone()),
            None => GrpcListen::Tcp(HostPort { host: self.host.clone(), port: self.port }),
        }
    }
}

/// Where the gRPC server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GrpcListen {
    /// On a port.
    Tcp(HostPort),
    /// On a unix socket of this path.
    Unix(PathBuf),
}

/// Which implementation of HTTP/2 serves gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GrpcServer {
    /// A connection made for `ShouldRateLimit`.
    #[default]
    Fast,
    /// tonic, the reference.
    Tonic,
}

impl Value for GrpcServer {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        choice(text, &[("fast", Self::Fast), ("tonic", Self::Tonic)], "fast or tonic")
    }
}

impl Http {
    /// The port for health checks and `/json`.
    #[must_use]
    pub fn listen(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }

    /// The debug port.
    #[must_use]
    pub fn debug(&self) -> HostPort {
        HostPort { host: self.debug_host.clone(), port: self.debug_port }
    }
}

/// How counters are named in a store that others share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyFormat {
    /// As by the Go service, with which they are shared.
    #[default]
    Compatible,
    /// So that no two have one name, whatever callers send.
    Unambiguous,
}

impl Value for KeyFormat {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let choices = [("compatible", Self::Compatible), ("unambiguous", Self::Unambiguous)];
        choice(text, &choices, "compatible or unambiguous, in any case")
    }
}

impl Value for CountingMode {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        choice(text, &[("exact", Self::Exact), ("leased", Self::Leased)], "exact or leased, in any case")
    }
}

impl Value for OnStoreFailure {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Self::from_name(text).ok_or_else(|| InvalidValue::new("error, allow, deny or local, in any case"))
    }
}

/// Where hits are counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    /// In this process.
    Memory,
    /// In Redis, shared by all replicas.
    Redis(Box<Redis>),
    /// In memcached, shared by all replicas.
    Memcached(Box<Memcached>),
}

impl Backend {
    /// Its name in logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
            Self::Memcached(_) => "memcached",
        }
    }

    /// Its servers, without credentials; none for the memory of this process.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Memory => None,
            Self::Redis(redis) => {
                let second = redis.per_second.iter().map(|pool| format!(" per_second={}", pool.servers));
                Some([redis.main.servers.to_string()].into_iter().chain(second).collect())
            }
            Self::Memcached(memcached) => Some(memcached.servers.to_string()),
        }
    }
}

/// Metrics and where they are sent.
#[derive(Clone, PartialEq, Debug)]
pub struct StatsSettings {
    /// Where Prometheus finds them, if it may.
    pub prometheus: Option<Prometheus>,
    /// A file that maps their names and labels; it may be missing.
    pub mapper: Option<PathBuf>,
    /// Without such a file, response times are in milliseconds, whatever their name says.
    pub response_time_in_milliseconds: bool,
    /// Who is sent them.
    pub sinks: Sinks,
    /// Maximum number of series named by requests.
    pub max_series: usize,
}

/// Where Prometheus finds the metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prometheus {
    /// The port's address.
    pub listen: HostPort,
    /// The path, with its leading slash.
    pub path: String,
}

/// The form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// The Go service takes anything but json for text.
impl Value for LogFormat {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Ok(if text.eq_ignore_ascii_case("json") { Self::Json } else { Self::Text })
    }
}
