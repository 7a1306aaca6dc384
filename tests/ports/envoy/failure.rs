//! An unreachable service: Envoy allows or rejects requests according to its filter, and calls the service again when
//! it is back.

use serde_json::json;

use super::TWO_PER_USER;
use crate::support::{
    bootstrap::{Wanted, by_header},
    envoy::Envoy,
    server::{Server, Setup},
};

#[test]
fn without_the_service_requests_pass_when_the_filter_fails_open() {
    let mut server = Server::start(TWO_PER_USER);
    let limits = json!([by_header("user", "x-user")]);
    let envoy = Envoy::start(&Wanted::of(&server, limits));
    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 200, 429]);

    server.process.stop();
    assert_eq!(envoy.statuses(2, &[("x-user", "ann")]), [200, 200]);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 2);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.failure_mode_allowed"), 2);
}

#[test]
fn without_the_service_requests_fail_when_the_filter_fails_closed() {
    let mut server = Server::start(TWO_PER_USER);
    let filter = json!({"failure_mode_deny": true});
    let wanted = Wanted { filter, ..Wanted::of(&server, json!([by_header("user", "x-user")])) };
    let envoy = Envoy::start(&wanted);
    assert_eq!(envoy.statuses(1, &[("x-user", "ann")]), [200]);

    server.process.stop();
    assert_eq!(envoy.statuses(2, &[("x-user", "ann")]), [500, 500]);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 2);
}

#[test]
fn a_service_without_good_rules_is_an_error_to_envoy() {
    let server = Setup::new().rules("edge.yaml", "domain: edge\ndescriptors: [{value: no key}]\n").start();
    let envoy = Envoy::start(&Wanted::of(&server, json!([by_header("user", "x-user")])));

    assert_eq!(envoy.statuses(2, &[("x-user", "ann")]), [200, 200]);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 2);

    server.write("edge.yaml", TWO_PER_USER);
    server.wait_for_rule("edge.user: unit=HOUR");
    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 200, 429]);
}
