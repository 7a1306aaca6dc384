//! The real Envoy in front of the real service: sends HTTP requests, and checks how Envoy applies the responses of the
//! service.

use serde_json::json;

use support::{
    bootstrap::{Service, Wanted, always, by_header},
    envoy::Envoy,
    server::{Server, Setup},
};

mod answers;
mod bytes;
mod failure;
mod hits;
mod limits;
mod modes;
pub(crate) mod quota;

/// Two requests an hour for each user.
const TWO_PER_USER: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
";

#[test]
fn requests_within_the_limit_reach_the_upstream_and_others_get_429() {
    let server = Server::start(TWO_PER_USER);
    let envoy = Envoy::start(&Wanted::of(&server, json!([by_header("user", "x-user")])));

    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 200, 429]);
    assert_eq!(envoy.statuses(1, &[("x-user", "bob")]), [200], "another user has a counter of its own");
    assert_eq!(envoy.upstream.seen().len(), 3, "a limited request is not forwarded");

    let limited = envoy.get(&[("x-user", "ann")]);
    assert_eq!(limited.header("x-envoy-ratelimited"), Some("true"));
}

#[test]
fn a_request_without_a_descriptor_is_not_sent_to_the_service() {
    let server = Server::start(TWO_PER_USER);
    let envoy = Envoy::start(&Wanted::of(&server, json!([by_header("user", "x-user")])));

    assert_eq!(envoy.statuses(3, &[]), [200, 200, 200]);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.ok"), 0);
}

#[test]
fn envoy_counts_the_decisions_of_the_service() {
    let server = Server::start(TWO_PER_USER);
    let envoy = Envoy::start(&Wanted::of(&server, json!([by_header("user", "x-user")])));

    envoy.statuses(5, &[("x-user", "ann")]);
    let counted =
        ["ok", "over_limit", "error"].map(|name| envoy.stat(&format!("cluster.upstream.ratelimit.{name}")));
    assert_eq!(counted, [2, 3, 0], "allowed, limited, failed");
    assert_eq!(envoy.stat("cluster.rate_limit.upstream_rq_total"), 5);
    assert_eq!(envoy.stat("cluster.rate_limit.upstream_cx_total"), 1, "one connection carries all requests");

    let metrics = server.metrics();
    let counted = |name: &str| {
        metrics.get(&format!("ratelimit_service_rate_limit_{name}{{domain=\"edge\",key1=\"user\"}}"))
    };
    assert_eq!(counted("total_hits"), Some(&5.0));
    assert_eq!(counted("over_limit"), Some(&3.0));
}

#[test]
fn envoy_writes_x_ratelimit_headers_from_the_statuses() {
    let server = Server::start(TWO_PER_USER);
    let filter = json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"});
    let wanted = Wanted { filter, ..Wanted::of(&server, json!([by_header("user", "x-user")])) };
    let envoy = Envoy::start(&wanted);

    let mut remaining = Vec::new();
    for _ in 0..3 {
        let answer = envoy.get(&[("x-user", "ann")]);
        assert_eq!(answer.header("x-ratelimit-limit"), Some("2, 2;w=3600"));
        let reset: u64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!((1..=3600).contains(&reset), "the window ends within the hour, not in {reset} seconds");
        remaining.push(answer.header("x-ratelimit-remaining").unwrap().to_owned());
    }
    assert_eq!(remaining, ["1", "0", "0"]);
}

#[test]
fn the_services_own_headers_reach_the_client() {
    let setup = Setup::new().rules("edge.yaml", TWO_PER_USER).env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
    let server = setup.env("LIMIT_REMAINING_HEADER", "X-Left").start();
    let envoy = Envoy::start(&Wanted::of(&server, json!([by_header("user", "x-user")])));

    for (status, left) in [(200, "1"), (200, "0"), (429, "0")] {
        let answer = envoy.get(&[("x-user", "ann")]);
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("ratelimit-limit"), Some("2"));
        assert_eq!(answer.header("x-left"), Some(left));
        assert!(answer.header("ratelimit-reset").is_some_and(|reset| reset.parse::<u64>().is_ok()));
    }
}

#[test]
fn every_descriptor_of_a_request_is_counted() {
    let rules = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: generic_key
    value: everyone
    rate_limit: {unit: hour, requests_per_unit: 3}
";
    let server = Server::start(rules);
    let limits = json!([by_header("user", "x-user"), always("generic_key", "everyone")]);
    let envoy = Envoy::start(&Wanted::of(&server, limits));

    assert_eq!(envoy.statuses(2, &[("x-user", "ann")]), [200, 200]);
    assert_eq!(envoy.statuses(2, &[("x-user", "bob")]), [200, 429], "the third request was everyone's last");
}

#[test]
fn envoy_can_use_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("tollgate.sock");
    let setup = Setup::new().rules("edge.yaml", TWO_PER_USER).env("GRPC_UDS", socket.to_str().unwrap());
    let server = setup.start();
    let limits = json!([by_header("user", "x-user")]);
    let envoy = Envoy::start(&Wanted { service: Service::Socket(&socket), ..Wanted::of(&server, limits) });

    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 200, 429]);
}
