//! Starts with and without a control plane.

use proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor, service::ratelimit::v3::RateLimitRequest,
};

use super::*;
use support::{PATIENCE, client::descriptor};

#[test]
fn opens_no_port_before_the_control_plane_is_reached() {
    let address = format!("127.0.0.1:{}", free_port());
    let mut server = setup(&address).launch();
    server.wait_for_log(&[&address, "cannot connect"]);
    for port in [server.ports.grpc, server.ports.http] {
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
    let control_plane = ControlPlane::start_at(&address, &[]);
    control_plane.publish("1", &[limit("a", "d", "k", 5)]);
    eventually("the ports are open", || {
        let connected = std::net::TcpStream::connect(("127.0.0.1", server.ports.debug));
        connected.map(drop).map_err(|error| error.to_string())
    });
    assert_eq!(server.rules_shown(), [shown("d", "k", 5)]);
    server.process.signal("TERM");
    assert!(server.process.wait(PATIENCE).unwrap().success());
}

#[test]
fn a_service_without_rules_stops_on_a_signal() {
    let mut server = setup(&format!("127.0.0.1:{}", free_port())).launch();
    server.process.wait_until_log("the service has started", |log| holds(!log.is_empty(), String::new));
    server.process.signal("TERM");
    assert!(server.process.wait(PATIENCE).unwrap().success());
}

#[test]
fn a_forced_start_returns_an_error_until_rules_are_loaded() {
    let address = format!("127.0.0.1:{}", free_port());
    let setup = setup(&address).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let server = setup.env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").start();
    let status = server.ask(request("d", &[&[("k", "v")]])).unwrap_err();
    assert_eq!(status.message(), "no rate limit configuration loaded");
    assert_eq!(http::get(server.ports.http, "/healthcheck").status, 500);
    assert_eq!(sample(&server, "tollgate_xds_connected"), Some(0.0));
    wait_for_sample(&server, "tollgate_xds_reconnects_total", |reconnects| reconnects > 1.0);

    let control_plane = ControlPlane::start_at(&address, &[]);
    control_plane.publish("1", &[limit("a", "d", "k", 5)]);
    wait_for(&server, &[shown("d", "k", 5)]);
    eventually("the service is healthy", || {
        let status = http::get(server.ports.http, "/healthcheck").status;
        holds(status == 200, || status.to_string())
    });
}

#[test]
fn starts_after_an_invalid_first_update() {
    let (_control_plane, server) = subscribed("1", &[json!({"hex": "ff"})]);
    let status = server.ask(request("d", &[&[("k", "v")]])).unwrap_err();
    assert_eq!(status.message(), "no rate limit configuration loaded");
}

/// The gateway checks without counting before a call, and counts the used tokens after it.
#[test]
fn works_with_the_environment_of_envoy_ai_gateway() {
    let control_plane = ControlPlane::start();
    let quota =
        |key| json!({"key": key, "quota_mode": true, "rate_limit": {"unit": "HOUR", "requests_per_unit": 5}});
    let descriptors = [quota("small"), quota("large")];
    control_plane
        .publish("1", &[json!({"config": {"name": "d", "domain": "d", "descriptors": descriptors}})]);
    let server = Setup::new()
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", &control_plane.address)
        .env("CONFIG_GRPC_XDS_NODE_ID", "envoy-ai-gateway-ratelimit")
        .start();
    assert_eq!(control_plane.event("request")["request"]["node"]["id"], "envoy-ai-gateway-ratelimit");
    let ask = |models: &[&str], tokens| {
        let one =
            |model: &&str| RateLimitDescriptor { hits_addend: Some(tokens), ..descriptor(&[(model, "v")]) };
        let descriptors = models.iter().map(one).collect();
        let answer = server.ask(RateLimitRequest { descriptors, ..request("d", &[]) }).unwrap();
        (answer.overall_code, answer.statuses[0].limit_remaining)
    };
    let (ok, over) = (1, 2);
    assert_eq!(
        [ask(&["small"], 0), ask(&["small"], 0)],
        [(ok, 5), (ok, 5)],
        "a check without hits counts nothing"
    );
    assert_eq!([ask(&["small"], 3), ask(&["small"], 0)], [(ok, 2), (ok, 2)]);
    assert_eq!([ask(&["small"], 4), ask(&["small"], 0)], [(over, 0), (over, 0)]);
    assert_eq!(ask(&["small", "large"], 0), (ok, 0), "another quota is left");
}
