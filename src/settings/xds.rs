//! The settings of a control plane that rules come from, as the program relies on them and as they are read.
//!
//! They are read with the other settings of rules. What is set is checked even when rules come from
//! files, but for paths, which need not exist then.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    ClientTls, HostPort, ServerAddress, address,
    groups::Secret,
    names,
    parse::{InvalidValue, Value, whole},
    reader::Reader,
    vars::{self, ControlPlane, Trust, Var},
};

/// A control plane and how it is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct Xds {
    /// Where it is.
    pub server: ServerAddress,
    /// It sends changes alone, not everything each time.
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

/// TLS to a control plane.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XdsTls {
    /// CAs and the client certificate.
    pub files: ClientTls,
    /// The name that its certificate must have, if it is not the host.
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

/// `CONFIG_TYPE`: where rules come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RulesSource {
    /// Files.
    #[default]
    File,
    /// A control plane.
    Xds {
        /// It sends changes alone, not everything each time.
        incremental: bool,
    },
}

impl Value for RulesSource {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        let names = ["FILE", "GRPC_XDS_SOTW", "GRPC_XDS_DELTA"];
        match text {
            "FILE" => Ok(Self::File),
            "GRPC_XDS_SOTW" => Ok(Self::Xds { incremental: false }),
            "GRPC_XDS_DELTA" => Ok(Self::Xds { incremental: true }),
            _ => {
                let refusal = InvalidValue::new("FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA");
                let in_capitals = names.iter().any(|name| name.eq_ignore_ascii_case(text));
                Err(if in_capitals { refusal.with_hint("write it in capitals") } else { refusal })
            }
        }
    }
}

/// The control plane, if rules come from one.
pub(super) fn read(
    reader: &mut Reader<'_>,
    source: RulesSource,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<Box<Xds>> {
    let is_asked = source != RulesSource::File;
    let set = ControlPlane::read(reader);
    let xds = Xds {
        incremental: source == RulesSource::Xds { incremental: true },
        node_metadata: node_metadata(reader, &set.node_metadata),
        headers: headers(reader, &set.headers),
        tls: tls(reader, &set, &|path| !is_asked || exists(path)),
        server: set.server,
        node_id: set.node_id,
        connect_retry_interval: set.connect_retry_interval.max(SHORTEST_PAUSE),
        backoff: XdsBackoff {
            initial: set.backoff_initial.max(SHORTEST_PAUSE),
            max: set.backoff_max.max(SHORTEST_PAUSE),
            factor: set.backoff_factor,
            jitter: set.backoff_jitter,
        },
        keepalive_interval: set.keepalive_interval,
        max_message_bytes: set.max_message_bytes,
    };
    is_asked.then(|| Box::new(xds))
}

/// The maximum size of a response; 0 is the default, as in the Go service.
pub(super) fn message_bytes(text: &str) -> Result<usize, InvalidValue> {
    let bytes: usize = whole::<_, 0, { u32::MAX as u64 }>(text)?;
    Ok(if bytes == 0 { 64 << 20 } else { bytes })
}

/// A target as gRPC for Go takes it: a host and a port, or a unix socket.
pub(super) fn server(text: &str) -> Result<ServerAddress, InvalidValue> {
    let refusal = || InvalidValue::new("host:port, or unix: and the path of a socket");
    if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
        return if path.is_empty() { Err(refusal()) } else { Ok(ServerAddress::Unix(path.into())) };
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
    Ok(ServerAddress::Tcp(HostPort { host, ..address }))
}

/// `name=text,name=text`. The Go service passes over what has no `=`.
fn node_metadata(reader: &mut Reader<'_>, text: &str) -> Vec<(String, String)> {
    let (pairs, others): (Vec<&str>, Vec<&str>) = text.split(',').partition(|entry| entry.contains('='));
    for entry in others.into_iter().filter(|entry| !entry.is_empty()) {
        let message = format!("{entry:?} has no `=` and is passed over; write name=text,name=text");
        reader.warn(&vars::CONFIG_GRPC_XDS_NODE_METADATA, message);
    }
    let pairs = pairs.into_iter().filter_map(|entry| entry.split_once('='));
    pairs.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

/// `name:value,name:value`. Values may be secrets, so that a refusal shows no value.
fn headers(reader: &mut Reader<'_>, text: &str) -> Vec<(String, Secret)> {
    let mut headers = Vec::new();
    for (at, entry) in text.split(',').enumerate().filter(|(_, entry)| !entry.is_empty()) {
        match header(entry) {
            Ok(header) => headers.push(header),
            Err(refusal) => {
                let accepted = format!("{} (see entry {})", refusal.accepted, at + 1);
                let refusal = InvalidValue { accepted, ..refusal };
                reader.refuse(&vars::CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, None, refusal);
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

fn tls(reader: &mut Reader<'_>, set: &ControlPlane, exists: &dyn Fn(&Path) -> bool) -> Option<XdsTls> {
    let files: [(&'static Var, &Option<PathBuf>); 3] = [
        (&vars::CONFIG_GRPC_XDS_SERVER_TLS_CACERT, &set.ca),
        (&vars::CONFIG_GRPC_XDS_CLIENT_TLS_CERT, &set.certificate),
        (&vars::CONFIG_GRPC_XDS_CLIENT_TLS_KEY, &set.key),
    ];
    for (var, path) in files {
        let Some(path) = path else { continue };
        if !set.use_tls {
            reader.warn(var, "does nothing unless CONFIG_GRPC_XDS_SERVER_USE_TLS=true");
        } else if !exists(path) {
            let refusal = InvalidValue::new("the path of a PEM file that exists");
            reader.refuse(var, Some(path.display().to_string()), refusal);
        }
    }
    let [_, (certificate, _), (key, _)] = files;
    // The Go service connects without a certificate then, so that this is no reason not to start.
    match (&set.certificate, &set.key) {
        (Some(_), None) if set.use_tls => half_an_identity(reader, certificate, key),
        (None, Some(_)) if set.use_tls => half_an_identity(reader, key, certificate),
        _ => {}
    }
    set.use_tls.then(|| XdsTls {
        files: ClientTls {
            ca: set.ca.clone(),
            trust_system: Trust::read(reader).in_addition,
            identity: set.certificate.clone().zip(set.key.clone()),
            skip_hostname: false,
        },
        server_name: Some(set.server_name.clone()).filter(|name| !name.is_empty()),
    })
}

fn half_an_identity(reader: &mut Reader<'_>, set: &'static Var, missing: &'static Var) {
    reader.warn(set, format!("does nothing without {}: no certificate is shown", missing.name));
}

/// As the Go service takes it: what is not above 0 is 2.
pub(super) fn factor(text: &str) -> Result<f64, InvalidValue> {
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite());
    let factor = factor.ok_or_else(|| InvalidValue::new("a number, such as 1.5"))?;
    Ok(if factor > 0.0 { factor } else { 2.0 })
}

#[cfg(test)]
mod tests;
