//! The settings of tracing: whether there are spans, how many, and where they go.
//!
//! `TRACING_…` are the Go service's own, `OTEL_…` those of OpenTelemetry, which its library reads there.

use std::{path::PathBuf, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::{
    parse::{self, InvalidValue},
    reader::Reader,
    vars::{self, Var},
};

/// Tracing, where it is on.
#[derive(Clone, PartialEq, Debug)]
pub struct Spans {
    /// Who sends the spans, by OpenTelemetry's names.
    pub resource: Vec<(String, String)>,
    /// The share of the calls that are traced where the caller does not say.
    pub sampling_rate: f64,
    /// Spans tell the values of descriptors.
    pub descriptor_values: bool,
    /// Spans that may wait to be sent; one at least.
    pub max_queued: usize,
    /// Spans that are sent at a time; one at least.
    pub max_batch: usize,
    /// How long a span waits for others to be sent with.
    pub delay: Duration,
    /// Where they go.
    pub collector: Collector,
}

/// Where spans go.
#[derive(Clone, PartialEq, Debug)]
pub struct Collector {
    /// What is spoken.
    pub protocol: Protocol,
    /// `http` or `https`, host, and the path that takes spans over HTTP.
    pub endpoint: Uri,
    /// Sent along with every batch; they may hold secrets.
    pub headers: HeaderMap,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Batches are compressed.
    pub gzip: bool,
    /// What TLS takes, where it is spoken.
    pub tls: Option<CollectorTls>,
}

/// What is spoken with the collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// OTLP over HTTP/1.1.
    #[default]
    Http,
    /// OTLP over gRPC.
    Grpc,
}

/// What TLS to the collector takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CollectorTls {
    /// Whom to trust in place of whom the system trusts.
    pub authorities: Option<NamedPath>,
    /// `TLS_TRUST_SYSTEM_CAS`: beside whom the system trusts.
    pub trust_system: bool,
    /// A certificate to show, and its key.
    pub identity: Option<[NamedPath; 2]>,
}

/// A file, and the variable that names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPath {
    /// The variable.
    pub variable: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// Tracing as it is set, if it is.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Spans> {
    if !reader.flag(vars::TRACING_ENABLED) {
        return None;
    }
    let sampling_rate = reader.parsed(vars::TRACING_SAMPLING_RATE, parse::ratio);
    if !(0.0..=1.0).contains(&sampling_rate) {
        let message = format!("{sampling_rate} is not a share of the calls, from 0 to 1");
        reader.warn(vars::TRACING_SAMPLING_RATE, message);
    }
    // A million spans are about a gigabyte.
    let max_queued = reader.whole(vars::OTEL_BSP_MAX_QUEUE_SIZE, 1..=1_000_000);
    let max_batch = reader.whole(vars::OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 1..=1_000_000).min(max_queued);
    let count = |count| usize::try_from(count).unwrap_or(1);
    let delay = reader.whole(vars::OTEL_BSP_SCHEDULE_DELAY, 0..=3_600_000);
    Some(Spans {
        resource: resource(reader),
        sampling_rate: sampling_rate.into(),
        descriptor_values: reader.flag(vars::TRACING_DESCRIPTOR_VALUES),
        max_queued: count(max_queued),
        max_batch: count(max_batch),
        delay: Duration::from_millis(delay),
        collector: collector(reader)?,
    })
}

