//! Values with which the Pods would not work, or would show a password: the chart is not rendered, and says what to change.

use std::{env, fmt::Write as _, fs, process::Command};

use support::server::BINARY;

use super::{
    super::{output, read, root},
    CHART, files, rendered,
};

const RULES: &str = "rules.existingConfigMap=my-rules";

/// The error of the chart with these values.
fn refused(arguments: &[&str]) -> String {
    match rendered(arguments) {
        Ok(_) => panic!("rendered with {arguments:?}"),
        Err(error) => error,
    }
}

#[test]
fn broken_rules_are_refused() {
    let limit = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let good = format!("domain: d\n{limit}");
    for (rules, parts) in [
        (&[("a.yaml", "domain: [")][..], ["rules.files[a.yaml]", "invalid YAML"]),
        (&[("a.yaml", "- domain")], ["rules.files[a.yaml]", "invalid YAML"]),
        (
            &[("a.yaml", &good), ("b.yaml", limit)],
            ["rules.files[b.yaml]", "Begin the file with `domain: NAME`"],
        ),
        (&[("a.yaml", "")], ["rules.files[a.yaml]", "no `domain`"]),
        (&[("a.yaml", "domain: d")], ["rules.files[a.yaml]", "no `descriptors`"]),
        (
            &[("a.yaml", &good), ("b.yaml", &good)],
            ["rules.files[b.yaml]", "set settings.MERGE_DOMAIN_CONFIG to true"],
        ),
    ] {
        let error = refused(&["--set-json", &files(rules)]);
        assert!(parts.iter().all(|part| error.contains(part)), "{rules:?}: {error}");
    }
    let twice = files(&[("a.yaml", &good), ("b.yaml", &good)]);
    for merging in
        ["settings.MERGE_DOMAIN_CONFIG=true", "extraEnv[0].name=MERGE_DOMAIN_CONFIG,extraEnv[0].value=T"]
    {
        rendered(&["--set-json", &twice, "--set", merging]).unwrap();
    }
}

#[test]
fn unknown_settings_are_refused() {
    let error = refused(&["--set", &format!("{RULES},settings.REDIS_PIPELINE_WINDW=1ms")]);
    assert!(error.contains("settings.REDIS_PIPELINE_WINDW: there is no such setting"), "{error}");
    rendered(&["--set", &format!("{RULES},extraEnv[0].name=TZ,extraEnv[0].value=UTC")]).unwrap();
}

#[test]
fn the_settings_that_the_chart_knows_are_those_of_the_service() {
    let mut wanted = String::new();
    for line in output(Command::new(BINARY).arg("settings")).lines() {
        if let Some((name, _)) = line.strip_prefix("| `").and_then(|line| line.split_once('`')) {
            // Writing to a String cannot fail.
            let _ = writeln!(wanted, "{name}");
        }
    }
    assert!(wanted.lines().count() > 200, "{wanted}");
    let file = format!("{CHART}/files/settings.txt");
    if env::var_os("TOLLGATE_WRITE_DOCS").is_some() {
        return fs::write(root().join(file), wanted).unwrap();
    }
    assert!(read(&file) == wanted, "{file}: TOLLGATE_WRITE_DOCS=1 cargo test --test deploy rewrites it");
}

#[test]
fn passwords_that_the_deployment_would_show_are_refused_and_not_repeated() {
    let redis = "store.type=redis,store.redis.url";
    let second = "store.redis.perSecond.enabled=true,store.redis.perSecond.url";
    for (set, path, secret) in [
        (format!("{redis}=redis://:hunter2@redis:6379"), "store.redis.url", "store.redis.auth"),
        (format!("{redis}=user:hunter2@redis:6379"), "store.redis.url", "store.redis.auth"),
        (
            format!("{redis}=redis:6379,{second}=user:hunter2@redis:6380"),
            "store.redis.perSecond.url",
            "store.redis.perSecond.auth",
        ),
        (
            "settings.REDIS_URL=redis://:hunter2@redis:6379".to_owned(),
            "settings.REDIS_URL",
            "store.redis.auth",
        ),
        ("settings.REDIS_AUTH=hunter2".to_owned(), "settings.REDIS_AUTH", "store.redis.auth"),
        (
            "extraEnv[0].name=REDIS_SENTINEL_AUTH,extraEnv[0].value=hunter2".to_owned(),
            "REDIS_SENTINEL_AUTH",
            "store.redis.sentinelAuth",
        ),
    ] {
        let error = refused(&["--set", &format!("{RULES},{set}")]);
        assert!(error.contains(&format!("{path}: a password here is shown")), "{error}");
        assert!(error.contains(&format!("{secret}.existingSecret")) && !error.contains("hunter2"), "{error}");
    }
    let secret = "extraEnv[0].name=REDIS_AUTH,extraEnv[0].valueFrom.secretKeyRef.name=redis,extraEnv[0].valueFrom.secretKeyRef.key=auth";
    rendered(&["--set", &format!("{RULES},{redis}=redis:6379,{secret}")]).unwrap();
}

