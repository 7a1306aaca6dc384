//! The settings as the program relies on them, a struct for each part of it.
//!
//! Every value here has been checked; what a user may write instead is known to `vars` and the parsers.

use std::{path::PathBuf, time::Duration};

use tracing::level_filters::LevelFilter;

pub use super::memcached::{Memcached, MemcachedServers};
pub use super::redis::{Credentials, Redis, RedisAddress, RedisPool, RedisServers, RedisTls, Secret};
pub use super::sinks::Sinks;
pub use super::xds::{Xds, XdsBackoff, XdsServer, XdsTls};
use super::{Admin, GrpcTls, HostPort, decisions::Decisions, spans::Spans};
use crate::limiter::template::Template;

/// All settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The gRPC server.
    pub server: Server,
    /// The HTTP ports.
    pub http: Http,
    /// The admin API, where it is on.
    pub admin: Option<Admin>,
    /// What is kept and shown of decisions.
    pub decisions: Decisions,
    /// Where rules come from and how they are read.
    pub rules: Rules,
    /// How hits are counted.
    pub store: Store,
    /// What answers say.
    pub answers: Answers,
    /// Who is told the statistics.
    pub stats: StatsSettings,
    /// Tracing, where it is on.
    pub spans: Option<Spans>,
    /// What is logged.
    pub log: Log,
}

/// The gRPC server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Where it listens.
    pub listen: GrpcListen,
    /// Which implementation of HTTP/2 serves it.
    pub implementation: GrpcServer,
    /// TLS, if it is spoken there.
    pub tls: Option<GrpcTls>,
    /// Threads that answer; one at least.
    pub workers: usize,
    /// The age at which a connection is asked to go away; zero is never.
    pub max_connection_age: Duration,
    /// How long its requests may still take then; zero is as long as they like.
    pub max_connection_age_grace: Duration,
    /// The silence after which a connection is pinged; zero is never.
    pub keepalive_interval: Duration,
    /// How long the answer to a ping may take.
    pub keepalive_timeout: Duration,
    /// Connections at one time; one at least.
    pub max_connections: usize,
    /// Connections of one peer address at one time; one at least.
    pub max_connections_per_address: usize,
    /// Requests at one time on one connection; one at least.
    pub max_concurrent_streams: u32,
    /// Bytes of one request's message.
    pub max_request_bytes: usize,
    /// Time in which a request must be complete.
    pub receive_timeout: Duration,
    /// Bytes that all connections together may hold of incomplete requests and unread answers.
    pub max_inflight_bytes: usize,
    /// Descriptors of one request; one at least.
    pub max_descriptors: usize,
    /// Entries of one descriptor; one at least.
    pub max_entries: usize,
    /// Time between turning unhealthy and refusing new connections.
    pub shutdown_delay: Duration,
    /// Time that requests in flight have to finish; zero is none.
    pub shutdown_timeout: Duration,
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

/// Where the gRPC server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GrpcListen {
    /// On a port.
    Tcp(HostPort),
    /// On a unix socket of this path.
    Unix(PathBuf),
}

/// The HTTP ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Http {
    /// For health checks and `/json`.
    pub listen: HostPort,
    /// For those who look after the service.
    pub debug: HostPort,
    /// Serve `/json`.
    pub json: bool,
    /// Connections at one time on each HTTP port; one at least.
    pub max_connections: usize,
    /// How long a client may take for a head, a body, and to read an answer.
    pub timeout: Duration,
}

/// Where rules come from and how they are read.
#[derive(Clone, PartialEq, Debug)]
pub struct Rules {
    /// Where the way to the files begins.
    pub root: PathBuf,
    /// The directory below the root; may be empty.
    pub subdirectory: String,
    /// The directory below that one; may be empty.
    pub app_directory: String,
    /// Leave out what begins with a dot.
    pub ignore_dot_files: bool,
    /// The Go service would watch the root for a swap, not the directory for changes.
    pub watch_root: bool,
    /// Several files may share a domain.
    pub merge_domains: bool,
    /// Values in all rules together.
    pub max_values: usize,
    /// Unhealthy while no rules are loaded.
    pub healthy_with_at_least_one: bool,
    /// Answer before the control plane has told any.
    pub force_start: bool,
    /// Who tells them in place of the files.
    pub control_plane: Option<Box<Xds>>,
}

