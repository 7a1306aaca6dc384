//! `POST /api/v1/try`: rules on the last recorded requests.

use serde_json::{Value, json};

use super::{Admin, RULES, setup};
use support::{client::request, eventually, holds, http, process::assert_exit};

fn post(port: u16, rules: &str) -> http::Answer {
    let body = json!({"rules": rules}).to_string();
    http::send(port, "POST", "/api/v1/try", &[("content-type", "application/json")], body.as_bytes()).unwrap()
}

fn limited_to(requests: u32) -> String {
    RULES.replace("requests_per_unit: 2", &format!("requests_per_unit: {requests}"))
}

/// The reply once as many requests were recorded.
fn tried(port: u16, rules: &str, requests: u64) -> Value {
    let mut reply = Value::Null;
    eventually("the requests are recorded", || {
        let answer = post(port, rules);
        reply = serde_json::from_str(&answer.text()).unwrap_or_default();
        holds(reply["report"]["requests"] == requests, || answer.text())
    });
    reply
}

#[test]
fn rules_are_tried_on_recorded_requests_and_nothing_changes() {
    let admin = Admin::start();
    let changes = eventually("the start is a change", || {
        let changes = admin.get("/api/v1/changes");
        holds(changes["changes"] != json!([]), || changes.to_string()).map(|()| changes)
    });
    assert_eq!((admin.ask("ann", 5), admin.ask("bob", 2)), (3, 0));
    let wider = tried(admin.port, &limited_to(4), 7);
    let numbers = |reply: &Value| {
        let report = &reply["report"];
        ["refused", "newly_refused", "newly_allowed"].map(|name| report[name].as_u64().unwrap())
    };
    assert_eq!((wider["refused_now"].as_u64(), numbers(&wider)), (Some(3), [1, 0, 2]), "{wider}");
    let key = &wider["report"]["newly_allowed_keys"][0];
    assert_eq!((&key["descriptor"], &key["requests"]), (&json!("user=ann"), &json!(2)));
    let stricter = tried(admin.port, &limited_to(1), 7);
    assert_eq!(numbers(&stricter), [5, 2, 0], "{stricter}");
    assert_eq!(stricter["recorded"]["share_of_keys"], 1.0);
    let other = tried(admin.port, &RULES.replace("domain: shop", "domain: other"), 0);
    assert_eq!(numbers(&other), [0, 0, 0]);
    assert_eq!((admin.ask("bob", 1), admin.ask("cid", 2)), (1, 0), "the rules in force are those before");
    assert_eq!(admin.get("/api/v1/changes"), changes);
}

#[test]
fn the_other_files_of_a_domain_stay_as_they_are() {
    let (setup, port) = setup();
    let other =
        "domain: shop\ndescriptors:\n- {key: other, rate_limit: {unit: year, requests_per_unit: 1}}\n";
    let server = setup.rules("other.yaml", other).env("MERGE_DOMAIN_CONFIG", "true").start();
    for _ in 0..3 {
        server.ask(request("shop", &[&[("user", "ann")]])).unwrap();
        server.ask(request("shop", &[&[("other", "x")]])).unwrap();
    }
    let numbers = |rules: &str| {
        let reply = tried(port, rules, 6);
        let report = &reply["report"];
        ["refused", "newly_refused", "newly_allowed"].map(|name| report[name].as_u64().unwrap())
    };
    assert_eq!(numbers(RULES), [3, 0, 0], "as in force");
    assert_eq!(numbers(&limited_to(1)), [4, 1, 0], "in place of the file with these descriptors");
    assert_eq!(numbers(&other.replace("requests_per_unit: 1", "requests_per_unit: 9")), [1, 0, 2]);
    let new = "domain: shop\ndescriptors: [{key: new, rate_limit: {unit: year, requests_per_unit: 1}}]";
    assert_eq!(numbers(new), [3, 0, 0], "a file more");
}

