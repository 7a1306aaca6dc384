//! What is sent over OTLP, spans and metrics, and the collectors that receive it.
//!
//! For spans the Go service reads `TRACING_…`; its OpenTelemetry library reads `OTEL_…`.

use http::Uri;

use super::{
    reader::Reader,
    tls::TlsVars,
    values::pairs,
    vars::{self, MetricsOverOtlp, OpenTelemetry, Tracing},
};
use exporters::{
    otlp::{
        metrics::MetricsExport,
        settings::{Collector, CollectorTls, Protocol, Signal},
    },
    tracing::settings::Spans,
};
use text::InvalidValue;

pub(super) fn spans(reader: &mut Reader<'_>) -> Option<Spans> {
    if !reader.read(&vars::TRACING_ENABLED) {
        return None;
    }
    let set = Tracing::read(reader);
    reader.warn_outside_of_0_to_1(&vars::TRACING_SAMPLING_RATE, set.sampling_rate);
    Some(Spans {
        resource: resource(reader),
        sampling_rate: set.sampling_rate.into(),
        descriptor_values: set.descriptor_values,
        max_queued: set.max_queued,
        max_batch: set.max_batch.min(set.max_queued),
        delay: set.delay,
        collector: reader.of_signal(Signal::Traces, |reader| collector(reader, Signal::Traces, set.protocol)),
    })
}

pub(super) fn metrics(reader: &mut Reader<'_>) -> Option<MetricsExport> {
    if !reader.read(&vars::OTEL_METRICS_EXPORTER) {
        let condition = "without OTEL_METRICS_EXPORTER=otlp";
        reader.warn_unused(&[&vars::OTEL_EXPORTER_OTLP_METRICS_ENDPOINT], condition);
        return None;
    }
    let set = MetricsOverOtlp::read(reader);
    let collector = reader.of_signal(Signal::Metrics, |reader| {
        let protocol = reader.read(&vars::OTEL_EXPORTER_OTLP_PROTOCOL);
        collector(reader, Signal::Metrics, protocol)
    });
    Some(MetricsExport {
        resource: resource(reader),
        interval: set.interval,
        timeout: set.timeout,
        temporality: set.temporality,
        collector,
    })
}

/// The resource attributes. Those with their own variable take precedence.
fn resource(reader: &mut Reader<'_>) -> Vec<(String, String)> {
    let set = OpenTelemetry::read(reader);
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

fn collector(reader: &mut Reader<'_>, signal: Signal, protocol: Protocol) -> Collector {
    let endpoint = endpoint(reader, signal, protocol);
    let is_https = endpoint.scheme_str() == Some("https");
    Collector {
        signal,
        protocol,
        endpoint,
        variable: reader.effective(&vars::OTEL_EXPORTER_OTLP_ENDPOINT).name,
        headers: reader.read(&vars::OTEL_EXPORTER_OTLP_HEADERS),
        timeout: reader.read(&vars::OTEL_EXPORTER_OTLP_TIMEOUT),
        gzip: reader.read(&vars::OTEL_EXPORTER_OTLP_COMPRESSION),
        tls: Some(tls(reader)).filter(|_| is_https),
    }
}

/// The endpoint of the signal as it is, else a path below that of all signals, else this host.
fn endpoint(reader: &mut Reader<'_>, signal: Signal, protocol: Protocol) -> Uri {
    let scheme = if reader.read(&vars::OTEL_EXPORTER_OTLP_INSECURE) { "http" } else { "https" };
    let var = &vars::OTEL_EXPORTER_OTLP_ENDPOINT;
    let is_own = reader.effective(var).name != var.name;
    let (port, below) = match protocol {
        Protocol::Http if is_own => (4318, ""),
        Protocol::Http => (4318, signal.path()),
        Protocol::Grpc => (4317, ""),
    };
    let set = Some(reader.read(var)).filter(|set| !set.is_empty());
    let text = set.unwrap_or_else(|| format!("http://localhost:{port}"));
    url(&text, scheme, below).unwrap_or_else(|invalid| {
        reader.reject(var, invalid);
        Uri::default()
    })
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
    let tls = TlsVars {
        ca: &vars::OTEL_EXPORTER_OTLP_CERTIFICATE,
        certificate: &vars::OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE,
        key: &vars::OTEL_EXPORTER_OTLP_CLIENT_KEY,
        enabled_by: "an https URL",
    };
    // The Go service uses neither half; a collector that requires a certificate would reject the connection.
    tls.reject_half_identity(reader);
    let variables = [tls.ca, tls.certificate, tls.key].map(|var| reader.effective(var).name);
    CollectorTls { files: tls.read(reader), variables }
}

#[cfg(test)]
mod tests;
