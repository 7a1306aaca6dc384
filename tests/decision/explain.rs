//! `tollgate explain`: files, settings, exit codes, and that its results are those of the service.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use support::{
    client::request,
    clock::Clock,
    process::printed,
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

fn write(dir: &Path, name: &str, text: &str) -> String {
    fs::write(dir.join(name), text).unwrap();
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn the_exit_code_is_0_if_every_descriptor_matches_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "shop.yaml", RULES);
    let bad = write(dir.path(), "bad.yaml", "domain: bad\ndescriptors: [{kye: k}]\n");
    for (args, code, text) in [
        (&["--rules", &*file, "shop", "client=ann"][..], 0, "client=ann: matches rule shop.client ("),
        (&["shop", "client=ann", "client=vip1", "--rules", &file], 0, "matches rule shop.client_vip* ("),
        (&["--rules", &file, "shop", "client=ann", "c=d"], 1, "c=d: no rule matches"),
        (&["--rules", &file, "shops", "client=ann"], 1, "unknown domain \"shops\"; did you mean \"shop\"?"),
        (&["--rules", &file, "--rules", &bad, "shop", "client=ann"], 2, "bad.yaml:2:"),
        (&["--rules", dir.path().to_str().unwrap(), "shop", "client=ann"], 2, "unknown key `kye`"),
        (&["--rules", "/nowhere/at/all", "shop", "client=ann"], 2, "/nowhere"),
        (&["--rules", &file, "shop"], 2, "expected a domain and descriptors: DOMAIN KEY=VALUE"),
        (&["--rules", &file, "shop", "client"], 2, "\"client\" has no ="),
        (&[], 2, "Usage: tollgate explain [OPTIONS] DOMAIN KEY=VALUE[,KEY=VALUE]..."),
        (&["--rules", &file, "--json", "shop", "client=vip1"], 0, "\"key\": \"shop.client_vip*\""),
        (&["--json", "--rules", &file, "shop", "clint=ann"], 1, "\"similar_spelling\""),
    ] {
        let output = explain(args, &[]);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", printed(&output));
        assert!(printed(&output).contains(text), "no {text:?} in\n{}", printed(&output));
    }
}

#[test]
fn every_rule_is_printed_with_its_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "shop.yaml", RULES);
    let more = write(dir.path(), "more.yaml", &RULES.replace("domain: shop", "\n\ndomain: other"));
    let output = printed(&explain(&["--rules", &file, "--rules", &more, "shop", "client=ann"], &[]));
    assert!(output.starts_with(&format!("client=ann: matches rule shop.client ({file}:4)\n")), "{output}");
    assert!(output.contains(&format!("client_vip*  {file}:7  the pattern does not match")), "{output}");
    let output = printed(&explain(&["--rules", &file, "--rules", &more, "other", "client=vip"], &[]));
    assert!(output.contains(&format!("matches rule other.client_vip* ({more}:9)\n")), "{output}");
}

#[test]
fn reads_the_rules_that_the_service_would_read() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("config")).unwrap();
    write(root.path(), "config/shop.yaml", RULES);
    let variables = [("RUNTIME_ROOT", root.path().to_str().unwrap()), ("CACHE_KEY_PREFIX", "edge:")];
    let output = explain(&["shop", "client=ann"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(printed(&output).contains("    counter edge:shop_client_ann_"), "{}", printed(&output));
    let output = explain(&["shop", "client=ann"], &[("LIMIT_POLICY_HEADERS", "maybe")]);
    assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
    assert!(printed(&output).contains("LIMIT_POLICY_HEADERS=\"maybe\""), "{}", printed(&output));
}

#[test]
fn the_over_limit_response_is_that_of_the_service() {
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
    // Both contain the seconds until the end of the day, so both must run within the same second.
    let both = || {
        let answered = ask();
        let output = explain(&["--rules", &file, "--json", "shop", "client=ann"], &variables);
        let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
        let headers: Vec<_> = answered
            .response_headers_to_add
            .iter()
            .map(|header| serde_json::json!({"name": header.key, "value": header.value}))
            .collect();
        let body = String::from_utf8(answered.raw_body).unwrap();
        (serde_json::json!({"headers": headers, "body": body}), explained["over_limit_response"].clone())
    };
    let (answered, explained) =
        (0..20).map(|_| both()).find(|(answered, explained)| answered == explained).unwrap_or_else(both);
    assert_eq!(answered, explained);
    let names: Vec<_> =
        explained["headers"].as_array().unwrap().iter().map(|header| &header["name"]).collect();
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
