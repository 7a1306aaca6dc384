//! Tracing: the attributes of a span, its parent, and collectors that are slow, unreachable or reject spans.

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use proto::{
    envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
    kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient,
};

use support::{
    client::request,
    eventually,
    grpc_tls::alone,
    holds,
    http::{get, post},
    raw::{Exchange, RawClient, framed},
    receiver::{AttributeValue, Receiver},
    server::{Server, Setup},
};

pub(crate) mod collector;
mod edge;
mod waits;

pub(crate) const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: path
    value: /a/*
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 100}
";

const CALL: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A service that exports spans to this port every 20 ms.
fn setup(protocol: &str, port: u16) -> Setup {
    Setup::new()
        .rules("d.yaml", RULES)
        .env("TRACING_ENABLED", "true")
        .env("TRACING_EXPORTER_PROTOCOL", protocol)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}"))
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// Sends a request with these headers; any response is accepted.
fn ask(server: &Server, request: &RateLimitRequest, headers: &[(&'static str, &str)]) {
    let header = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    let headers: HeaderMap = headers.iter().map(header).collect();
    alone(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let answer = client.exchange(framed(request), &headers).await;
        assert!(matches!(answer, Exchange::Answered(_)), "{answer:?}");
    });
}

#[test]
fn a_span_of_kuadrants_service_has_its_method() {
    let receiver = Receiver::start(false, None);
    let server = setup("http", receiver.port).start();
    let answer = server.client().call(|channel| async move {
        let mut client = RateLimitServiceClient::new(channel);
        client.check_rate_limit(request("d", &[&[("user", "ann")]])).await
    });
    assert_eq!(answer.unwrap().into_inner().overall_code(), Code::Ok);
    let service = "kuadrant.service.ratelimit.v1.RateLimitService";
    let spans = receiver.wait_for(1);
    assert_eq!(spans[0].name, format!("{service}/CheckRateLimit"));
    for (key, value) in [
        ("rpc.service", service),
        ("rpc.method", "CheckRateLimit"),
        ("tollgate.domain", "d"),
        ("tollgate.code", "OK"),
    ] {
        assert_eq!(spans[0].attribute(key), value.into(), "{key}");
    }
}

#[test]
fn a_span_has_rules_and_outcomes_and_no_values() {
    for (protocol, gzip) in [("http", "none"), ("http", "gzip"), ("grpc", "none"), ("grpc", "gzip")] {
        let receiver = Receiver::start(protocol == "grpc", None);
        let server = setup(protocol, receiver.port)
            .env("OTEL_EXPORTER_OTLP_COMPRESSION", gzip)
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=edge,authorization=Bearer%20hunter2")
            .env("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=pod-7")
            .start();
        let question = request("d", &[&[("user", "ann")], &[("path", "/a/secret")], &[("nothing", "x")]]);
        for _ in 0..3 {
            ask(&server, &question, &[]);
        }
        let spans = receiver.wait_for(3);
        let first = &spans[0];
        assert_eq!((&*first.name, first.kind, first.flags), (CALL, 2, 0x101));
        assert!(first.begun > 1_700_000_000_000_000_000 && first.ended >= first.begun, "{first:?}");
        assert_eq!((first.trace.len(), first.id.len(), first.parent.len()), (16, 8, 0));
        for (key, value) in [
            ("rpc.system", "grpc".into()),
            ("rpc.method", "ShouldRateLimit".into()),
            ("rpc.grpc.status_code", 0.into()),
            ("tollgate.domain", "d".into()),
            ("tollgate.descriptor_count", 3.into()),
            ("tollgate.code", "OK".into()),
            ("tollgate.rules", ["d.user", "d.path_/a/*", ""].into()),
            ("tollgate.codes", ["OK", "OK", "OK"].into()),
            ("tollgate.remaining", [1, 99, 0].into()),
            ("tollgate.descriptors", AttributeValue::Nothing),
        ] {
            assert_eq!(first.attribute(key), value, "{key}");
        }
        let over = &spans[2];
        assert_eq!(over.attribute("tollgate.code"), "OVER_LIMIT".into());
        assert_eq!(over.attribute("tollgate.codes"), ["OVER_LIMIT", "OK", "OK"].into());
        assert_eq!(over.status, None, "a request over its limit is not an error");

        let export = &receiver.exports()[0];
        let path = if protocol == "grpc" {
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        } else {
            "/v1/traces"
        };
        assert_eq!((&*export.path, &export.headers["x-tenant"]), (path, &HeaderValue::from_static("edge")));
        assert_eq!(export.headers["authorization"], "Bearer hunter2");
        assert_eq!(export.resource["service.name"], "RateLimit".into());
        assert_eq!(export.resource["k8s.pod.name"], "pod-7".into());
        assert!(
            matches!(&export.resource["service.instance.id"], AttributeValue::Text(id) if id.len() == 36)
        );
        for export in receiver.exports() {
            let sent = String::from_utf8_lossy(&export.bytes).into_owned();
            assert!(!sent.contains("ann") && !sent.contains("secret"), "{sent}");
        }
        eventually("the spans are counted", || {
            let exported = server.metrics()["tollgate_spans_exported_total"];
            holds(exported.to_string() == "3", || format!("{exported} are counted"))
        });
        assert!(!server.final_log().contains("hunter2"));
    }
}

#[test]
fn a_span_has_values_if_configured() {
    let receiver = Receiver::start(false, None);
    let server = setup("http", receiver.port).env("TRACING_DESCRIPTOR_VALUES", "true").start();
    ask(&server, &request("d", &[&[("user", "ann"), ("path", "/a/b")], &[("user", "bob")]]), &[]);
    let descriptors = receiver.wait_for(1)[0].attribute("tollgate.descriptors");
    assert_eq!(descriptors, ["user=ann,path=/a/b", "user=bob"].into());
}

#[test]
fn failed_requests_have_spans_with_an_error() {
    let receiver = Receiver::start(false, None);
    let server = setup("http", receiver.port).start();
    ask(&server, &request("", &[&[("user", "ann")]]), &[]);
    ask(&server, &request("elsewhere", &[&[("user", "ann")]]), &[]);
    let spans = receiver.wait_for(2);
    let status = spans[0].status.clone().unwrap();
    assert_eq!((status.code, &*status.message), (2, "rate limit domain must not be empty"));
    assert_eq!(spans[0].attribute("rpc.grpc.status_code"), 2.into());
    let rules = spans[1].attribute("tollgate.rules");
    assert_eq!((spans[1].status.clone(), rules), (None, [""].into()), "an unknown domain has no rules");
}

#[test]
fn json_requests_are_traced() {
    let receiver = Receiver::start(false, None);
    let server = setup("http", receiver.port).start();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
    for body in [body, "{}", "nothing"] {
        post(server.ports.http, "/json", body);
    }
    let spans = receiver.wait_for(3);
    assert!(spans.iter().all(|span| span.name == "POST /json" && span.kind == 2), "{spans:?}");
    let statuses: Vec<_> = spans.iter().map(|span| span.attribute("http.response.status_code")).collect();
    assert_eq!(statuses, [200.into(), 400.into(), 400.into()]);
    assert_eq!(spans[0].attribute("tollgate.rules"), ["d.user"].into());
    let errors: Vec<_> = spans.iter().map(|span| span.status.as_ref().map(|status| status.code)).collect();
    assert_eq!(errors, [None, Some(2), Some(2)]);
}

#[test]
fn queued_spans_are_sent_at_shutdown() {
    for protocol in ["http", "grpc"] {
        let receiver = Receiver::start(protocol == "grpc", None);
        let mut server = setup(protocol, receiver.port).env("OTEL_BSP_SCHEDULE_DELAY", "3600000").start();
        for _ in 0..5 {
            ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
        }
        assert_eq!(receiver.spans().len(), 0, "they are queued");
        assert!(server.process.stop().success());
        assert_eq!(receiver.spans().len(), 5, "{}", server.process.log());
    }
}

#[test]
fn sends_and_counts_nothing_when_disabled() {
    let receiver = Receiver::start(false, None);
    let server = setup("http", receiver.port).env("TRACING_ENABLED", "false").start();
    let sampled = [("b3", "1")];
    ask(&server, &request("d", &[&[("user", "ann")]]), &sampled);
    assert!(!get(server.ports.metrics, "/metrics").text().contains("tollgate_spans"));
    drop(server);
    assert_eq!(receiver.exports().len(), 0);
}

#[test]
fn many_spans_are_sent_in_batches_without_loss() {
    let receiver = Receiver::start(true, None);
    let server = setup("grpc", receiver.port)
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "50")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "100000")
        .start();
    let question = framed(&request("d", &[&[("user", "ann")]]));
    alone(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        for _ in 0..1000 {
            client.exchange(question.clone(), &HeaderMap::new()).await;
        }
    });
    let spans = receiver.wait_for(1000);
    let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| span.id.clone()).collect();
    assert_eq!((spans.len(), ids.len()), (1000, 1000), "each span arrives once");
    assert!(receiver.exports().iter().all(|export| export.spans.len() <= 50));
}

/// The longest response time of a hundred requests on one connection.
fn longest_of_a_hundred(server: &Server) -> Duration {
    let question = framed(&request("d", &[&[("user", "ann")]]));
    alone(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let mut longest = Duration::ZERO;
        for _ in 0..100 {
            let begun = Instant::now();
            let answer = client.exchange(question.clone(), &HeaderMap::new()).await;
            assert!(matches!(answer, Exchange::Answered(_)), "{answer:?}");
            longest = longest.max(begun.elapsed());
        }
        longest
    })
}
