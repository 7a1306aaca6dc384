//! The settings of tracing: whether there are spans, how many, and where they go.
//!
//! `TRACING_…` are the Go service's own, `OTEL_…` those of OpenTelemetry, which its library reads there.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::{
    ClientTls,
    parse::{InvalidValue, Value, percent_decoded},
    reader::Reader,
    vars::{self, Tracing, Trust},
};

/// Tracing, where it is on.
#[derive(Clone, PartialEq, Debug)]
pub struct Spans {
    /// Who sends the spans, by OpenTelemetry's names.
    pub resource: Vec<(String, String)>,
    /// The share of the calls that are traced where the caller does not say.
    pub sampling_rate: f64,
    /// Spans have the values of descriptors.
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

/// TLS to the collector.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CollectorTls {
    /// CAs and the client certificate.
    pub files: ClientTls,
    /// The variables of the CAs, the client certificate and its key: those of traces, or those of all signals.
    pub variables: [&'static str; 3],
}

impl Value for Protocol {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "http" => Ok(Self::Http),
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Err(InvalidValue::new("http or grpc").with_hint("write http")),
            _ => Err(InvalidValue::new("http or grpc")),
        }
    }
}

/// Tracing as it is set, if it is.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Spans> {
    if !reader.read(&vars::TRACING_ENABLED) {
        return None;
    }
    let set = Tracing::read(reader);
    let rate = set.sampling_rate;
    if !(0.0..=1.0).contains(&rate) {
        let message = format!("{rate} is not a share of the calls, from 0 to 1");
        reader.warn(&vars::TRACING_SAMPLING_RATE, message);
    }
    Some(Spans {
        resource: resource(reader, &set),
        sampling_rate: rate.into(),
        descriptor_values: set.descriptor_values,
        max_queued: set.max_queued,
        max_batch: set.max_batch.min(set.max_queued),
        delay: set.delay,
        collector: collector(reader, set.protocol)?,
    })
}

/// What the operator says of the service; its own variables count before the common one.
fn resource(reader: &mut Reader<'_>, set: &Tracing) -> Vec<(String, String)> {
    let own = [
        ("service.name", &set.service_name),
        ("service.namespace", &set.service_namespace),
        ("service.instance.id", &set.service_instance_id),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let mut resource: Vec<_> = own.map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let common = pairs(&set.resource_attributes).unwrap_or_else(|| {
        // The Go service starts all the same.
        let message = "is passed over: accepted is name=value,name=value, with %2C for a comma in a value";
        reader.warn(&vars::OTEL_RESOURCE_ATTRIBUTES, message);
        Vec::new()
    });
    for (key, value) in common {
        if resource.iter().all(|(known, _)| *known != key) {
            resource.push((key, value));
        }
    }
    resource
}

/// The collector; none when something about it was refused.
fn collector(reader: &mut Reader<'_>, protocol: Protocol) -> Option<Collector> {
    let endpoint = endpoint(reader, protocol);
    let headers = reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_HEADERS, &vars::OTEL_EXPORTER_OTLP_HEADERS);
    let timeout = reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, &vars::OTEL_EXPORTER_OTLP_TIMEOUT);
    let compression =
        reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_COMPRESSION, &vars::OTEL_EXPORTER_OTLP_COMPRESSION);
    let (headers, tls) = (reader.read(headers), tls(reader));
    let (timeout, gzip) = (reader.read(timeout), reader.read(compression));
    let endpoint = endpoint?;
    let tls = (endpoint.scheme_str() == Some("https")).then_some(tls);
    Some(Collector { protocol, endpoint, headers, timeout, gzip, tls })
}

pub(super) fn gzip(text: &str) -> Result<bool, InvalidValue> {
    match text {
        "gzip" => Ok(true),
        "none" => Ok(false),
        _ => Err(InvalidValue::new("gzip or none")),
    }
}

/// Where spans are sent: the endpoint for traces, else below the endpoint for everything, else this host.
fn endpoint(reader: &mut Reader<'_>, protocol: Protocol) -> Option<Uri> {
    let insecure =
        reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_INSECURE, &vars::OTEL_EXPORTER_OTLP_INSECURE);
    let scheme = if reader.read(insecure) { "http" } else { "https" };
    let [own, common] = [&vars::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, &vars::OTEL_EXPORTER_OTLP_ENDPOINT];
    let (port, below) = match protocol {
        Protocol::Http => (4318, "/v1/traces"),
        Protocol::Grpc => (4317, ""),
    };
    let (var, text, below) = match (reader.read(own), reader.read(common)) {
        (text, _) if !text.is_empty() => (own, text, ""),
        (_, text) if !text.is_empty() => (common, text, below),
        _ => (common, format!("http://localhost:{port}"), below),
    };
    let read = url(&text, scheme, below);
    read.map_err(|refusal| reader.refuse(var, Some(text), refusal)).ok()
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

/// The headers of every export.
pub(super) fn headers(text: &str) -> Result<HeaderMap, InvalidValue> {
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    };
    pairs(text).and_then(|pairs| pairs.into_iter().map(header).collect()).ok_or_else(|| {
        InvalidValue::new("name=value,name=value, with %2C for a comma in a value and %20 for a blank")
    })
}

/// `name=value,name=value`, the values percent-encoded.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let pair = |member: &str| {
        let (name, value) = member.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), percent_decoded(value.trim())?))
    };
    members.map(pair).collect()
}

fn tls(reader: &mut Reader<'_>) -> CollectorTls {
    let own =
        [&vars::OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE, &vars::OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY];
    let common = [&vars::OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, &vars::OTEL_EXPORTER_OTLP_CLIENT_KEY];
    let [certificate, key] = if own.iter().any(|&var| reader.is_set(var)) { own } else { common };
    let ca =
        reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE, &vars::OTEL_EXPORTER_OTLP_CERTIFICATE);
    let files = ClientTls {
        ca: reader.read(ca),
        trust_system: Trust::read(reader).in_addition,
        identity: reader.read(certificate).zip(reader.read(key)),
        skip_hostname: false,
    };
    for (set, missing) in [(certificate, key), (key, certificate)] {
        if reader.is_set(set) && !reader.is_set(missing) {
            // The Go service uses neither; a collector that requires a certificate would refuse the connection.
            let refusal =
                InvalidValue::new("the path of a PEM file").with_hint(format!("{} needs it", set.name));
            reader.refuse(missing, None, refusal);
        }
    }
    CollectorTls { files, variables: [ca.name, certificate.name, key.name] }
}

#[cfg(test)]
mod tests;
