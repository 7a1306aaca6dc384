//! From Envoy's configuration to the rules: `tollgate check --envoy` on configurations with mistakes, and compared with what
//! a real Envoy sends.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;

use support::{
    envoy::Envoy,
    server::{BINARY, Server},
};

mod go;
mod mistakes;

/// The JSON of `tollgate check --envoy`, and its exit code.
fn check(envoy: &str, rules: &str, more: &[&str]) -> (Value, Option<i32>) {
    check_with(envoy, rules, more, &[])
}

/// The same with these variables.
fn check_with(envoy: &str, rules: &str, more: &[&str], variables: &[(&str, &str)]) -> (Value, Option<i32>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("envoy.yaml"), envoy).unwrap();
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let output = Command::new(BINARY)
        .args(["check", "--json", "--envoy", "envoy.yaml", "rules.yaml"])
        .args(more)
        .envs(variables.iter().copied())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (json, output.status.code())
}

/// Hosts of `reached.yaml`, to each of which a request is sent.
const HOSTS: [&str; 12] = [
    "route",
    "host",
    "include",
    "include_option",
    "ignore",
    "own",
    "of_host",
    "disabled",
    "enabled",
    "direct",
    "stage",
    "actions",
];

/// What some configuration could send for them.
const DESCRIPTORS: [(&str, &[&str]); 25] = [
    ("route", &["host", "route"]),
    ("host", &["host"]),
    ("include", &["host", "route"]),
    ("include_option", &["host", "route"]),
    ("ignore", &["host"]),
    ("own", &["host", "host_own", "route", "route_own"]),
    ("of_host", &["host_own", "route"]),
    ("disabled", &["route"]),
    ("enabled", &["route"]),
    ("direct", &["host"]),
    ("stage", &["one", "two", "five", "six"]),
    ("filter", &["filter"]),
    ("destination_cluster", &["upstream", "other"]),
    ("generic_key", &["v", "w"]),
    ("remote_address", &[""]),
    ("masked_remote_address", &[""]),
    ("asked", &[""]),
    ("header_match", &["get", "post"]),
    ("query_match", &["q", "r"]),
    ("command", &["%ROUTE_NAME%", "actions"]),
    ("command_header", &["to-%ROUTE_NAME%", "to-actions"]),
    ("command_query", &["%ROUTE_NAME%", "actions"]),
    ("remote_address_match", &["actions"]),
    ("optional", &["v"]),
    ("unasked", &[""]),
];

const LIMIT: &str = "rate_limit: {unit: hour, requests_per_unit: 100}";

/// A rule for each descriptor, and rules with two entries.
fn rules() -> String {
    let rule = |key: &str, value: &str| {
        let below = if key == "optional" {
            format!(", descriptors: [{{key: absent, {LIMIT}}}]")
        } else {
            String::new()
        };
        format!("- {{key: {key}, value: '{value}', {LIMIT}{below}}}")
    };
    let singles = DESCRIPTORS.iter().flat_map(|(key, values)| values.iter().map(|value| rule(key, value)));
    let doubles = ["v", "w"]
        .map(|value| format!("- {{key: required, value: {value}, descriptors: [{{key: absent, {LIMIT}}}]}}"));
    let lines: Vec<String> = singles.chain(doubles).collect();
    format!("domain: reached\ndescriptors:\n{}\n", lines.join("\n"))
}

#[test]
fn rules_that_check_calls_unreached_are_those_that_a_real_envoy_does_not_reach() {
    unreached_are_those_of_envoy("", &rules());
}

#[test]
fn commands_in_values_are_filled_in_with_the_runtime_flag() {
    let runtime = "layered_runtime: {layers: [{name: flags, static_layer: \
                   {envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value: true}}]}\n";
    // Any value may come from a command, so no rule with one is out of reach.
    let rules: Vec<_> = rules().lines().filter(|line| !line.contains('%')).map(str::to_owned).collect();
    unreached_are_those_of_envoy(runtime, &(rules.join("\n") + "\n"));
}

/// Compares `check --envoy` with what an Envoy with this runtime sends.
fn unreached_are_those_of_envoy(runtime: &str, rules: &str) {
    let server = Server::start(rules);
    let config = runtime.to_owned() + &fs::read_to_string("tests/operations/connect/reached.yaml").unwrap();
    let envoy = Envoy::with(|[admin, listener], upstream, _| {
        let ports = [
            ("ADMIN", admin),
            ("LISTENER", listener),
            ("SERVICE", server.ports.grpc),
            ("UPSTREAM", upstream.port),
        ];
        ports.iter().fold(config.clone(), |config, (name, port)| {
            config.replace(&format!("port_value: {name}"), &format!("port_value: {port}"))
        })
    });
    for host in HOSTS {
        assert_eq!(envoy.send("GET", "/?q=1", &[("host", host)]).status, 200, "{host}");
    }
    assert_eq!(envoy.send("GET", "/", &[("host", "actions"), ("x-absent", "now")]).status, 200);

    let is_hit = |full_key: &String| {
        let keys = full_key.split('.').skip(1).enumerate();
        let labels: Vec<String> = keys.map(|(at, key)| format!("key{}=\"{key}\"", at + 1)).collect();
        let labels = labels.join(",");
        server.metric(&format!("ratelimit_service_rate_limit_total_hits{{domain=\"reached\",{labels}}}"))
            > 0.0
    };
    let shown = server.rules_shown();
    let (hit, missed): (BTreeSet<_>, BTreeSet<_>) =
        shown.iter().map(|line| line.split_once(": ").unwrap().0.to_owned()).partition(is_hit);
    assert!(hit.len() > 15 && missed.len() > 10, "{hit:?} {missed:?}");
    for config in [fs::read_to_string(envoy.config()).unwrap(), envoy.config_dump()] {
        let (report, _) = check(&config, rules, &[]);
        let messages =
            report["diagnostics"].as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap());
        let unreached = messages
            .filter_map(|message| message.strip_prefix("Envoy sends no descriptor that meets the rule `"));
        let unreached: BTreeSet<String> =
            unreached.map(|rest| rest.trim_end_matches('`').to_owned()).collect();
        assert_eq!(unreached, missed, "{report:#}");
        assert_eq!(report["envoy"]["unreached_rules"], missed.len());
    }
}
