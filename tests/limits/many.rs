//! As many rules as the memory allows: sets that the Go service takes are taken with the defaults of a machine, and refused
//! where the memory is too small, with an error that says what to do.

use std::{fmt::Write as _, time::Duration};

use serde_json::json;

use super::xds;
use support::{
    client::request,
    control_plane::ControlPlane,
    holds, or_deep,
    server::{Server, Setup},
    within,
};

/// Plain rules as they are written in files, with indentation.
fn written(rules: usize) -> String {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for number in 0..rules {
        write!(
            text,
            "  - key: k\n    value: v{number}\n    rate_limit:\n      unit: hour\n      requests_per_unit: 7\n"
        )
        .unwrap();
    }
    text
}

fn wait_for_rules(server: &Server, rules: usize) {
    let loaded = within(Duration::from_secs(300), || {
        let seen = server.metrics().get("tollgate_rules").copied();
        holds(seen == Some(rules as f64), || format!("{seen:?}\n{}", server.process.log()))
    });
    loaded.unwrap_or_else(|last| panic!("{rules} rules are not loaded; last seen: {last}"));
}

#[test]
fn takes_as_many_rules_of_a_file_as_the_memory_allows() {
    for &rules in or_deep(&[60_000][..], &[60_000, 300_000]) {
        let server = Setup::new().start();
        server.write("many.yaml", &written(rules));
        wait_for_rules(&server, rules);
        let last = format!("v{}", rules - 1);
        let answer = server.ask(request("d", &[&[("k", &last)]])).unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 6);
    }
}

#[test]
fn takes_as_many_rules_of_a_control_plane_as_the_memory_allows() {
    for &rules in or_deep(&[60_000][..], &[60_000, 300_000]) {
        // A rule has 100 bytes: 60,000 are 6 MB.
        let many = json!({"config": {"name": "a", "domain": "d"}, "many": rules, "width": 80});
        let control_plane = ControlPlane::start();
        control_plane.publish("1", &[many]);
        let setup = xds::setup(&control_plane.address).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
        let server = setup.start();
        wait_for_rules(&server, rules);
        let value = format!("{:080}", 77);
        let answer = server.ask(request("d", &[&[("k", &value)]])).unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 76);
    }
}

#[test]
fn refuses_more_rules_than_a_small_memory_allows_and_says_what_to_do() {
    let server = Setup::new().env("MEMORY_LIMIT", "64Mi").start();
    server.write("many.yaml", &written(60_000));
    server.wait_for_log(&[
        "many.yaml: error: the files up to this one exceed the limit of",
        "raise MEMORY_LIMIT",
    ]);
    // Few bytes, and many values.
    server.write("many.yaml", &format!("domain: d\ndescriptors: [{}]\n", "{},".repeat(60_000)));
    server.wait_for_log(&[
        "many.yaml: error: the file has more than",
        "raise MEMORY_LIMIT or RULES_MAX_VALUES",
    ]);

    let control_plane = ControlPlane::start();
    let publish = |version, rules, width| {
        let many = json!({"config": {"name": "a", "domain": "d"}, "many": rules, "width": width});
        control_plane.publish(version, &[many]);
    };
    publish("1", 60_000, 80);
    let setup = xds::setup(&control_plane.address).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let server = setup.env("MEMORY_LIMIT", "64Mi").start();
    server.wait_for_log(&["the limit is XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "raise it or MEMORY_LIMIT"]);
    // A response of fewer bytes, and too many messages.
    publish("2", 20_000, 5);
    server.wait_for_log(&["the response: error: more than", "raise MEMORY_LIMIT or RULES_MAX_VALUES"]);
}