/// How hits are counted.
#[derive(Clone, PartialEq, Debug)]
pub struct Store {
    /// What counts.
    pub chosen: Backend,
    /// Nobody chose it: neither `BACKEND_TYPE` nor a variable of Redis was set.
    pub by_default: bool,
    /// Counters held at one time; one at least.
    pub max_keys: usize,
    /// Size of the cache of keys that are over their limit; 0 is no cache.
    pub local_cache_bytes: usize,
    /// The share of a limit from which hits are near it.
    pub near_limit_ratio: f32,
    /// Stands before every key.
    pub key_prefix: String,
    /// How counters are named in a store that others share.
    pub key_format: KeyFormat,
    /// A request that is over one of its limits adds no hits to its others.
    pub stop_when_over: bool,
    /// A counter is forgotten up to so long after its window.
    pub expiration_jitter_max: Duration,
    /// What becomes of a request whose counters cannot be reached, where its domain says nothing else.
    pub on_failure: OnFailure,
    /// Where overrides are kept that are not in Redis.
    pub overrides_file: Option<PathBuf>,
    /// Overrides, resets of counters and the list of replicas are shared by Redis.
    pub replica_sync: bool,
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

/// What becomes of a request whose counters cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// It is answered with an error, as by the Go service; Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// It passes.
    Allow,
    /// It is refused.
    Deny,
    /// This process counts by itself until the counters are back.
    Local,
}

/// What counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    /// This process, in its own memory.
    Memory,
    /// Redis, shared by all replicas.
    Redis(Box<Redis>),
    /// memcached, shared by all replicas.
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

/// What answers say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answers {
    /// Every request is allowed.
    pub shadow_mode: bool,
    /// Every limit is a quota.
    pub quota_mode: bool,
    /// What Envoy is told as dynamic metadata.
    pub dynamic_metadata: DynamicMetadata,
    /// The three headers that Envoy is asked to add, if any.
    pub headers: Option<HeaderNames>,
    /// The header that tells a refused client when to come again, if there is to be one.
    pub retry_after: Option<String>,
    /// `RateLimit-Policy` and `RateLimit` are added.
    pub policy_headers: bool,
    /// The body of a refusal whose rule has none.
    pub over_limit_body: Option<Template>,
}

/// What Envoy is told as dynamic metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DynamicMetadata {
    /// Nothing.
    #[default]
    Off,
    /// The descriptors and the rules' metadata.
    Plain,
    /// Which limit decided of each descriptor as well, and why.
    WithLimits,
}

/// The names of the three headers that tell a client where it stands, in the case they were set in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderNames {
    /// Tells the limit.
    pub limit: String,
    /// Tells what remains of it.
    pub remaining: String,
    /// Tells the seconds until it is whole again.
    pub reset: String,
}

/// Who is told the statistics.
#[derive(Clone, PartialEq, Debug)]
pub struct StatsSettings {
    /// Where Prometheus finds them, if it may.
    pub prometheus: Option<Prometheus>,
    /// A file that gives names and labels to what Prometheus finds; it may be missing.
    pub mapper: Option<PathBuf>,
    /// Without such a file, response times are in milliseconds, whatever their name says.
    pub response_time_in_milliseconds: bool,
    /// Who is sent them.
    pub sinks: Sinks,
    /// Series of rules' metrics before they share one a domain.
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

/// What is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    /// The least grave that is.
    pub level: LevelFilter,
    /// In which form.
    pub format: LogFormat,
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
