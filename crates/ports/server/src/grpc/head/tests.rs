//! The routes of heads, their timeouts, and the fields that are kept.

use super::*;

const PATH: &str = DecisionRpc::ShouldRateLimit.name();

const GOOD: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":path", PATH), ("content-type", "application/grpc")];

fn head(fields: &[(&str, &str)], is_traced: bool) -> Head {
    let mut read = Fields::default();
    for (name, value) in fields {
        read.add(name.as_bytes(), value.as_bytes(), is_traced);
    }
    read.finish(is_traced)
}

#[test]
fn distinguishes_calls_by_path_method_and_content_type() {
    let with = |at: usize, value: &str| {
        let mut fields = GOOD.to_vec();
        fields[at].1 = value;
        head(&fields, false).route
    };
    assert_eq!(with(2, "/grpc.health.v1.Health/Watch"), Route::Rpc(Rpc::Watch));
    assert_eq!(with(2, "/s/other"), Route::NoSuchMethod);
    assert_eq!(with(2, &"/".repeat(4000)), Route::NoSuchMethod);
    assert_eq!(with(0, "GET"), Route::NotPost(DecisionRpc::ShouldRateLimit));
    for (content, route) in [
        ("application/grpc+proto", Rpc::Decision(DecisionRpc::ShouldRateLimit)),
        ("application/grpc; charset=utf-8", Rpc::Decision(DecisionRpc::ShouldRateLimit)),
        ("application/json", Rpc::NotGrpc),
    ] {
        assert_eq!(with(3, content), Route::Rpc(route), "{content}");
    }
    assert_eq!(head(&GOOD[..3], false).route, Route::Rpc(Rpc::NotGrpc));
    let other = [GOOD[0], GOOD[1], (":path", "/s/other")];
    assert_eq!(head(&other, false).route, Route::Rpc(Rpc::NotGrpc), "whatever its path");
}

#[test]
fn parses_grpc_timeouts() {
    for (text, expected) in [
        ("20m", Some(Duration::from_millis(20))),
        ("1H", Some(Duration::from_secs(3600))),
        ("2M", Some(Duration::from_secs(120))),
        ("99999999n", Some(Duration::from_nanos(99_999_999))),
        ("0u", Some(Duration::ZERO)),
        ("", None),
        ("m", None),
        ("-1m", None),
        ("1x", None),
        ("100000000S", None),
    ] {
        assert_eq!(grpc_timeout(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn fields_of_the_tracer_are_kept_up_to_a_limit() {
    let traced = |path, is_traced, state: &str| {
        let long = "x".repeat(5000);
        let more = [("authorization", &*long), ("tracestate", state), ("tracestate", "b=2")];
        let mut fields = [GOOD.as_slice(), &more].concat();
        fields[2].1 = path;
        head(&fields, is_traced).traced
    };
    assert!(traced(PATH, false, "a=1").is_none());
    assert!(traced("/grpc.health.v1.Health/Check", true, "a=1").is_none());
    let long = "x".repeat(MAX_KEPT - "tracestatetracestateb=2".len());
    let too_long = long.clone() + "x";
    for (state, kept) in [("a=1", &["a=1", "b=2"][..]), (&long, &[&long, "b=2"]), (&too_long, &[&too_long])] {
        let fields = traced(PATH, true, state).unwrap();
        assert_eq!(fields.get_all("tracestate").iter().collect::<Vec<_>>(), kept);
        assert_eq!(fields.get("authorization"), None);
    }
}
