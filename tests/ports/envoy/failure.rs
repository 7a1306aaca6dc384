//! An unreachable service: Envoy allows or rejects requests according to its filter, and calls the service again when
//! it is back.

use std::process::Command;

use serde_json::json;

use super::TWO_PER_USER;
use support::{
    bootstrap::{Wanted, by_header},
    envoy::Envoy,
    eventually, holds, http,
    ports::free_port,
    process::printed,
    server::{BINARY, Server, Setup},
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

/// What Envoy counts as an error, the service counts once it reads that Envoy has given up.
#[test]
fn a_frozen_service_counts_the_requests_that_envoy_gave_up() {
    let admin = free_port();
    let address = format!("127.0.0.1:{admin}");
    let server = Setup::new().rules("edge.yaml", TWO_PER_USER).env("ADMIN_ADDR", &address).start();
    let filter = json!({"timeout": "0.5s"});
    let wanted = Wanted { filter, ..Wanted::of(&server, json!([by_header("user", "x-user")])) };
    let envoy = Envoy::start(&wanted);
    // The connection is open before.
    eventually("Envoy has an answer in time", || {
        envoy.get(&[("x-user", "ann")]);
        holds(envoy.stat("cluster.upstream.ratelimit.ok") > 0, String::new)
    });
    let error = || envoy.stat("cluster.upstream.ratelimit.error");
    let sent = || server.metric("tollgate_callers_left_total{decision=\"sent\"}");
    let before = (error(), sent());
    server.process.signal("STOP");
    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200; 3]);
    server.process.signal("CONT");
    assert_eq!(error() - before.0, 3);
    eventually("they are counted", || {
        let counted = sent() - before.1;
        holds((counted - 3.0).abs() < 0.5, || counted.to_string())
    });
    let given_up = eventually("the status has them", || {
        let answers = http::get(admin, "/api/v1/status").json()["answers"].take();
        let abandoned = answers["abandoned"].as_u64().unwrap();
        holds(abandoned >= 3, || answers.to_string()).map(|()| abandoned)
    });
    let status = Command::new(BINARY).args(["status", "--admin", &address]).output().unwrap();
    let shown = printed(&status);
    assert!(shown.contains(&format!("{given_up} abandoned by their callers")), "{shown}");
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
