//! The pages about Envoy: every configuration runs in a real Envoy, and every request is typed.

use std::{fs, process::Command};

use serde_json::{Value, json};

use super::{BINARY, Block, blocks, compiled, read};
use support::{envoy::Envoy, eventually, holds, server::Server};

/// The guide has the whole configuration, the others what recipes change in it.
const PAGES: [&str; 4] = [
    "docs/guide/envoy.md",
    "docs/reference/envoy.md",
    "docs/reference/envoy-recipes.md",
    "docs/guide/budgets.md",
];

/// What the page says before a session of requests, since the session before.
#[derive(Default)]
struct Recipe {
    rules: Option<Block>,
    parts: Vec<Block>,
}

#[test]
fn every_configuration_of_the_pages_limits_as_shown() {
    let texts = PAGES.map(read);
    let function = texts[0].lines().find(|line| line.starts_with("status() {")).unwrap();
    let mut base = None;
    let (mut recipe, mut sessions, mut differences) = (Recipe::default(), 0, Vec::new());
    for block in texts.iter().flat_map(|text| blocks(text)) {
        match block.purpose() {
            _ if block.is("shell-session") => {
                let base: &Value = base.as_ref().expect("the first block is a whole configuration");
                differences.extend(play(base, &std::mem::take(&mut recipe), function, &block));
                sessions += 1;
            }
            _ if block.is_rules_file() => recipe.rules = Some(block),
            Some("envoy") => base = Some(yaml(&block.text)),
            Some("route" | "routes" | "manager" | "filter" | "cluster" | "istio") => recipe.parts.push(block),
            _ => {}
        }
    }
    assert_eq!((sessions, differences), (21, Vec::<String>::new()), "the start, Istio and 19 recipes");
}

/// Runs a session against the service and an Envoy of this recipe. Returns the differences from the page.
fn play(base: &Value, recipe: &Recipe, function: &str, session: &Block) -> Vec<String> {
    let rules = recipe.rules.as_ref().expect("a recipe has rules");
    assert!(compiled(rules).rules.is_some());
    let mut config = base.clone();
    for part in &recipe.parts {
        apply(&mut config, part);
    }
    let server = Server::start(&rules.text);
    let mut port = 0;
    let envoy = Envoy::with(|[admin, listener], upstream, _| {
        port = listener;
        // The service behind Envoy is the test's.
        config["static_resources"]["listeners"].as_array_mut().unwrap().truncate(1);
        config["admin"] =
            json!({"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}});
        let ports = [(10000, listener), (10001, upstream.port), (8081, server.ports.grpc)];
        // A busy test machine may miss the 20 ms.
        let config = config.to_string().replace("\"0.02s\"", "\"5s\"");
        ports.iter().fold(config, |config, (from, to)| {
            config.replace(&format!("\"port_value\":{from}}}"), &format!("\"port_value\":{to}}}"))
        })
    });
    let mut differences = remarks(&envoy, &rules.text);
    for (command, shown) in session.steps() {
        let typed = command
            .replace("localhost:10000", &format!("localhost:{port}"))
            .replace("localhost:9090", &format!("localhost:{}", server.ports.metrics));
        let output = Command::new("sh").args(["-c", &format!("{function}\n{typed}")]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        if said != shown {
            differences.push(format!("line {}: $ {command}\n{said}", session.line));
        }
        // The end of the stream may be charged.
        eventually("Envoy has no call under way", || {
            let calls = envoy.stat("cluster.tollgate.upstream_rq_active");
            holds(calls == 0, || format!("{calls} calls"))
        });
    }
    differences
}

/// What `tollgate check --envoy` remarks about a recipe, which is nothing.
fn remarks(envoy: &Envoy, rules: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yaml");
    fs::write(&file, rules).unwrap();
    let mut check = Command::new(BINARY);
    let output =
        check.args(["check", "--deny-warnings", "--envoy"]).arg(envoy.config()).arg(file).output().unwrap();
    let said = || String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Vec::new() } else { vec![said()] }
}

/// Applies a part of a recipe to the configuration.
fn apply(config: &mut Value, part: &Block) {
    if part.purpose() == Some("cluster") {
        return merge(&mut config["static_resources"]["clusters"][1], yaml(&part.text));
    }
    let manager =
        &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    match part.purpose().unwrap() {
        "filter" => {
            let filters = manager["http_filters"].as_array_mut().unwrap();
            let limits = filters.iter_mut().find(|filter| filter["name"] == "envoy.filters.http.ratelimit");
            merge(&mut limits.unwrap()["typed_config"], yaml(&part.text));
        }
        "route" => merge(&mut manager["route_config"]["virtual_hosts"][0]["routes"][0], yaml(&part.text)),
        "routes" => manager["route_config"]["virtual_hosts"][0]["routes"] = yaml(&part.text),
        "manager" => {
            let mut fields = yaml(&part.text);
            let mut filters = fields["http_filters"].as_array().cloned().unwrap_or_default();
            filters.extend(manager["http_filters"].as_array().unwrap().clone());
            fields["http_filters"] = filters.into();
            merge(manager, fields);
        }
        _ => {
            // As Istio does: the filter comes before the router, and the second value is merged into the host.
            let values: Vec<Value> = part
                .text
                .split("---\n")
                .map(|document| yaml(document)["spec"]["configPatches"][0]["patch"]["value"].clone())
                .collect();
            manager["http_filters"][0] = values[0].clone();
            let host = &mut manager["route_config"]["virtual_hosts"][0];
            host["routes"][0]["route"].as_object_mut().unwrap().remove("rate_limits").unwrap();
            merge(host, values[1].clone());
            let service = &values[0]["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"];
            config["static_resources"]["clusters"][0]["name"] = service["cluster_name"].clone();
        }
    }
}

/// Replaces fields of a map by those of another, map by map.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
}
