//! The example rules of the project: they load without warnings, and decide as their comments describe.

use std::{path::Path, process::Command};

use proto::envoy::service::ratelimit::v3::{
    RateLimitRequest,
    rate_limit_response::{Code, DescriptorStatus},
};

use support::{
    client::{Client, request},
    clock::Clock,
    server::{BINARY, Server, Setup},
};

/// The lesson as `cargo run --release` serves it, with metadata enabled.
fn served() -> Server {
    Setup::bare(Path::new(env!("CARGO_MANIFEST_DIR"))).env("RESPONSE_DYNAMIC_METADATA", "true").start()
}

/// The codes of this many equal requests.
fn ask(client: &Client, count: usize, descriptors: &[&[(&str, &str)]]) -> Vec<Code> {
    let asked = || client.ask(request("lesson", descriptors)).unwrap().overall_code();
    (0..count).map(|_| asked()).collect()
}

fn status(client: &Client, entries: &[(&str, &str)]) -> DescriptorStatus {
    client.ask(request("lesson", &[entries])).unwrap().statuses.remove(0)
}

fn passes(count: usize) -> Vec<Code> {
    vec![Code::Ok; count]
}

/// This many that pass, then one that is rejected.
fn passes_then_not(count: usize) -> Vec<Code> {
    [passes(count), vec![Code::OverLimit]].concat()
}

#[test]
fn the_lesson_has_no_warnings() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let output = Command::new(BINARY).arg("check").arg(config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("warning"), "{said}");
}

#[test]
fn every_example_of_the_lesson_decides_as_described() {
    // The lesson has limits per minute, and a whole minute is left.
    let _clock = Clock::ordinary().enter();
    let server = served();
    let client = server.client();

    for address in ["192.0.2.1", "192.0.2.2"] {
        assert_eq!(ask(&client, 6, &[&[("remote_address", address)]]), passes_then_not(5), "1: {address}");
    }
    assert_eq!(ask(&client, 50, &[&[("remote_address", "127.0.0.1")]]), passes(50), "2");

    assert_eq!(ask(&client, 3, &[&[("api", "orders"), ("method", "POST")]]), passes_then_not(2), "3");
    assert_eq!(ask(&client, 21, &[&[("api", "orders"), ("method", "GET")]]), passes_then_not(20), "3");
    assert_eq!(status(&client, &[("api", "orders")]).current_limit, None, "3");

    for path in ["/files/a", "/files/b"] {
        assert_eq!(ask(&client, 11, &[&[("path", path)]]), passes_then_not(10), "4: {path}");
    }
    assert_eq!(ask(&client, 2, &[&[("path", "/search/a")]]), passes(2), "5");
    assert_eq!(ask(&client, 2, &[&[("path", "/search/b")]]), passes_then_not(1), "5");

    assert_eq!(ask(&client, 120, &[&[("client", "app")]]), passes(120), "6");
    let metrics = server.metrics();
    let shadow = "ratelimit_service_rate_limit_shadow_mode{domain=\"lesson\",key1=\"client_app\"}";
    assert_eq!(metrics.get(shadow), Some(&20.0), "6");
}

#[test]
fn the_quotas_of_the_lesson_lead_from_one_model_to_the_other() {
    // The lesson has limits per minute, and a whole minute is left.
    let _clock = Clock::ordinary().enter();
    let server = served();
    let client = server.client();
    let both = || request("lesson", &[&[("model", "large")], &[("model", "small")]]);
    let routes: Vec<_> = (0..11).map(|_| route(&client, both())).collect();
    let large =
        [Some("large-model".to_owned()), Some("large-model".to_owned()), Some("large-model".to_owned())];
    assert_eq!(routes[..3], large);
    assert_eq!(routes[3..10], vec![Some("small-model".to_owned()); 7]);
    assert_eq!(routes[10], None, "both quotas are exhausted");
}

/// The route in the answer's metadata, unless the request is rejected.
fn route(client: &Client, request: RateLimitRequest) -> Option<String> {
    let answer = client.ask(request).unwrap();
    if answer.overall_code() == Code::OverLimit {
        return None;
    }
    let metadata = answer.dynamic_metadata.expect("metadata is enabled");
    let rules = metadata.fields["metadata"].clone();
    let Some(prost_types::value::Kind::StructValue(rules)) = rules.kind else { panic!("{rules:?}") };
    match &rules.fields["route"].kind {
        Some(prost_types::value::Kind::StringValue(route)) => Some(route.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn gold_is_checked_against_its_own_limit_only() {
    // The lesson has limits per minute, and a whole minute is left.
    let _clock = Clock::ordinary().enter();
    let server = served();
    let client = server.client();
    let gold: &[&[(&str, &str)]] = &[&[("remote_address", "192.0.2.9")], &[("plan", "gold")]];
    assert_eq!(ask(&client, 61, gold), passes_then_not(60));
    let untouched = status(&client, &[("remote_address", "192.0.2.9")]);
    assert_eq!(untouched.limit_remaining, 4, "requests of gold do not count for the address");
}