#[test]
fn ports_and_probes_that_nobody_reaches_are_refused() {
    let probe = |name: &str, probe: &str| format!("probes.{name}={{\"exec\": null, {probe}}}");
    let get = |port: &str| format!("\"httpGet\": {{\"path\": \"/\", \"port\": {port}}}");
    let none = "workers=1";
    for (set, json, parts) in [
        (
            "settings.DEBUG_HOST=127.0.0.1",
            probe("liveness", &get("\"debug\"")),
            [
                "probes.liveness.httpGet: the kubelet cannot reach the port debug with DEBUG_HOST=127.0.0.1",
                "[/bin/tollgate, health, --live]",
            ],
        ),
        (
            "settings.DEBUG_HOST=127.0.0.1",
            probe("startup", &get("6070")),
            ["probes.startup.httpGet", "[/bin/tollgate, health, --live]"],
        ),
        (
            "settings.HOST=localhost",
            probe("readiness", &get("\"http\"")),
            ["probes.readiness.httpGet", "[/bin/tollgate, health]"],
        ),
        (
            "tls.enabled=true,tls.existingSecret=grpc",
            probe("readiness", "\"grpc\": {\"port\": 8081}"),
            ["probes.readiness.grpc: the kubelet's gRPC probes know neither TLS nor sockets", "health]"],
        ),
        (
            none,
            "probes.liveness={\"tcpSocket\": {\"port\": 8081}}".to_owned(),
            ["Kubernetes allows one of exec and tcpSocket", "Set probes.liveness.exec to null"],
        ),
        (
            "settings.GRPC_HOST=127.0.0.1",
            String::new(),
            ["GRPC_HOST=127.0.0.1: Envoys of other Pods", "Leave it unset"],
        ),
        (
            "settings.PROMETHEUS_ADDR=[::1]:9090,serviceMonitor.enabled=true",
            String::new(),
            ["PROMETHEUS_ADDR=[::1]:9090: Prometheus (serviceMonitor.enabled)", "Leave it unset"],
        ),
        (
            "admin.enabled=true,admin.existingSecret=admin,settings.ADMIN_ADDR=127.0.0.1:6071",
            String::new(),
            ["ADMIN_ADDR=127.0.0.1:6071: its users (admin.enabled)", "Leave it unset"],
        ),
        ("settings.PORT=0", String::new(), ["PORT: expected a fixed port", "got 0"]),
        (
            "settings.SHUTDOWN_DELAY=90s",
            String::new(),
            ["settings.SHUTDOWN_DELAY", "set shutdown.delaySeconds"],
        ),
    ] {
        let json = if json.is_empty() { "podLabels={}".to_owned() } else { json };
        let error = refused(&["--set", &format!("{RULES},{set}"), "--set-json", &json]);
        assert!(parts.iter().all(|part| error.contains(part)), "{set} {json}: {error}");
    }
    // A socket in a shared directory serves Envoys of the node.
    for set in [
        "settings.GRPC_HOST=127.0.0.1,settings.GRPC_UDS=/run/tollgate.sock",
        "settings.PROMETHEUS_ADDR=127.0.0.1:9090",
    ] {
        rendered(&["--set", &format!("{RULES},{set}")]).unwrap();
    }
    rendered(&["--set", RULES, "--set-json", &probe("liveness", &get("\"debug\""))]).unwrap();
}
