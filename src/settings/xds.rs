//! The settings of a control plane that rules come from, as the program relies on them and as they are read.
//!
//! They are read with the other settings of rules. What is set is checked even when rules come from
//! files, but for paths, which need not exist then.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    HostPort, address,
    groups::Secret,
    names,
    parse::InvalidValue,
    reader::Reader,
    vars::{self, Var},
};

/// A control plane and how it is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct Xds {
    /// Where it is.
    pub server: XdsServer,
    /// It tells of changes alone, not of everything each time.
    pub incremental: bool,
    /// By which name it knows us.
    pub node_id: String,
    /// What it may want to know besides: names and texts.
    pub node_metadata: Vec<(String, String)>,
    /// What is sent along: names in small letters, and values, which may be secrets.
    pub headers: Vec<(String, Secret)>,
    /// TLS, if it is spoken.
    pub tls: Option<XdsTls>,
    /// The pause, on average, before it is tried again to connect.
    pub connect_retry_interval: Duration,
    /// The pauses after a stream that broke.
    pub backoff: XdsBackoff,
    /// The silence after which it is pinged; zero is never.
    pub keepalive_interval: Duration,
    /// Bytes of one response, at most; one at least.
    pub max_message_bytes: usize,
}

/// Without a pause a control plane in trouble would be asked as fast as both can.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Where a control plane is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XdsServer {
    /// On a port.
    Tcp(HostPort),
    /// On a unix socket.
    Unix(PathBuf),
}

/// TLS to a control plane.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XdsTls {
    /// Certificates to trust in place of those of the system.
    pub ca: Option<PathBuf>,
    /// `TLS_TRUST_SYSTEM_CAS`: beside those of the system.
    pub trust_system: bool,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that its certificate must hold, when that is not the one it is found by.
    pub server_name: Option<String>,
}

/// The pauses after a stream that broke.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct XdsBackoff {
    /// The first.
    pub initial: Duration,
    /// The longest.
    pub max: Duration,
    /// By this each is longer than the one before; none is shorter than the first.
    pub factor: f64,
    /// Each is cut by chance, so that replicas do not come back together.
    pub jitter: bool,
}

impl Default for XdsServer {
    fn default() -> Self {
        Self::Tcp(HostPort::default())
    }
}

impl fmt::Display for XdsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Where rules come from.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum ConfigType {
    #[default]
    File,
    Xds {
        incremental: bool,
    },
}

/// The control plane, if rules come from one.
pub(super) fn read(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Option<Box<Xds>> {
    let config_type = reader.parsed(vars::CONFIG_TYPE, config_type);
    let is_asked = config_type != ConfigType::File;
    let bytes = reader.whole(vars::XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, 0..=u64::from(u32::MAX));
    let xds = Xds {
        server: reader.parsed(vars::CONFIG_GRPC_XDS_SERVER_URL, server),
        incremental: config_type == ConfigType::Xds { incremental: true },
        node_id: reader.text(vars::CONFIG_GRPC_XDS_NODE_ID),
        node_metadata: node_metadata(reader),
        headers: headers(reader),
        tls: tls(reader, &|path| !is_asked || exists(path)),
        connect_retry_interval: reader
            .duration(vars::CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL)
            .max(SHORTEST_PAUSE),
        backoff: XdsBackoff {
            initial: reader.duration(vars::XDS_CLIENT_BACKOFF_INITIAL_INTERVAL).max(SHORTEST_PAUSE),
            max: reader.duration(vars::XDS_CLIENT_BACKOFF_MAX_INTERVAL).max(SHORTEST_PAUSE),
            factor: reader.parsed(vars::XDS_CLIENT_BACKOFF_RANDOM_FACTOR, factor),
            jitter: reader.flag(vars::XDS_CLIENT_BACKOFF_JITTER),
        },
        keepalive_interval: reader.duration(vars::XDS_CLIENT_KEEPALIVE_INTERVAL),
        // In the Go service 0 is the default as well.
        max_message_bytes: usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(64 << 20),
    };
    is_asked.then(|| Box::new(xds))
}

fn config_type(text: &str) -> Result<ConfigType, InvalidValue> {
    match text {
        "FILE" => Ok(ConfigType::File),
        "GRPC_XDS_SOTW" => Ok(ConfigType::Xds { incremental: false }),
        "GRPC_XDS_DELTA" => Ok(ConfigType::Xds { incremental: true }),
        _ => {
            let refusal = InvalidValue::new("FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA");
            let in_capitals = ["FILE", "GRPC_XDS_SOTW", "GRPC_XDS_DELTA"]
                .iter()
                .any(|name| name.eq_ignore_ascii_case(text));
            Err(if in_capitals { refusal.with_hint("write it in capitals") } else { refusal })
        }
    }
}

/// A target as gRPC for Go takes it: a host and a port, or a unix socket.
fn server(text: &str) -> Result<XdsServer, InvalidValue> {
    let refusal = || InvalidValue::new("host:port, or unix: and the path of a socket");
    if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
        return if path.is_empty() { Err(refusal()) } else { Ok(XdsServer::Unix(path.into())) };
    }
    let schemes = ["dns:///", "passthrough:///", "dns:"];
    let bare = schemes.iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
    let address =
        address::host_port(bare).map_err(|InvalidValue { hint, .. }| InvalidValue { hint, ..refusal() })?;
    if address.port == 0 {
        return Err(refusal().with_hint("the port is a number from 1 to 65535"));
    }
    // As everywhere in Go, no host to connect to is this one.
    let host = if address.host.is_empty() { "localhost".to_owned() } else { address.host };
    Ok(XdsServer::Tcp(HostPort { host, ..address }))
}

