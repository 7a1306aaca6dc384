//! `docs/reference/openapi.yaml`: it is valid, describes every call, and the replies match it.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use support::{client::request, http};

use super::{Admin, setup};

/// Python with the packages that check deployments.
const PYTHON: &str = "target/deploy-tools/bin/python";

/// Checks the document with replies, each with its method, path and status.
fn check(replies: &Value) {
    let mut child = Command::new(PYTHON)
        .args(["tests/operations/admin/described.py", "docs/reference/openapi.yaml"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tests/run installs Python's packages");
    serde_json::to_writer(child.stdin.take().unwrap(), replies).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// Requests, in this order, each with its method, path and body.
const REQUESTS: &[(&str, &str)] = &[
    ("GET", "/api/v1/status"),
    ("GET", "/api/v1/rules"),
    ("GET", "/api/v1/rules?by=hits&n=2&domain=shop"),
    ("GET", "/api/v1/rules?rule=shop.user"),
    ("GET", "/api/v1/rules?n=0"),
    ("GET", "/api/v1/top"),
    ("GET", "/api/v1/top?by=allowed&n=3&domain=shop&rule=shop.user"),
    ("GET", "/api/v1/top?domain=shop&descriptor=user=ann"),
    ("GET", "/api/v1/top?descriptor=user"),
    ("GET", "/api/v1/top?by=nothing"),
    ("GET", "/api/v1/refusals"),
    ("GET", "/api/v1/refusals?n=2&domain=shop&descriptor=user=ann&after=1"),
    ("GET", "/api/v1/refusals?n=2&domain=shop&descriptor=user=ann&replica=this"),
    ("GET", "/api/v1/refusals?shadowed=true"),
    ("GET", "/api/v1/refusals?shadowed=maybe"),
    ("GET", "/api/v1/top?by=shadowed"),
    ("GET", "/api/v1/refusals?replica=nobody"),
    ("GET", "/api/v1/top?unmatched=true"),
    ("GET", "/api/v1/refusals?descriptor="),
    ("GET", "/api/v1/status?nothing=1"),
    ("GET", "/api/v1/replicas"),
    ("GET", "/api/v1/counters?domain=shop&descriptor=user=ann"),
    ("GET", "/api/v1/counters?domain=shop&descriptor=user"),
    ("GET", "/api/v1/overrides"),
    ("GET", "/api/v1/overrides?domain=shop&request=user=ann"),
    ("GET", "/api/v1/overrides?request=,"),
    (
        "POST",
        "/api/v1/overrides {\"domain\":\"shop\",\"descriptor\":\"user=ann\",\"action\":\"block\",\"for\":\"1h\"}",
    ),
    (
        "POST",
        "/api/v1/overrides {\"domain\":\"shop\",\"descriptor\":[{\"key\":\"usr\"}],\"action\":\"limit\",\"requests_per_unit\":1,\"unit\":\"day\"}",
    ),
    (
        "POST",
        "/api/v1/overrides {\"domain\":\"shop\",\"descriptor\":\"usr\",\"action\":\"allow\",\"force\":true}",
    ),
    ("POST", "/api/v1/overrides {}"),
    (
        "POST",
        "/api/v1/override-preview {\"domain\":\"shop\",\"descriptor\":\"user=ann\",\"action\":\"block\",\"for\":\"1h\"}",
    ),
    ("POST", "/api/v1/override-preview {}"),
    (
        "POST",
        "/api/v1/overrides {\"domain\":\"*\",\"entry\":{\"key\":\"user\",\"value\":\"10.0.0.0/8\"},\"action\":\"block\"}",
    ),
    (
        "POST",
        "/api/v1/overrides {\"domain\":\"shop\",\"entry\":\"usr=*\",\"action\":\"allow\",\"force\":true}",
    ),
    (
        "POST",
        "/api/v1/try {\"rules\":\"domain: shop\\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\"}",
    ),
    ("POST", "/api/v1/try {\"rules\":\"domain: [\"}"),
    ("POST", "/api/v1/try {}"),
    ("GET", "/api/v1/domains"),
    (
        "POST",
        "/api/v1/domains {\"domain\":\"shop\",\"action\":\"shadow\",\"for\":\"2d\",\"reason\":\"test\"}",
    ),
    ("POST", "/api/v1/domains {\"domain\":\"*\",\"on_store_failure\":\"deny\",\"this_replica\":true}"),
    ("POST", "/api/v1/domains {\"domain\":\"shpo\",\"action\":\"allow\"}"),
    ("POST", "/api/v1/domains {\"domain\":\"shpo\",\"action\":\"allow\",\"force\":true}"),
    ("GET", "/api/v1/domains"),
    ("DELETE", "/api/v1/domains"),
    ("DELETE", "/api/v1/domains?domain=shpo&reason=test"),
    ("DELETE", "/api/v1/domains?domain=none"),
    ("GET", "/api/v1/overrides?n=1&offset=1&domain=shop&descriptor=user=ann&action=block"),
    ("GET", "/api/v1/overrides"),
    ("GET", "/api/v1/counters?domain=shop&descriptor=user=ann"),
    ("POST", "/api/v1/counters/reset {\"domain\":\"shop\",\"descriptor\":\"user=ann\",\"reason\":\"test\"}"),
    ("POST", "/api/v1/counters/reset {\"domain\":\"shop\",\"descriptor\":\"none=ann\"}"),
    ("DELETE", "/api/v1/overrides/0123"),
    ("POST", "/api/v1/imports"),
    ("POST", "/api/v1/imports"),
    ("POST", "/api/v1/imports/0123"),
    ("PUT", "/api/v1/imports/0123"),
    ("DELETE", "/api/v1/imports/0123"),
    ("GET", "/api/v1/changes"),
    ("GET", "/api/v1/why?value=ann"),
    ("GET", "/api/v1/why"),
    ("GET", "/api/v1/changes?n=1"),
    ("GET", "/api/v1/changes?n=0"),
    ("GET", "/api/v1/status?replica=this"),
    ("GET", "/api/v1/status"),
];

#[test]
fn every_reply_matches_the_openapi_document() {
    let (setup, port) = setup();
    let admin = Admin { server: setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").start(), port };
    admin.ask("ann", 5);
    admin.ask(&"x".repeat(1000), 3);
    for (domain, key) in [("shpo", "user"), ("shop", "usr")] {
        admin.server.ask(request(domain, &[&[(key, "ann")]])).unwrap();
    }
    admin.server.write("bad.yaml", "domain: [");
    let mut replies = Vec::new();
    for (method, path) in REQUESTS {
        let (path, body) = path.split_once(' ').unwrap_or((path, ""));
        let answer = http::send(admin.port, method, path, &JSON, body.as_bytes()).unwrap();
        let (status, body) = (answer.status, answer.json());
        replies.push(json!({ "method": method, "path": path, "status": status, "body": body }));
    }
    let origin = [("origin", "http://evil.test")];
    let answer = http::send(admin.port, "GET", "/api/v1/status", &origin, b"").unwrap();
    replies.push(json!({ "method": "GET", "path": "/api/v1/status", "status": 403, "body": answer.json() }));
    check(&json!(replies));
}

#[test]
fn the_openapi_document_has_all_calls() {
    let admin = Admin::start();
    let text = fs::read_to_string("docs/reference/openapi.yaml").unwrap();
    let document: Value = serde_yaml::from_str(&text).unwrap();
    for (path, calls) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "nothing");
        let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        for method in methods {
            let is_described = calls.get(method.to_lowercase()).is_some();
            if is_described && path.ends_with("/events") {
                continue;
            }
            let answer = http::send(admin.port, method, &path, &[], b"").unwrap();
            assert_eq!(answer.status != 405, is_described, "{method} {path}: {}", answer.text());
            let is_path = answer.text().contains("no such path");
            assert!(!is_path, "{method} {path}: {}", answer.text());
        }
    }
}
