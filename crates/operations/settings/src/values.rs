//! Types of settings and their parsers, for the table of variables.

use std::path::PathBuf;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::{
    address::{self, host_port},
    parse::{Value, boolean, by_function, by_name, choice, exact_choice, percent_decoded, whole},
};
use aws_iam::settings::Service;
use exporters::{
    logs::LogFormat,
    otlp::{metrics::Temporality, settings::Protocol},
    statsd::settings::{SinkAddress, Tags},
};
use faults::OnStoreFailure;
use limit::CountingMode;
use limiter::{PolicyHeaders, Recorded};
use net::HostPort;
use net::ServerAddress;
use recent::KeyValues;
use recent::Logged;
use rules::template::Template;
use server::grpc::settings::GrpcServer;
use text::InvalidValue;

by_name!(CountingMode, GrpcServer, KeyFormat, KeyValues, OnStoreFailure, RedisType, Service, Temporality);

by_function! {
    BackendType: |text| {
        exact_choice(text, &[("redis", Self::Redis), ("memcache", Self::Memcached), ("memory", Self::Memory)])
    };
    // As in the Go service, any value but `json` means text.
    LogFormat: |text: &str| Ok(if text.eq_ignore_ascii_case("json") { Self::Json } else { Self::Text });
    SocketType: |text| {
        choice(text, &[("tcp", Self::Tcp), ("tcp4", Self::Tcp), ("tcp6", Self::Tcp), ("unix", Self::Unix)])
    };
    PolicyHeaders: |text| match text {
        "keys" => Ok(Self::WithKeys),
        text => boolean(text).map(|is_on| if is_on { Self::On } else { Self::Off }).map_err(|invalid| {
            InvalidValue { expected: format!("keys, {}", invalid.expected), ..invalid }
        }),
    };
    Protocol: |text| exact_choice(text, &[("http", Self::Http), ("grpc", Self::Grpc)]);
    RulesSource: |text| exact_choice(text, &[("FILE", Self::File), ("GRPC_XDS_SOTW", Self::Xds)]);
    Option<Logged>: |text| sampled(text, ("refused", Logged::Refused), Logged::Sampled);
    Option<Recorded>: |text| sampled(text, ("all", Recorded(1.0)), Recorded);
}

/// A URL of a server that speaks HTTP.
pub(super) fn http_url(text: &str) -> Result<Uri, InvalidValue> {
    let uri = text.parse::<Uri>().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    uri.ok_or_else(|| InvalidValue::new("a URL that begins with http:// or https://"))
}

text::named! {
    /// The format of counter keys in a shared store.
    #[derive(Default)]
    pub enum KeyFormat {
        #[default]
        Compatible = "compatible",
        /// A format in which values chosen by callers cannot make keys collide.
        Unambiguous = "unambiguous",
    }
}

