//! Metrics over OTLP: the same series as the page, as sums since the start or as deltas, and collectors that fail.

use std::{collections::BTreeMap, fs};

use super::tracing::{RULES, collector::acceptor};
use support::{
    certificates::Certificates,
    client::request,
    eventually, holds,
    ports::free_port,
    receiver::{AttributeValue, Export, Manner, Metric, Number, Receiver},
    server::{Server, Setup},
};

const ALLOWED: &str = "tollgate_rule_hits_total{domain=\"d\",rule=\"user\",outcome=\"allowed\"}";

const OVER: &str = "tollgate_rule_hits_total{domain=\"d\",rule=\"user\",outcome=\"over_limit\"}";

/// A service that exports metrics to this port every 30 ms.
fn setup(port: u16) -> Setup {
    Setup::new()
        .rules("d.yaml", RULES)
        .env("OTEL_METRICS_EXPORTER", "otlp")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}"))
        .env("OTEL_METRIC_EXPORT_INTERVAL", "30")
}

fn delta(port: u16) -> Setup {
    setup(port).env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
}

fn ask(server: &Server, user: &str) {
    server.ask(request("d", &[&[("user", user)]])).unwrap();
}

/// The points of a series, in the order of the exports.
fn points(exports: &[Export], series: &str) -> Vec<Number> {
    let metrics = exports.iter().flat_map(|export| &export.metrics);
    metrics.filter_map(|metric| metric.numbers().remove(series)).collect()
}

/// The sum of the points of a series.
fn sum(exports: &[Export], series: &str) -> f64 {
    points(exports, series).iter().map(Number::value).sum()
}

/// Waits until the last point of a series has this value, and returns all exports.
fn wait_for(receiver: &Receiver, series: &str, value: f64) -> Vec<Export> {
    eventually("the series has the value", || {
        let exports = receiver.exports();
        let last = points(&exports, series).last().map(Number::value);
        if last == Some(value) { Ok(exports) } else { Err(format!("{last:?}")) }
    })
}

fn wait_for_sum(receiver: &Receiver, series: &str, value: f64) -> Vec<Export> {
    eventually("the points have the sum", || {
        let exports = receiver.exports();
        let sum = sum(&exports, series);
        assert!(sum <= value, "{sum} of {value} of {series}");
        if sum < value { Err(format!("{sum}")) } else { Ok(exports) }
    })
}

/// The samples of an export.
fn samples(export: &Export) -> BTreeMap<String, f64> {
    export.metrics.iter().flat_map(Metric::samples).collect()
}

#[test]
fn an_export_has_the_series_and_values_of_the_page() {
    for (protocol, gzip) in [("http/protobuf", "none"), ("http/protobuf", "gzip"), ("grpc", "gzip")] {
        let receiver = Receiver::start(protocol == "grpc", None);
        let mut server = setup(receiver.port)
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            .env("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", gzip)
            .env("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization=Bearer%20hunter2")
            .env("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=pod-7")
            .start();
        for _ in 0..3 {
            ask(&server, "ann");
        }
        let odd = "/a/\"q\" é\\";
        server.ask(request("d", &[&[("path", odd)]])).unwrap();
        wait_for(&receiver, OVER, 1.0);
        // The first has the series that appear with the first export.
        let before = receiver.exports().len();
        eventually("another export", || holds(receiver.exports().len() > before, || before));
        let page = server.metrics();
        let export = receiver.exports().pop().unwrap();
        let sent = samples(&export);
        let of_page: Vec<_> = page.keys().collect();
        assert_eq!(sent.keys().collect::<Vec<_>>(), of_page, "the page has other series");
        for (series, value) in &sent {
            // These go on while nobody asks.
            if !series.starts_with("process_") && !series.starts_with("tollgate_otlp") {
                let is_time = series.contains("_seconds") || series.contains("bytes");
                assert!(is_time || page[series] >= *value, "{series} is {value}, and {} later", page[series]);
            }
        }
        let hits = "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"user\"}";
        assert_eq!((sent[ALLOWED], sent[OVER], sent[hits]), (2.0, 1.0, 3.0));
        assert!(sent.keys().any(|series| series.contains("path_/a/\\\"q\\\" é")), "{:?}", sent.keys());
        let times = "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}";
        assert!((sent[times] - 4.0).abs() < 0.5, "{}", sent[times]);

        let path = if protocol == "grpc" {
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
        } else {
            "/v1/metrics"
        };
        assert_eq!(
            (&*export.path, export.headers["authorization"].as_bytes()),
            (path, &b"Bearer hunter2"[..])
        );
        assert_eq!(export.resource["service.name"], "RateLimit".into());
        assert_eq!(export.resource["k8s.pod.name"], "pod-7".into());
        assert!(
            matches!(&export.resource["service.instance.id"], AttributeValue::Text(id) if id.len() == 36)
        );
        for metric in &export.metrics {
            let is_sum = metric.sum.as_ref().is_some_and(|sum| sum.is_monotonic && sum.temporality == 2);
            let is_histogram = metric.histogram.as_ref().is_some_and(|histogram| histogram.temporality == 2);
            assert!(is_sum || is_histogram || metric.gauge.is_some(), "{metric:?}");
            assert!(!metric.description.is_empty(), "{metric:?}");
            let is_time = metric.name.trim_end_matches("_total").ends_with("_seconds");
            assert_eq!(metric.unit == "s", is_time, "{}", metric.name);
        }
        let log = server.process.final_log();
        assert!(!log.contains("hunter2"), "{log}");
    }
}