/// What the operator says of the service; its own variables count before the common one.
fn resource(reader: &mut Reader<'_>) -> Vec<(String, String)> {
    let own = [
        ("service.name", reader.text(vars::TRACING_SERVICE_NAME)),
        ("service.namespace", reader.text(vars::TRACING_SERVICE_NAMESPACE)),
        ("service.instance.id", reader.text(vars::TRACING_SERVICE_INSTANCE_ID)),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let mut resource: Vec<_> = own.map(|(key, value)| (key.to_owned(), value)).collect();
    let common = reader.text(vars::OTEL_RESOURCE_ATTRIBUTES);
    match pairs(&common) {
        Some(common) => {
            for (key, value) in common {
                if resource.iter().all(|(known, _)| *known != key) {
                    resource.push((key, value));
                }
            }
        }
        // The Go service starts all the same.
        None => reader.warn(
            vars::OTEL_RESOURCE_ATTRIBUTES,
            "is passed over: accepted is name=value,name=value, with %2C for a comma in a value",
        ),
    }
    resource
}

/// The collector; none when something about it cannot be, which is told.
fn collector(reader: &mut Reader<'_>) -> Option<Collector> {
    let protocol = reader.parsed(vars::TRACING_EXPORTER_PROTOCOL, protocol);
    let endpoint = endpoint(reader, protocol);
    let either = |reader: &Reader<'_>, own: Var, common: Var| if reader.is_set(own) { own } else { common };
    let headers = either(reader, vars::OTEL_EXPORTER_OTLP_TRACES_HEADERS, vars::OTEL_EXPORTER_OTLP_HEADERS);
    let timeout = either(reader, vars::OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, vars::OTEL_EXPORTER_OTLP_TIMEOUT);
    let compression =
        either(reader, vars::OTEL_EXPORTER_OTLP_TRACES_COMPRESSION, vars::OTEL_EXPORTER_OTLP_COMPRESSION);
    let headers = header_map(reader, headers);
    let tls = tls(reader);
    let timeout = reader.whole(timeout, 1..=3_600_000);
    let gzip = reader.parsed(compression, |text| match text {
        "gzip" => Ok(true),
        "none" => Ok(false),
        _ => Err(InvalidValue::new("gzip or none")),
    });
    let endpoint = endpoint?;
    let speaks_tls = endpoint.scheme_str() == Some("https");
    Some(Collector {
        protocol,
        headers,
        timeout: Duration::from_millis(timeout),
        gzip,
        tls: speaks_tls.then_some(tls),
        endpoint,
    })
}

fn protocol(text: &str) -> Result<Protocol, InvalidValue> {
    match text {
        "http" => Ok(Protocol::Http),
        "grpc" => Ok(Protocol::Grpc),
        "http/protobuf" => Err(InvalidValue::new("http or grpc").with_hint("write http")),
        _ => Err(InvalidValue::new("http or grpc")),
    }
}

/// Where spans are taken: as named for traces, else below what is named for everything, else here.
fn endpoint(reader: &mut Reader<'_>, protocol: Protocol) -> Option<Uri> {
    let insecure = if reader.is_set(vars::OTEL_EXPORTER_OTLP_TRACES_INSECURE) {
        vars::OTEL_EXPORTER_OTLP_TRACES_INSECURE
    } else {
        vars::OTEL_EXPORTER_OTLP_INSECURE
    };
    let scheme = if reader.flag(insecure) { "http" } else { "https" };
    let [own, common] = [vars::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, vars::OTEL_EXPORTER_OTLP_ENDPOINT];
    let (port, below) = match protocol {
        Protocol::Http => (4318, "/v1/traces"),
        Protocol::Grpc => (4317, ""),
    };
    let (var, text, below) = match (reader.is_set(own), reader.is_set(common)) {
        (true, _) => (own, reader.text(own), ""),
        (_, true) => (common, reader.text(common), below),
        _ => (common, format!("http://localhost:{port}"), below),
    };
    let read = url(&text, scheme, below);
    // A login in it, or a key behind its question mark, may be a secret.
    let seen = Some(text).filter(|text| !text.contains(['@', '?']));
    read.map_err(|refusal| reader.refuse(var, seen, refusal)).ok()
}

/// The URL of a collector, with `below` behind its path; without a scheme it is of this one.
fn url(text: &str, scheme: &str, below: &str) -> Result<Uri, InvalidValue> {
    let refusal =
        || InvalidValue::new("a URL such as http://collector:4318, https://collector:4318 or collector:4317");
    let whole = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let read: Uri = whole.parse().map_err(|_| refusal())?;
    let scheme = read.scheme_str().map(str::to_ascii_lowercase).unwrap_or_default();
    if !matches!(&*scheme, "http" | "https") {
        return Err(refusal().with_hint("spans are sent over http or https"));
    }
    let authority = read.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(refusal)?;
    if authority.as_str().contains('@') {
        return Err(
            refusal().with_hint("a login belongs in OTEL_EXPORTER_OTLP_HEADERS: authorization=Basic%20…")
        );
    }
    if authority.as_str() != authority.host() && authority.port_u16().is_none() {
        return Err(refusal().with_hint("the port is a number from 0 to 65535"));
    }
    let path =
        format!("{}{below}", if below.is_empty() { read.path() } else { read.path().trim_end_matches('/') });
    Uri::builder()
        .scheme(&*scheme)
        .authority(authority.as_str())
        .path_and_query(path)
        .build()
        .map_err(|_| refusal())
}

/// The headers of a variable, whose value is never shown.
fn header_map(reader: &mut Reader<'_>, var: Var) -> HeaderMap {
    let read = pairs(&reader.text(var)).and_then(|pairs| {
        let header = |(name, value): (String, String)| {
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        };
        pairs.into_iter().map(header).collect::<Option<HeaderMap>>()
    });
    read.unwrap_or_else(|| {
        let refusal =
            InvalidValue::new("name=value,name=value, with %2C for a comma in a value and %20 for a blank");
        reader.refuse(var, None, refusal);
        HeaderMap::new()
    })
}

/// `name=value,name=value`, the values percent-encoded.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let pair = |member: &str| {
        let (name, value) = member.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), decoded(value.trim())?))
    };
    members.map(pair).collect()
}

/// A text without its percent signs.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

fn tls(reader: &mut Reader<'_>) -> CollectorTls {
    let own =
        [vars::OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE, vars::OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY];
    let common = [vars::OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, vars::OTEL_EXPORTER_OTLP_CLIENT_KEY];
    let [certificate, key] = if own.iter().any(|var| reader.is_set(*var)) { own } else { common };
    let own = file(reader, vars::OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE);
    let authorities = own.or_else(|| file(reader, vars::OTEL_EXPORTER_OTLP_CERTIFICATE));
    let identity = match (file(reader, certificate), file(reader, key)) {
        (Some(certificate), Some(key)) => Some([certificate, key]),
        (None, None) => None,
        (has_certificate, _) => {
            let (set, missing) =
                if has_certificate.is_some() { (certificate, key) } else { (key, certificate) };
            // The Go service uses neither; a collector that asks for one would refuse the connection.
            let refusal =
                InvalidValue::new("the path of a PEM file").with_hint(format!("{} needs it", set.name));
            reader.refuse(missing, None, refusal);
            None
        }
    };
    CollectorTls { authorities, trust_system: reader.flag(vars::TLS_TRUST_SYSTEM_CAS), identity }
}

fn file(reader: &Reader<'_>, var: Var) -> Option<NamedPath> {
    let path = reader.text(var);
    (!path.is_empty()).then(|| NamedPath { variable: var.name, path: path.into() })
}

#[cfg(test)]
mod tests;