/// `off`, this name, or a share such as `sampled:0.01`.
fn sampled<T>(
    text: &str,
    (name, named): (&str, T),
    sampled: fn(f64) -> T,
) -> Result<Option<T>, InvalidValue> {
    let invalid = || InvalidValue::new(format!("off, {name}, or sampled: and a share, such as sampled:0.01"));
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(None),
        text if text == name => Ok(Some(named)),
        text => {
            let share = text.strip_prefix("sampled:").ok_or_else(invalid)?.parse().ok();
            let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
            let share = share.ok_or_else(|| invalid().with_hint("the share is above 0 and at most 1"))?;
            Ok(Some(sampled(share)))
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum BackendType {
    #[default]
    Memory,
    Redis,
    Memcached,
}

text::named! {
    #[derive(Default)]
    pub(super) enum RedisType {
        #[default]
        Single = "SINGLE",
        Sentinel = "SENTINEL",
        Cluster = "CLUSTER",
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SocketType {
    Tcp,
    Unix,
}

/// A number of connections to each server, up to the number of TCP ports.
pub(super) fn redis_pool_size(text: &str) -> Result<usize, InvalidValue> {
    let connections = whole::<_, 0, 65_535>(text)?;
    // In the client library of the Go service, 0 means 4.
    Ok(if connections == 0 { 4 } else { connections })
}

const MEMCACHED_PORT: u16 = 11211;

pub(super) const MEMCACHED_SERVERS: &str =
    "servers such as host:11211,host:11211, or the path of a unix socket";

/// The servers of a list, which may be empty.
pub(super) fn memcached_servers(text: &str) -> Result<Vec<ServerAddress>, InvalidValue> {
    let all = text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(memcached_server);
    let all: Vec<_> = all.collect::<Result<_, _>>()?;
    if all.is_empty() && !text.is_empty() { Err(InvalidValue::new(MEMCACHED_SERVERS)) } else { Ok(all) }
}

fn memcached_server(text: &str) -> Result<ServerAddress, InvalidValue> {
    if text.contains("://") {
        return Err(InvalidValue::new(MEMCACHED_SERVERS).with_hint("remove the scheme"));
    }
    if text.contains('/') {
        return Ok(ServerAddress::Unix(text.into()));
    }
    let with_port = address::host_port(text).ok().filter(|address| address.port != 0);
    let host = || address::host(text).ok().map(|host| HostPort { host, port: MEMCACHED_PORT });
    with_port
        .or_else(host)
        .map(ServerAddress::Tcp)
        .ok_or_else(|| InvalidValue::new(MEMCACHED_SERVERS).with_hint(format!("invalid server {text:?}")))
}

/// The name of a record in the form that the Go service accepts.
pub(super) fn memcached_srv(text: &str) -> Result<String, InvalidValue> {
    let parts = text.strip_prefix('_').and_then(|rest| {
        let (service, rest) = rest.split_once("._")?;
        let (protocol, name) = rest.split_once('.')?;
        Some([service, protocol, name])
    });
    match parts {
        Some(parts) if parts.iter().all(|part| !part.is_empty()) => Ok(text.to_owned()),
        _ => Err(InvalidValue::new("a name such as _memcache._tcp.example.com")
            .with_hint("it begins with the service and the protocol, each after a _")),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RulesSource {
    #[default]
    File,
    Xds,
}

/// An amount of memory, in bytes or in the notation of Kubernetes.
pub(super) fn memory(text: &str) -> Result<usize, InvalidValue> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let unit = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number =
        number.parse::<u32>().ok().filter(|_| shift > 0).map(u64::from).or_else(|| number.parse().ok());
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    let bytes =
        bytes.filter(|bytes| (32 << 20..1 << 48).contains(bytes)).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| InvalidValue::new("an amount of memory of at least 32Mi, such as 256Mi or 268435456"))
}

/// A target in the notation of gRPC for Go: a host and a port, or a unix socket.
pub(super) fn xds_server(text: &str) -> Result<ServerAddress, InvalidValue> {
    let expected = "host:port, or unix: and the path of a socket";
    if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
        let address = ServerAddress::Unix(path.into());
        return if path.is_empty() { Err(InvalidValue::new(expected)) } else { Ok(address) };
    }
    let schemes = ["dns:///", "passthrough:///", "dns:"];
    let bare = schemes.iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
    let address = address::host_port(bare)
        .map_err(|invalid| InvalidValue { expected: expected.to_owned(), ..invalid })?;
    if address.port == 0 {
        return Err(InvalidValue::new(expected).with_hint("the port is a number from 1 to 65535"));
    }
    Ok(ServerAddress::Tcp(address.or_localhost()))
}

/// A number. As in the Go service, numbers that are not above 0 mean 2.
pub(super) fn backoff_factor(text: &str) -> Result<f64, InvalidValue> {
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite());
    let factor = factor.ok_or_else(|| InvalidValue::new("a number, such as 1.5"))?;
    Ok(if factor > 0.0 { factor } else { 2.0 })
}

/// The address of the admin API; `None` for `off`.
pub(super) fn admin_address(text: &str) -> Result<Option<HostPort>, InvalidValue> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    host_port(text).map(Some).map_err(|invalid| {
        let expected = "off, or an address such as 127.0.0.1:6071, [::1]:6071 or :6071".to_owned();
        InvalidValue { expected, ..invalid }
    })
}

#[derive(Clone, PartialEq, Debug, Default)]
pub enum StatsdProtocol {
    #[default]
    Tcp,
    Udp,
    Unix(PathBuf),
}

impl Value for StatsdProtocol {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let expected = "tcp, udp, or the path of a unix socket, which begins with /";
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => socket_path(text).map(Self::Unix).ok_or_else(|| InvalidValue::new(expected)),
        }
    }
}

