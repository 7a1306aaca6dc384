//! The settings of tracing, and the problems and warnings of its variables.

use std::time::Duration;

use proptest::prelude::*;

use super::{super::parse::percent_decoded, *};
use exporters::otlp::metrics::Temporality;

/// Tracing, warnings and problems of these variables.
fn settings(set: &[(&str, &str)]) -> (Option<Spans>, Vec<String>, Vec<String>) {
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    let mut reader = Reader::new(&env, &|_| true);
    let spans = spans(&mut reader);
    let warnings = reader.warnings.iter().map(ToString::to_string).collect();
    let problems = reader.problems.iter().map(ToString::to_string).collect();
    (spans, warnings, problems)
}

/// Tracing with these variables, without problems and warnings.
fn on(set: &[(&str, &str)]) -> Spans {
    let (spans, warnings, problems) = settings(&[&[("TRACING_ENABLED", "true")], set].concat());
    assert!(warnings.is_empty() && problems.is_empty(), "{warnings:?} {problems:?}");
    spans.unwrap()
}

/// The problems of tracing with these variables.
fn problems(set: &[(&str, &str)]) -> Vec<String> {
    settings(&[&[("TRACING_ENABLED", "true")], set].concat()).2
}

#[test]
fn ignores_other_variables_while_tracing_is_off() {
    let set = [("TRACING_SAMPLING_RATE", "x"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x")];
    assert_eq!(settings(&set), (None, Vec::new(), Vec::new()));
}

#[test]
fn the_defaults_are_those_of_the_go_service() {
    let spans = on(&[]);
    assert_eq!(spans.resource, [("service.name".to_owned(), "RateLimit".to_owned())]);
    assert_eq!((spans.max_queued, spans.max_batch, spans.delay), (2048, 512, Duration::from_secs(5)));
    assert!((spans.sampling_rate - 1.0).abs() < 1e-9 && !spans.descriptor_values);
    let collector = spans.collector;
    assert_eq!((collector.protocol, collector.gzip, collector.tls), (Protocol::Http, false, None));
    assert_eq!(collector.timeout, Duration::from_secs(10));
}

#[test]
fn reads_the_endpoint_of_either_variable() {
    for (protocol, own, common, insecure, endpoint) in [
        ("http", "", "", "", "http://localhost:4318/v1/traces"),
        ("grpc", "", "", "", "http://localhost:4317/"),
        ("http", "", "http://c:4318", "", "http://c:4318/v1/traces"),
        ("http", "", "HTTP://c:4318/", "", "http://c:4318/v1/traces"),
        ("http", "", "https://c/otlp/", "", "https://c/otlp/v1/traces"),
        ("http", "http://t:1/x/", "http://c:4318", "", "http://t:1/x/"),
        ("http", "http://t:1", "", "", "http://t:1/"),
        ("grpc", "", "http://[::1]:4317", "", "http://[::1]:4317/"),
        ("grpc", "", "c:4317", "", "https://c:4317/"),
        ("grpc", "", "c:4317", "true", "http://c:4317/"),
        ("http", "", "https://c:1", "true", "https://c:1/v1/traces"),
    ] {
        let set = [
            ("TRACING_EXPORTER_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", own),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", common),
            ("OTEL_EXPORTER_OTLP_INSECURE", insecure),
        ];
        let collector = on(&set).collector;
        assert_eq!(collector.endpoint.to_string(), endpoint, "{set:?}");
        let variable =
            if own.is_empty() { "OTEL_EXPORTER_OTLP_ENDPOINT" } else { "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" };
        assert_eq!(collector.variable, variable, "{set:?}");
        assert_eq!(collector.tls.is_some(), endpoint.starts_with("https"), "{set:?}");
    }
}

#[test]
fn a_signal_has_its_own_variables_or_those_of_all() {
    let set = [
        ("OTEL_METRICS_EXPORTER", "otlp,prometheus"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318/"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/x"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "7000"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "8000"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=1"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/all.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/all.key"),
        ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "/own.key"),
        ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE", "/own.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
        ("TRACING_SAMPLING_RATE", "x"),
    ];
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    let mut reader = Reader::new(&env, &|_| true);
    let metrics = metrics(&mut reader).unwrap();
    assert!(
        reader.problems.is_empty() && reader.warnings.is_empty(),
        "tracing is off: {:?}",
        reader.problems
    );
    assert_eq!(metrics.interval, Duration::from_secs(60));
    assert_eq!((metrics.timeout, metrics.temporality), (Duration::from_secs(30), Temporality::Delta));
    let Collector { signal, protocol, endpoint, variable, headers, timeout, tls, .. } = metrics.collector;
    assert_eq!((signal, protocol, timeout), (Signal::Metrics, Protocol::Http, Duration::from_secs(7)));
    assert_eq!(endpoint, "https://c:4318/v1/metrics");
    assert_eq!((variable, &headers["a"]), ("OTEL_EXPORTER_OTLP_ENDPOINT", &"1".parse().unwrap()));
    let tls = tls.unwrap();
    assert_eq!(tls.files.identity, Some(("/own.pem".into(), "/own.key".into())));
    assert_eq!(tls.variables[2], "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY");
}

#[test]
fn without_statistics_nothing_is_exported() {
    for (disable, is_on) in [("false", true), ("true", false)] {
        let set = [("OTEL_METRICS_EXPORTER", "otlp"), ("DISABLE_STATS", disable)];
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let mut reader = Reader::new(&env, &|_| true);
        let metrics = vars::Metrics::read(&mut reader);
        assert_eq!(crate::sinks::read(&mut reader, &metrics).otlp.is_some(), is_on);
    }
    let set = [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:4318")];
    let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    let mut reader = Reader::new(&env, &|_| true);
    assert_eq!(metrics(&mut reader), None);
    let warning = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: has no effect without OTEL_METRICS_EXPORTER=otlp";
    assert_eq!(reader.warnings[0].to_string(), warning);
}

#[test]
fn rejects_invalid_endpoints() {
    for text in
        ["ftp://c:1", "unix:///run/c", "http://", "://c", "http://c:x", "http://c d", "a b", "http:///p"]
    {
        let problems = problems(&[("OTEL_EXPORTER_OTLP_ENDPOINT", text)]);
        assert!(problems.len() == 1 && problems[0].contains("expected a URL"), "{text}: {problems:?}");
    }
}

#[test]
fn never_shows_a_secret() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter2@c:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://c?key=hunter2"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=hunter2"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=hunter2%0a"),
    ] {
        let problems = problems(&[(name, value)]);
        assert!(problems.len() == 1 && problems[0].starts_with(name), "{value}: {problems:?}");
        assert!(!problems[0].contains("hunter2"), "{problems:?}");
    }
    let spans = on(&[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20hunter2")]);
    assert!(!format!("{spans:?}").contains("hunter2"), "{spans:?}");
}

#[test]
fn decodes_headers() {
    let set = [("OTEL_EXPORTER_OTLP_HEADERS", " x-a = 1 , authorization=Basic%20a%2Cb==,")];
    let headers = on(&set).collector.headers;
    assert_eq!(
        (&headers["x-a"], &headers["authorization"]),
        (&"1".parse().unwrap(), &"Basic a,b==".parse().unwrap())
    );
    let both = [set[0], ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-b=2")];
    let headers = on(&both).collector.headers;
    assert_eq!((headers.get("x-a"), headers.len()), (None, 1), "one replaces the other");
}

#[test]
fn reads_resource_attributes() {
    let spans = on(&[
        ("TRACING_SERVICE_NAME", "limits"),
        ("TRACING_SERVICE_NAMESPACE", "edge"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-7"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,k8s.pod.name=pod-7"),
    ]);
    let named = [
        ("service.name", "limits"),
        ("service.namespace", "edge"),
        ("service.instance.id", "pod-7"),
        ("k8s.pod.name", "pod-7"),
    ];
    assert_eq!(spans.resource, named.map(|(key, value)| (key.to_owned(), value.to_owned())));

    let (spans, warnings, _) = settings(&[("TRACING_ENABLED", "1"), ("OTEL_RESOURCE_ATTRIBUTES", "a,b")]);
    assert!(
        spans.is_some() && warnings[0].starts_with("OTEL_RESOURCE_ATTRIBUTES: is ignored"),
        "{warnings:?}"
    );
}

#[test]
fn reports_all_mistakes_at_once() {
    let problems = problems(&[
        ("TRACING_EXPORTER_PROTOCOL", "http/protobuf"),
        ("TRACING_SAMPLING_RATE", "10%"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
    ]);
    assert_eq!(problems.len(), 6, "{problems:#?}");
    assert!(
        problems.iter().any(|problem| problem.contains("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: expected"))
    );
    let (_, warnings, _) = settings(&[("TRACING_ENABLED", "1"), ("TRACING_SAMPLING_RATE", "50")]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

proptest! {
    #[test]
    fn any_text_is_accepted_or_rejected(text in "[a-c%=,0-9:/@?. é]{0,30}") {
        let set = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"];
        problems(&set.map(|name| (name, text.as_str())));
    }

    #[test]
    fn decodes_percent_encoded_text(bytes in "[ -~]{0,40}") {
        let encoded: Vec<_> = bytes.bytes().map(|byte| format!("%{byte:02X}")).collect();
        prop_assert_eq!(percent_decoded(&encoded.concat()), Some(bytes));
    }
}