#[test]
fn mistakes_have_a_place() {
    let admin = Admin::start();
    for (rules, expected) in [
        (
            "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hours, requests_per_unit: 1}}",
            "rules:3:31: ",
        ),
        ("domain: d\n  x: 1", "rules:2"),
        ("", "rules"),
        ("descriptors: []", "domain"),
    ] {
        let answer = post(admin.port, rules);
        assert_eq!(answer.status, 400, "{rules}: {}", answer.text());
        let error =
            serde_json::from_str::<Value>(&answer.text()).unwrap()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(expected), "{rules}: {error}");
    }
    let many = format!("domain: d\ndescriptors:\n{}", "- {}\n".repeat(50));
    assert!(post(admin.port, &many).text().contains("and 30 more"));
    let large = "x".repeat(2 << 20);
    assert!([400, 413].contains(&post(admin.port, &large).status));
}

#[test]
fn a_read_only_service_tries_and_one_that_records_nothing_says_so() {
    let (setup, port) = setup();
    let server = setup.env("ADMIN_READ_ONLY", "true").start();
    assert_eq!(post(port, RULES).status, 200);
    drop(server);
    for (name, value) in [("KEY_VALUES", "hidden"), ("RECENT_REQUESTS_MAX_BYTES", "0")] {
        let (setup, port) = self::setup();
        let _server = setup.env(name, value).start();
        let answer = post(port, RULES);
        assert_eq!(answer.status, 409, "{}", answer.text());
        assert!(answer.text().contains(name), "{}", answer.text());
    }
}

#[test]
fn a_change_is_forecast_before_it_is_made() {
    let admin = Admin::start();
    admin.ask("ann", 5);
    admin.ask("bob", 2);
    let json = [("content-type", "application/json")];
    let forecast = |body: &str| {
        eventually("the requests are recorded", || {
            let answer =
                http::send(admin.port, "POST", "/api/v1/override-preview", &json, body.as_bytes()).unwrap();
            let is_ready = answer.status != 200 || answer.json()["forecast"]["requests"] == 7;
            holds(is_ready, || answer.text()).map(|()| (answer.status, answer.json()))
        })
    };
    let limit = |descriptor: &str, n: u64| {
        let body = serde_json::json!({
            "domain": "shop", "descriptor": descriptor, "action": "limit", "requests_per_unit": n, "unit": "hour",
        });
        let (status, reply) = forecast(&body.to_string());
        assert_eq!(status, 200, "{reply}");
        let number = |name: &str| reply["forecast"][name].as_u64().unwrap();
        (number("newly_refused"), number("newly_allowed"), reply)
    };
    let (more, fewer, reply) = limit("user=ann", 4);
    assert_eq!(
        (more, fewer, &reply["rule"], &reply["warning"]),
        (0, 2, &"shop.user".into(), &Value::Null),
        "{reply}"
    );
    assert_eq!(limit("user=bob", 1).0, 1);
    assert_eq!(limit("user", 1).0, 2);
    let (.., reply) = limit("user=anne", 4);
    let warning = "no request of the last minutes had user=anne; did you mean user=ann?";
    assert_eq!(reply["warning"], warning, "{reply}");
    assert_eq!(admin.get("/api/v1/overrides")["total"], 0, "nothing is set");
    let changes = admin.get("/api/v1/changes").to_string();
    assert!(!changes.contains("override"), "{changes}");
    assert_eq!(forecast(r#"{"domain":"shop","descriptor":"user=ann","action":"nonsense"}"#).0, 400);
    let dry = admin.run(&["override", "set", "shop", "user=bob", "--limit", "1/hour", "--dry-run"]);
    assert_exit(&dry, 0, &["1 more of 7 recorded requests would be refused\nnot set: "]);
    assert_eq!(admin.get("/api/v1/overrides")["total"], 0, "nothing is set");
    let set = admin.run(&["override", "set", "shop", "user=bob", "--limit", "1/hour"]);
    assert_exit(&set, 0, &["1 more of 7 recorded requests would be refused\n"]);
    let misspelt = admin.run(&["override", "set", "shop", "user=anne", "--limit", "4/hour"]);
    let said = String::from_utf8(misspelt.stderr).unwrap();
    assert!(said.contains(warning), "{said}");
    // New rules, from a file.
    let new = RULES.replace("requests_per_unit: 2}", "requests_per_unit: 1}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.yaml");
    std::fs::write(&path, &new).unwrap();
    let would = admin.run(&["check", path.to_str().unwrap()]);
    assert_exit(&would, 0, &["new.yaml: 1 more of 7 recorded requests would be refused"]);
}