#[test]
fn sums_begin_with_the_service_and_deltas_with_the_last_accepted_export() {
    let receiver = Receiver::start(false, None);
    let server = setup(receiver.port).start();
    let exports = (1..=2_u8).fold(Vec::new(), |_, asked| {
        ask(&server, "ann");
        wait_for(&receiver, ALLOWED, asked.into())
    });
    let sums = points(&exports, ALLOWED);
    assert!(sums.iter().all(|point| point.begun == sums[0].begun && point.begun < point.at), "{sums:?}");

    let receiver = Receiver::start(false, None);
    let server = delta(receiver.port).start();
    for asked in 1..=2_u8 {
        ask(&server, "ann");
        wait_for_sum(&receiver, ALLOWED, asked.into());
    }
    // What the collector does not accept is in the next export.
    receiver.set(Manner::Answers(503));
    ask(&server, "bob");
    server.wait_for_log(&["metrics over OTLP", "503", "OTEL_EXPORTER_OTLP_ENDPOINT"]);
    ask(&server, "bob");
    receiver.set(Manner::Takes);
    let exports = wait_for_sum(&receiver, ALLOWED, 4.0);
    let deltas = points(&exports, ALLOWED);
    assert!(deltas.iter().all(|point| point.value() > 0.0), "nothing is sent of nothing: {deltas:?}");
    for pair in deltas.windows(2) {
        assert_eq!(pair[0].at, pair[1].begun, "{deltas:?}");
    }
    let page = server.metrics();
    assert!(page["tollgate_otlp_points_total{result=\"unreachable\"}"] > 0.0, "{page:?}");
    let times = "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}";
    let answered =
        || receiver.exports().iter().filter_map(|export| samples(export).remove(times)).sum::<f64>();
    eventually("the response times are those of four calls", || holds(answered() >= 4.0, answered));
    assert!((answered() - 4.0).abs() < 0.5, "{}", answered());
}

#[test]
fn low_memory_has_deltas_of_histograms_alone() {
    let receiver = Receiver::start(false, None);
    let server =
        setup(receiver.port).env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "LowMemory").start();
    ask(&server, "ann");
    let exports = wait_for(&receiver, ALLOWED, 1.0);
    for metric in exports.iter().flat_map(|export| &export.metrics) {
        assert_ne!(metric.sum.as_ref().map(|sum| sum.temporality), Some(1), "{metric:?}");
        assert_ne!(metric.histogram.as_ref().map(|histogram| histogram.temporality), Some(2), "{metric:?}");
    }
}

