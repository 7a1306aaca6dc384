//! Accepted and rejected updates, and the answers that the control plane receives.

use super::*;

#[test]
fn rules_are_loaded_changed_and_removed() {
    let (control_plane, server) = subscribed("1", &[limit("a", "a", "k", 5), limit("b", "b", "k", 6)]);
    assert_eq!(server.rules_shown(), [shown("a", "k", 5), shown("b", "k", 6)], "before the first request");
    let begin = control_plane.event("request");
    let begin = &begin["request"];
    assert_eq!(begin["type_url"], "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig");
    assert_eq!((&begin["node"]["id"], &begin["version_info"]), (&json!("tests"), &Value::Null));
    let accepted = control_plane.answer();
    assert_eq!((&accepted["version_info"], &accepted["response_nonce"]), (&json!("1"), &json!("n1")));
    let remaining =
        |domain| server.ask(request(domain, &[&[("k", "v")]])).unwrap().statuses[0].limit_remaining;
    assert_eq!((remaining("a"), remaining("b")), (4, 5));

    control_plane.publish("2", &[limit("a", "a", "k", 7), limit("b", "b", "k", 6)]);
    wait_for(&server, &[shown("a", "k", 7), shown("b", "k", 6)]);
    assert_eq!(control_plane.acknowledged("2")["response_nonce"], "n2");
    assert_eq!((remaining("a"), remaining("b")), (5, 4), "counters are kept");

    control_plane.publish("3", &[limit("b", "b", "k", 6)]);
    wait_for(&server, &[shown("b", "k", 6)]);
    control_plane.publish("4", &[limit("c", "c", "k", 8)]);
    wait_for(&server, &[shown("c", "k", 8)]);
    control_plane.publish("5", &[]);
    wait_for(&server, &[]);
    control_plane.acknowledged("5");
    let metrics = server.metrics();
    for (name, expected) in [
        ("ratelimit_service_config_load_success", 5.0),
        ("ratelimit_service_config_load_error", 0.0),
        ("tollgate_xds_connected", 1.0),
        ("tollgate_xds_updates_total", 5.0),
        ("tollgate_xds_nacks_total", 0.0),
        ("tollgate_xds_reconnects_total", 0.0),
        ("tollgate_xds_version{version=\"5\"}", 1.0),
    ] {
        assert_eq!(metrics.get(name), Some(&expected), "{name}");
    }
}

#[test]
fn an_unchanged_update_is_accepted_and_not_loaded() {
    let (control_plane, server) = subscribed("1", &[limit("a", "a", "k", 5), limit("b", "b", "k", 6)]);
    control_plane.publish("2", &[limit("b", "b", "k", 6), limit("a", "a", "k", 5)]);
    control_plane.acknowledged("2");
    assert_eq!(sample(&server, "ratelimit_service_config_load_success"), Some(1.0));
}

#[test]
fn an_invalid_update_is_rejected_reported_and_repaired() {
    let (control_plane, server) = subscribed("1", &[limit("a", "d", "k", 5)]);
    control_plane.acknowledged("1");
    let bad = json!({"config": {"name": "eg/default", "domain": "d", "descriptors": [
        {"key": "a"}, {"key": "b"}, {"key": "c", "rate_limit": {"unit": 9, "requests_per_unit": 1}}]}});
    control_plane.publish("2", &[bad, limit("z", "", "k", 1)]);
    let refused = control_plane.answer();
    assert_eq!((&refused["version_info"], &refused["response_nonce"]), (&json!("1"), &json!("n2")));
    assert_eq!(refused["error_detail"]["code"], 3);
    let detail = refused["error_detail"]["message"].as_str().unwrap().to_owned();
    for expected in [
        "resource eg/default: error: unknown unit `9` (at descriptors[2].rate_limit.unit); accepted (case-insensitive): \
         second",
        "resource z: error: the resource has no domain",
    ] {
        assert!(detail.contains(expected), "{expected:?} in {detail:?}");
    }
    server.wait_for_log(&[
        "resource eg/default: error: unknown unit `9` (at descriptors[2].rate_limit.unit)",
        "keeping previous rules",
    ]);
    let page = server.rules_shown().join("\n");
    assert!(page.contains(&shown("d", "k", 5)) && page.contains("unknown unit"), "{page}");
    assert_eq!(sample(&server, "tollgate_xds_nacks_total"), Some(1.0));
    assert_eq!(sample(&server, "ratelimit_service_config_load_error"), Some(1.0));
    assert_eq!(sample(&server, "tollgate_xds_version{version=\"1\"}"), Some(1.0));

    control_plane.publish("3", &[limit("a", "d", "k", 6)]);
    wait_for(&server, &[shown("d", "k", 6)]);
    control_plane.acknowledged("3");
}

#[test]
fn ten_thousand_descriptors_of_five_megabytes_are_accepted() {
    let many = json!({"config": {"name": "a", "domain": "d"}, "many": 10_000, "width": 500});
    let (control_plane, server) = subscribed("1", &[many]);
    control_plane.acknowledged("1");
    assert_eq!(sample(&server, "tollgate_rules"), Some(10_000.0));
    let value = format!("{:0500}", 77);
    let answer = server.ask(request("d", &[&[("k", &value)]])).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 76);
}

#[test]
fn names_the_variable_of_the_size_limit_of_a_response() {
    let control_plane = ControlPlane::start();
    control_plane.publish("1", &[json!({"config": {"name": "a", "domain": "d"}, "many": 100, "width": 500})]);
    let setup = setup(&control_plane.address).env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000");
    let server = setup.env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").start();
    server.wait_for_log(&["the limit is XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"]);
    control_plane.publish("2", &[limit("a", "d", "k", 5)]);
    wait_for(&server, &[shown("d", "k", 5)]);
}
