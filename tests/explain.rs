//! `tollgate explain`, as a script sees it: files, settings, exit codes, and that it says what the service
//! does.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::support::{
    client::request,
    clock::Clock,
    server::{BINARY, Setup},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: client
    over_limit_body: '{\"again\": {retry_after}}'
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: client
    value: 'vip*'
    rate_limit: {unit: day, requests_per_unit: 9}
";

fn explain(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("explain").args(args).stdin(Stdio::null());
    Clock::current().apply(&mut command);
    command.envs(variables.iter().copied()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    fs::write(dir.join(name), text).unwrap();
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn the_exit_code_says_whether_a_rule_is_met() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "shop.yaml", RULES);
    let bad = write(dir.path(), "bad.yaml", "domain: bad\ndescriptors: [{kye: k}]\n");
    for (args, code, told) in [
        (&[&*file, "shop client=ann"][..], 0, "shop.client is met"),
        (&[&file, "--json", "shop client=vip1"], 0, "\"key\": \"shop.client_vip*\""),
        (&["--json", &file, "shop clint=ann"], 1, "\"spelled_otherwise\""),
        (&[&file, "shops client=ann"], 1, "is shop meant?"),
        (&[&file, &bad, "shop client=ann"], 2, "bad.yaml:2:"),
        (&[dir.path().to_str().unwrap(), "shop client=ann"], 2, "unknown key `kye`"),
        (&["/nowhere/at/all", "shop client=ann"], 2, "/nowhere"),
        (&[&file], 2, "in one argument: 'domain key=value,key=value'"),
        (&[], 2, "Usage: tollgate explain [OPTIONS] [RULES]... 'DOMAIN KEY=VALUE,...'"),
    ] {
        let output = explain(args, &[]);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(told), "{told:?} in\n{}", said(&output));
    }
}

#[test]
fn rules_are_looked_for_where_the_server_would() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("config")).unwrap();
    write(root.path(), "config/shop.yaml", RULES);
    let variables = [("RUNTIME_ROOT", root.path().to_str().unwrap()), ("CACHE_KEY_PREFIX", "edge:")];
    let output = explain(&["shop client=ann"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("counted under edge:shop_client_ann_"), "{}", said(&output));
    let output = explain(&["shop client=ann"], &[("LIMIT_POLICY_HEADERS", "maybe")]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("LIMIT_POLICY_HEADERS=\"maybe\""), "{}", said(&output));
}

#[test]
fn a_refusal_is_told_as_the_service_answers_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "shop.yaml", RULES);
    let variables = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RETRY_AFTER_HEADER", "Retry-After"),
        ("LIMIT_POLICY_HEADERS", "true"),
    ];
    let setup = Setup::new().rules("shop.yaml", RULES);
    let server = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value)).start();
    let ask = || server.ask(request("shop", &[&[("client", "ann")]])).unwrap();
    ask();
    // Both tell the seconds until the day ends, so both are asked within one of them.
    let both = || {
        let answered = ask();
        let output = explain(&[&file, "--json", "shop client=ann"], &variables);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let headers: Vec<_> = answered
            .response_headers_to_add
            .iter()
            .map(|header| serde_json::json!({"name": header.key, "value": header.value}))
            .collect();
        let body = String::from_utf8(answered.raw_body).unwrap();
        (serde_json::json!({"headers": headers, "body": body}), told["refusal"].clone())
    };
    let (answered, told) =
        (0..20).map(|_| both()).find(|(answered, told)| answered == told).unwrap_or_else(both);
    assert_eq!(answered, told);
    let names: Vec<_> = told["headers"].as_array().unwrap().iter().map(|header| &header["name"]).collect();
    assert_eq!(
        names,
        [
            "RateLimit-Limit",
            "RateLimit-Remaining",
            "RateLimit-Reset",
            "Retry-After",
            "RateLimit-Policy",
            "RateLimit",
            "content-type"
        ]
    );
}