/// Tags, `key:value,key:value`. The last value of a key applies.
pub(super) fn tags(text: &str) -> Result<Tags, InvalidValue> {
    let mut tags = Tags::new();
    for pair in text.split(',').filter(|_| !text.trim().is_empty()) {
        let parts: Vec<&str> = pair.split(':').collect();
        let [key, value] = parts[..] else {
            let invalid = InvalidValue::new("tags such as key:value,key:value");
            return Err(invalid.with_hint(format!("{pair:?} must have one colon")));
        };
        let key = key.trim().to_owned();
        let value = value.trim().to_owned();
        tags.retain(|(known, _)| *known != key);
        tags.push((key, value));
    }
    Ok(tags)
}

impl Value for SinkAddress {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        if let Some(path) = socket_path(text) {
            return Ok(Self::Unix(path));
        }
        let expected = "an address such as agent:8125, or the path of a unix socket, which begins with /";
        let address = host_port(text.strip_prefix("udp://").unwrap_or(text));
        address.map(HostPort::or_localhost).map(Self::Udp).map_err(|_| InvalidValue::new(expected))
    }
}

/// The absolute path of a unix socket, or its `unix://` URL as Datadog's clients accept it.
fn socket_path(text: &str) -> Option<PathBuf> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    path.starts_with('/').then(|| path.into())
}

/// The names of OpenTelemetry's specification, of which JSON is left out.
pub(super) fn otlp_protocol(text: &str) -> Result<Protocol, InvalidValue> {
    exact_choice(text, &[("http/protobuf", Protocol::Http), ("grpc", Protocol::Grpc)])
}

/// Whether `otlp` is among the exporters of metrics. The page for Prometheus has its own variable.
pub(super) fn exports_over_otlp(text: &str) -> Result<bool, InvalidValue> {
    let exporters = [("none", false), ("prometheus", false), ("otlp", true)];
    text.split(',').try_fold(false, |any, name| Ok(any | exact_choice(name.trim(), &exporters)?))
}

pub(super) fn gzip(text: &str) -> Result<bool, InvalidValue> {
    exact_choice(text, &[("gzip", true), ("none", false)])
}

/// The headers of every export, `name=value,name=value`.
pub(super) fn headers(text: &str) -> Result<HeaderMap, InvalidValue> {
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    };
    pairs(text).and_then(|pairs| pairs.into_iter().map(header).collect()).ok_or_else(|| {
        InvalidValue::new("name=value,name=value, with %2C for a comma in a value and %20 for a space")
    })
}

/// `name=value,name=value`, the values percent-encoded.
pub(super) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let pair = |member: &str| {
        let (name, value) = member.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), percent_decoded(value.trim())?))
    };
    members.map(pair).collect()
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
    fn reads_which_requests_are_recorded() {
        for (text, expected) in [
            ("off", Ok(None)),
            ("all", Ok(Some(Recorded(1.0)))),
            ("sampled:0.01", Ok(Some(Recorded(0.01)))),
            ("sampled:0", Err(())),
            ("refused", Err(())),
        ] {
            assert_eq!(Option::<Recorded>::parse(text).map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn reads_the_mode_of_key_values() {
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