/// `name=text,name=text`. The Go service passes over what has no `=`.
fn node_metadata(reader: &mut Reader<'_>) -> Vec<(String, String)> {
    let text = reader.text(vars::CONFIG_GRPC_XDS_NODE_METADATA);
    let (pairs, others): (Vec<&str>, Vec<&str>) = text.split(',').partition(|entry| entry.contains('='));
    for entry in others.into_iter().filter(|entry| !entry.is_empty()) {
        let message = format!("{entry:?} has no `=` and is passed over; write name=text,name=text");
        reader.warn(vars::CONFIG_GRPC_XDS_NODE_METADATA, message);
    }
    let pairs = pairs.into_iter().filter_map(|entry| entry.split_once('='));
    pairs.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

/// `name:value,name:value`. Values may be secrets, so that a refusal tells the name alone.
fn headers(reader: &mut Reader<'_>) -> Vec<(String, Secret)> {
    let var = vars::CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS;
    let mut headers = Vec::new();
    for (at, entry) in reader.text(var).split(',').enumerate().filter(|(_, entry)| !entry.is_empty()) {
        match header(entry) {
            Ok(header) => headers.push(header),
            Err(refusal) => {
                let accepted = format!("{} (see entry {})", refusal.accepted, at + 1);
                reader.refuse(var, None, InvalidValue { accepted, ..refusal });
            }
        }
    }
    headers
}

fn header(entry: &str) -> Result<(String, Secret), InvalidValue> {
    let refusal = || InvalidValue::new("name:value,name:value");
    let (name, value) = entry.split_once(':').ok_or_else(refusal)?;
    let name = names::header_name(name.trim())?.to_ascii_lowercase();
    let value = value.trim();
    if http::HeaderValue::from_str(value).is_err() {
        return Err(refusal().with_hint("a value holds printable characters alone"));
    }
    Ok((name, Secret(value.to_owned())))
}

fn tls(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Option<XdsTls> {
    let files = [
        vars::CONFIG_GRPC_XDS_SERVER_TLS_CACERT,
        vars::CONFIG_GRPC_XDS_CLIENT_TLS_CERT,
        vars::CONFIG_GRPC_XDS_CLIENT_TLS_KEY,
    ];
    let name = reader.parsed_text(vars::CONFIG_GRPC_XDS_SERVER_TLS_SAN, address::host);
    if !reader.flag(vars::CONFIG_GRPC_XDS_SERVER_USE_TLS) {
        for var in files {
            if reader.is_set(var) {
                reader.warn(var, "does nothing unless CONFIG_GRPC_XDS_SERVER_USE_TLS=true");
            }
        }
        return None;
    }
    let [ca, certificate, key] = files.map(|var| file(reader, var, exists));
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => half_an_identity(reader, files[1], files[2]),
        (None, Some(_)) => half_an_identity(reader, files[2], files[1]),
    };
    let trust_system = reader.flag(vars::TLS_TRUST_SYSTEM_CAS);
    Some(XdsTls { ca, trust_system, identity, server_name: Some(name).filter(|name| !name.is_empty()) })
}

fn file(reader: &mut Reader<'_>, var: Var, exists: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let path = PathBuf::from(reader.raw(var).filter(|path| !path.is_empty())?);
    if !exists(&path) {
        reader.refuse(
            var,
            Some(path.display().to_string()),
            InvalidValue::new("the path of a PEM file that exists"),
        );
    }
    Some(path)
}

/// The Go service goes without a certificate then, so that this is no reason not to start.
fn half_an_identity(reader: &mut Reader<'_>, set: Var, missing: Var) -> Option<(PathBuf, PathBuf)> {
    reader.warn(set, format!("does nothing without {}: no certificate is shown", missing.name));
    None
}

/// As the Go service takes it: what is not above 0 is 2.
fn factor(text: &str) -> Result<f64, InvalidValue> {
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite());
    let factor = factor.ok_or_else(|| InvalidValue::new("a number, such as 1.5"))?;
    Ok(if factor > 0.0 { factor } else { 2.0 })
}

#[cfg(test)]
mod tests;
