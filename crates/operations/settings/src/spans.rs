//! Tracing: sampling, and the collector that spans are sent to.
//!
//! The Go service reads `TRACING_…`; its OpenTelemetry library reads `OTEL_…`.

use http::Uri;

use super::{
    reader::Reader,
    tls::TlsVars,
    values::pairs,
    vars::{self, Tracing},
};
use exporters::tracing::settings::{Collector, CollectorTls, Protocol, Spans};
use text::InvalidValue;

pub(super) fn read(reader: &mut Reader<'_>) -> Option<Spans> {
    if !reader.read(&vars::TRACING_ENABLED) {
        return None;
    }
    let set = Tracing::read(reader);
    reader.warn_outside_of_0_to_1(&vars::TRACING_SAMPLING_RATE, set.sampling_rate);
    Some(Spans {
        resource: resource(reader, &set),
        sampling_rate: set.sampling_rate.into(),
        descriptor_values: set.descriptor_values,
        max_queued: set.max_queued,
        max_batch: set.max_batch.min(set.max_queued),
        delay: set.delay,
        collector: collector(reader, set.protocol),
    })
}

/// The resource attributes. Those with their own variable take precedence.
fn resource(reader: &mut Reader<'_>, set: &Tracing) -> Vec<(String, String)> {
    let own = [
        ("service.name", &set.service_name),
        ("service.namespace", &set.service_namespace),
        ("service.instance.id", &set.service_instance_id),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let mut resource: Vec<_> = own.map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let common = pairs(&set.resource_attributes).unwrap_or_else(|| {
        // The Go service starts too.
        let message = "is ignored: expected name=value,name=value, with %2C for a comma in a value";
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

fn collector(reader: &mut Reader<'_>, protocol: Protocol) -> Collector {
    let (variable, endpoint) = endpoint(reader, protocol);
    let is_https = endpoint.scheme_str() == Some("https");
    Collector {
        protocol,
        endpoint,
        variable,
        headers: reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_HEADERS, &vars::OTEL_EXPORTER_OTLP_HEADERS),
        timeout: reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, &vars::OTEL_EXPORTER_OTLP_TIMEOUT),
        gzip: reader
            .either(&vars::OTEL_EXPORTER_OTLP_TRACES_COMPRESSION, &vars::OTEL_EXPORTER_OTLP_COMPRESSION),
        tls: Some(tls(reader)).filter(|_| is_https),
    }
}

/// The variable that sets the endpoint, and the endpoint: that for traces, else a path below the endpoint for all signals, else this host.
fn endpoint(reader: &mut Reader<'_>, protocol: Protocol) -> (&'static str, Uri) {
    let is_insecure =
        reader.either(&vars::OTEL_EXPORTER_OTLP_TRACES_INSECURE, &vars::OTEL_EXPORTER_OTLP_INSECURE);
    let scheme = if is_insecure { "http" } else { "https" };
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
    let url = url(&text, scheme, below).unwrap_or_else(|invalid| {
        reader.reject(var, invalid);
        Uri::default()
    });
    (var.name, url)
}

/// The URL of a collector, with `below` appended to its path and `scheme` as the default.
fn url(text: &str, scheme: &str, below: &str) -> Result<Uri, InvalidValue> {
    let invalid =
        || InvalidValue::new("a URL such as http://collector:4318, https://collector:4318 or collector:4317");
    let whole = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let read: Uri = whole.parse().map_err(|_| invalid())?;
    let scheme = read.scheme_str().map(str::to_ascii_lowercase).unwrap_or_default();
    if !matches!(&*scheme, "http" | "https") {
        return Err(invalid().with_hint("the scheme is http or https"));
    }
    let authority = read.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(invalid)?;
    if authority.as_str().contains('@') {
        return Err(
            invalid().with_hint("a login belongs in OTEL_EXPORTER_OTLP_HEADERS: authorization=Basic%20…")
        );
    }
    if authority.as_str() != authority.host() && authority.port_u16().is_none() {
        return Err(invalid().with_hint("the port is a number from 0 to 65535"));
    }
    let path =
        format!("{}{below}", if below.is_empty() { read.path() } else { read.path().trim_end_matches('/') });
    Uri::builder()
        .scheme(&*scheme)
        .authority(authority.as_str())
        .path_and_query(path)
        .build()
        .map_err(|_| invalid())
}

fn tls(reader: &mut Reader<'_>) -> CollectorTls {
    let for_traces =
        [&vars::OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE, &vars::OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY];
    let for_all = [&vars::OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, &vars::OTEL_EXPORTER_OTLP_CLIENT_KEY];
    let has_own = for_traces.iter().any(|&var| reader.is_set(var));
    let [certificate, key] = if has_own { for_traces } else { for_all };
    let ca = &vars::OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE;
    let ca = if reader.is_set(ca) { ca } else { &vars::OTEL_EXPORTER_OTLP_CERTIFICATE };
    let tls = TlsVars { ca, certificate, key, enabled_by: "an https URL" };
    // The Go service uses neither half; a collector that requires a certificate would reject the connection.
    tls.reject_half_identity(reader);
    CollectorTls { files: tls.read(reader), variables: [ca.name, certificate.name, key.name] }
}

#[cfg(test)]
mod tests;
