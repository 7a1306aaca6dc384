//! The parent of a span and the sampling decision, from the headers of callers and of a real Envoy.

use serde_json::json;

use super::{CALL, ask, setup};
use support::{
    bootstrap::{Wanted, by_header},
    client::request,
    envoy::Envoy,
    eventually, holds,
    receiver::Receiver,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn a_span_is_the_callers_child() {
    let receiver = Receiver::start(false, None);
    // Without a decision of the caller, nothing is sampled.
    let server = setup("http", receiver.port).env("TRACING_SAMPLING_RATE", "0").start();
    let (w3c, b3) = (format!("00-{TRACE}-{SPAN}-01"), format!("{TRACE}-{SPAN}-1"));
    let ways: [&[(&'static str, &str)]; 3] = [
        &[("traceparent", &w3c), ("tracestate", "vendor=1")],
        &[("b3", &b3)],
        &[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")],
    ];
    for (at, headers) in ways.into_iter().enumerate() {
        ask(&server, &request("d", &[&[("user", "ann")]]), headers);
        let span = receiver.wait_for(at + 1)[at].clone();
        assert_eq!((span.trace, span.parent), (bytes(TRACE), bytes(SPAN)));
        assert_eq!(span.flags, 0x301, "the parent belongs to another service");
        assert_eq!(span.trace_state, if at == 0 { "vendor=1" } else { "" });
    }
}

#[test]
fn the_caller_decides_the_sampling() {
    let receiver = Receiver::start(false, None);
    let mut server = setup("http", receiver.port).env("TRACING_SAMPLING_RATE", "1").start();
    let question = request("d", &[&[("user", "ann")]]);
    let w3c = format!("00-{TRACE}-{SPAN}-00");
    for headers in [
        &[("traceparent", &*w3c)][..],
        &[("b3", "0")],
        &[("x-b3-sampled", "0")],
        &[("b3", &format!("{TRACE}-{SPAN}-0"))],
    ] {
        ask(&server, &question, headers);
    }
    ask(&server, &question, &[("x-b3-flags", "1")]);
    assert!(server.process.stop().success());
    let spans = receiver.spans();
    assert_eq!((spans.len(), spans[0].parent.len()), (1, 0), "the last one alone");
}

#[test]
fn a_span_is_the_child_of_envoys_span() {
    let receiver = Receiver::start(true, None);
    let server = setup("grpc", receiver.port).env("TRACING_SAMPLING_RATE", "0").start();
    let tracing = json!({
        "random_sampling": {"value": 100},
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": {"envoy_grpc": {"cluster_name": "collector"}},
                "service_name": "envoy",
            },
        },
    });
    let limits = json!([by_header("user", "x-user")]);
    let wanted = Wanted { tracing, collector: Some(receiver.port), ..Wanted::of(&server, limits) };
    let envoy = Envoy::start(&wanted);
    assert_eq!(envoy.statuses(1, &[("x-user", "ann")]), [200]);
    eventually("both have exported", || {
        let spans = receiver.spans();
        let ours = spans.iter().find(|span| span.name == CALL).ok_or("no span of the service")?;
        let parent = spans.iter().find(|span| span.id == ours.parent).ok_or("no parent")?;
        holds(parent.trace == ours.trace && parent.name != CALL, || format!("{parent:?}"))
    });
}
