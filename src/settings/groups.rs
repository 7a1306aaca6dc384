//! The settings as the program uses them: groups of [`vars`](super::vars) as they are, and types made of the others.

use std::path::PathBuf;

pub use super::memcached::{Memcached, MemcachedServers};
pub use super::redis::{Credentials, Redis, RedisAddress, RedisPool, RedisServers, RedisTls, Secret};
pub use super::sinks::Sinks;
pub use super::vars::{Answers, Decisions, Http, Log, Overrides, Rules, Server, Store};
pub use super::xds::{Xds, XdsBackoff, XdsTls};
use super::{
    Admin, Backend, GrpcTls, HostPort, ServerAddress,
    parse::{InvalidValue, Value},
    spans::Spans,
};
use crate::limiter::template::Template;

/// All settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The gRPC server.
    pub server: Server,
    /// TLS on its port, if enabled.
    pub grpc_tls: Option<GrpcTls>,
    /// The HTTP ports.
    pub http: Http,
    /// The admin API, if enabled.
    pub admin: Option<Admin>,
    /// How decisions are logged and shown.
    pub decisions: Decisions,
    /// Where rules come from and how they are read.
    pub rules: Rules,
    /// The control plane, if rules come from one.
    pub control_plane: Option<Box<Xds>>,
    /// How hits are counted.
    pub store: Store,
    /// Overrides, and the replicas that share them.
    pub overrides: Overrides,
    /// Where hits are counted.
    pub backend: Backend,
    /// Neither `BACKEND_TYPE` nor a variable of Redis is set.
    pub is_backend_default: bool,
    /// The content of responses.
    pub answers: Answers,
    /// Metrics and where they are sent.
    pub stats: StatsSettings,
    /// Tracing, if enabled.
    pub spans: Option<Spans>,
    /// The log.
    pub log: Log,
}

impl Server {
    /// The address of the gRPC port.
    #[must_use]
    pub fn listen(&self) -> ServerAddress {
        match &self.socket {
            Some(path) => ServerAddress::Unix(path.clone()),
            None => ServerAddress::Tcp(HostPort { host: self.host.clone(), port: self.port }),
        }
    }
}

named! {
    /// The HTTP/2 implementation of the gRPC port.
    #[derive(Default)]
    pub enum GrpcServer {
        /// The implementation made for `ShouldRateLimit`.
        #[default]
        Fast = "fast",
        /// tonic, the reference.
        Tonic = "tonic",
    }
}

impl Http {
    /// The address of the port for health checks and `/json`.
    #[must_use]
    pub fn listen(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }

    /// The address of the debug port.
    #[must_use]
    pub fn debug(&self) -> HostPort {
        HostPort { host: self.debug_host.clone(), port: self.debug_port }
    }
}

named! {
    /// The format of counter keys in a shared store.
    #[derive(Default)]
    pub enum KeyFormat {
        /// The format of the Go service.
        #[default]
        Compatible = "compatible",
        /// A format in which values chosen by callers cannot make keys collide.
        Unambiguous = "unambiguous",
    }
}

named! {
    /// How callers' values are shown.
    #[derive(Default)]
    pub enum KeyValues {
        /// As received.
        #[default]
        Plain = "plain",
        /// The first 16 digits of their SHA-256, so that equal values are recognised.
        Hashed = "hashed",
        /// Not at all.
        Hidden = "hidden",
    }
}

/// The decisions that are logged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Logged {
    /// Those that rejected a request.
    Refused,
    /// A sample with this probability: above 0, at most 1.
    Sampled(f64),
}

/// `None` for `off`.
impl Value for Option<Logged> {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let invalid = InvalidValue::new("off, refused, or sampled: and a share, such as sampled:0.01");
        match text.to_ascii_lowercase().as_str() {
            "off" => Ok(None),
            "refused" => Ok(Some(Logged::Refused)),
            text => {
                let Some(share) = text.strip_prefix("sampled:") else { return Err(invalid) };
                let share = share.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                let share = share.ok_or_else(|| invalid.with_hint("the share is above 0 and at most 1"))?;
                Ok(Some(Logged::Sampled(share)))
            }
        }
    }
}

/// Metrics and where they are sent.
#[derive(Clone, PartialEq, Debug)]
pub struct StatsSettings {
    /// The endpoint for Prometheus, if enabled.
    pub prometheus: Option<Prometheus>,
    /// A file that maps names and labels; it may be missing.
    pub mapper: Option<PathBuf>,
    /// Without a mapper file, response times are in milliseconds, though the name ends in seconds.
    pub response_time_in_milliseconds: bool,
    /// The sinks that metrics are sent to.
    pub sinks: Sinks,
    /// Maximum number of series named by requests.
    pub max_series: usize,
}

/// The endpoint for Prometheus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prometheus {
    /// The address of the port.
    pub listen: HostPort,
    /// The path, with its leading slash.
    pub path: String,
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// As in the Go service, any value but `json` means text.
impl Value for LogFormat {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Ok(if text.eq_ignore_ascii_case("json") { Self::Json } else { Self::Text })
    }
}

impl Value for Template {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text).map_err(|error| {
            InvalidValue::new("text or JSON").with_hint(format!("{}; {}", error.message, error.help))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_which_decisions_are_logged() {
        for (text, expected) in [
            ("off", Ok(None)),
            ("refused", Ok(Some(Logged::Refused))),
            ("Sampled:0.01", Ok(Some(Logged::Sampled(0.01)))),
            ("sampled:1", Ok(Some(Logged::Sampled(1.0)))),
            ("sampled:0", Err(())),
            ("sampled:1.1", Err(())),
            ("sampled:NaN", Err(())),
            ("sampled:", Err(())),
            ("sampled", Err(())),
            ("all", Err(())),
        ] {
            assert_eq!(Option::<Logged>::parse(text).map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn reads_how_values_are_shown() {
        for (text, expected) in [
            ("plain", Some(KeyValues::Plain)),
            ("HASHED", Some(KeyValues::Hashed)),
            ("hidden", Some(KeyValues::Hidden)),
            ("none", None),
        ] {
            assert_eq!(KeyValues::parse(text).ok(), expected, "{text}");
        }
    }
}