#[test]
fn the_end_of_the_service_exports_the_rest() {
    let receiver = Receiver::start(true, None);
    let mut server = delta(receiver.port)
        .env("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
        .start();
    ask(&server, "ann");
    assert!(receiver.exports().is_empty());
    assert!(server.process.stop().success());
    let sent = sum(&receiver.exports(), ALLOWED);
    assert!((sent - 1.0).abs() < 0.5, "{sent}");
    let log = server.process.final_log();
    assert!(!log.contains("not sent"), "{log}");
}

#[test]
fn a_collector_that_fails_costs_nothing_but_time() {
    let port = free_port();
    let server = delta(port).start();
    ask(&server, "ann");
    server.wait_for_log(&["metrics over OTLP", &format!("http://127.0.0.1:{port}"), "refused"]);
    let receiver = Receiver::on(port, false, None);
    wait_for_sum(&receiver, ALLOWED, 1.0);

    // A silent one is given up, and sent to again.
    receiver.set(Manner::Silent);
    let silent = delta(port).env("OTEL_EXPORTER_OTLP_TIMEOUT", "50").start();
    ask(&silent, "ann");
    silent.wait_for_log(&["metrics over OTLP", "no response in time"]);
    ask(&silent, "ann");
    receiver.set(Manner::Takes);
    let before = receiver.exports().len();
    eventually("both hits arrive", || {
        let exports = receiver.exports();
        // Those of the other service are zero by now.
        let arrived = sum(&exports[before..], ALLOWED);
        holds(arrived >= 2.0, || arrived)
    });

    receiver.set(Manner::LeavesOut(3));
    delta(port).start().wait_for_log(&["rejected 3 points", "too many"]);
    receiver.set(Manner::Answers(404));
    let lost = delta(port).start();
    lost.wait_for_log(&["404", "the path is /v1/metrics", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"]);
    assert!(lost.metric("tollgate_otlp_points_total{result=\"refused\"}") > 0.0);
}

/// Collectors take 4 MiB over gRPC.
#[test]
fn many_series_are_several_messages() {
    let limit = |n| {
        format!("  - key: {}{n}\n    rate_limit: {{unit: hour, requests_per_unit: 1}}\n", "k".repeat(100))
    };
    let limits: Vec<_> = (0..6_000).map(limit).collect();
    let receiver = Receiver::start(true, None);
    let mut server = setup(receiver.port)
        .rules("d.yaml", &format!("domain: d\ndescriptors:\n{}", limits.concat()))
        .env("METRICS_MAX_SERIES", "100000")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
        .start();
    let page = server.metrics();
    assert!(server.process.stop().success());
    let exports = receiver.exports();
    let largest = exports.iter().map(|export| export.bytes.len()).max().unwrap();
    assert!(exports.len() >= 3 && largest < 2 << 20, "{} messages, {largest} bytes", exports.len());
    let sent: BTreeMap<_, _> = exports.iter().flat_map(samples).collect();
    let missing: Vec<_> = page.keys().filter(|series| !sent.contains_key(*series)).collect();
    assert!(missing.is_empty() && page.len() > 18_000, "{} of {}", missing.len(), page.len());
}

#[test]
fn says_what_is_wrong_with_the_variables() {
    let log =
        setup(1).env("OTEL_METRICS_EXPORTER", "console").env("OTEL_METRIC_EXPORT_INTERVAL", "60s").refused();
    assert!(log.contains("OTEL_METRICS_EXPORTER=\"console\": expected none, prometheus or otlp"), "{log}");
    let log = setup(1)
        .env("OTEL_METRIC_EXPORT_INTERVAL", "60s")
        .env("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json")
        .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://127.0.0.1:1/v1/metrics")
        .env("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "/nowhere/client.key")
        .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/nowhere/client.pem")
        .refused();
    for expected in [
        "OTEL_METRIC_EXPORT_INTERVAL=\"60s\"",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=\"http/json\": expected http/protobuf or grpc",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE: expected the path of a PEM file",
    ] {
        assert!(log.contains(expected), "{expected}\n{log}");
    }
    let log = setup(1)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
        .env("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/nowhere/ca.pem")
        .refused();
    assert!(log.contains("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE=/nowhere/ca.pem"), "{log}");
}

/// The files of TLS are read for each export: one that is gone is counted, and one that is back is used.
#[test]
fn a_certificate_that_vanishes_costs_no_count_once_it_is_back() {
    let certificates = Certificates::for_host("127.0.0.1");
    let path = |name: &str| certificates.path(name).display().to_string();
    let receiver = Receiver::start(false, Some(acceptor(&certificates, "http")));
    let server = delta(receiver.port)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("https://127.0.0.1:{}", receiver.port))
        .env("OTEL_EXPORTER_OTLP_CERTIFICATE", &path("ca.pem"))
        .env("OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE", &path("client.pem"))
        .env("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", &path("client.key"))
        .start();
    ask(&server, "ann");
    wait_for_sum(&receiver, ALLOWED, 1.0);
    let [file, away] = ["client.pem", "away.pem"].map(|name| certificates.path(name));
    fs::rename(&file, &away).unwrap();
    server.wait_for_log(&["metrics over OTLP", "client.pem"]);
    ask(&server, "ann");
    let unreachable = || server.metric("tollgate_otlp_points_total{result=\"unreachable\"}");
    let before = unreachable();
    eventually("exports without the certificate are counted", || holds(unreachable() > before, unreachable));
    assert!((sum(&receiver.exports(), ALLOWED) - 1.0).abs() < 0.5, "none arrived meanwhile");
    fs::rename(&away, &file).unwrap();
    wait_for_sum(&receiver, ALLOWED, 2.0);
}
