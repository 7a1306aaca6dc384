//! Pages with `PROMETHEUS_MAPPER_YAML`, checked by promtool.

use std::{
    env, fs,
    io::Write,
    process::{Command, Stdio},
};

use super::{RULES, ask};
use support::{
    http,
    server::{Server, Setup},
};

const MAPPER: &str = r"
defaults:
  ttl: 1h
mappings:
- match: ratelimit.service.rate_limit.*.*.*
  name: rl_${3}_total
  labels: {domain: $1, rule: $2}
- match: ratelimit_server.*.response_time
  name: rl_response_milliseconds
  observer_type: histogram
  labels: {method: $1}
- match: '^ratelimit\.service\.call\.(.+)$'
  match_type: regex
  name: rl_failures_total
  labels: {why: $1}
- match: ratelimit_server.*.total_requests
  action: drop
";

/// A service with this mapper file.
pub(super) fn with_mapper(text: &str) -> (tempfile::TempDir, Setup) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mapper.yaml");
    fs::write(&path, text).unwrap();
    let setup = Setup::new().rules("d.yaml", RULES).env("PROMETHEUS_MAPPER_YAML", path.to_str().unwrap());
    (dir, setup)
}

fn page(server: &Server) -> String {
    http::get(server.ports.metrics, "/metrics").text()
}

/// The warnings of `promtool check metrics`, which must be able to parse the page.
fn complaints(page: &str) -> Vec<String> {
    let promtool = env::var("PROMTOOL_BIN").unwrap_or_else(|_| "promtool".to_owned());
    let mut child = Command::new(&promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{promtool} cannot be started ({error}); tests/run fetches it"));
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let warnings = String::from_utf8(output.stderr).unwrap();
    // Exit code 3 is a valid page with warnings about names.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}: {warnings}\n{page}", output.status);
    warnings.lines().map(ToOwned::to_owned).collect()
}

#[test]
fn promtool_accepts_pages_with_and_without_a_mapper() {
    let server = Server::start(RULES);
    ask(&server);
    let of_go = |line: &String| line.starts_with("ratelimit_");
    let unfit: Vec<_> = complaints(&page(&server)).into_iter().filter(|line| !of_go(line)).collect();
    assert!(unfit.is_empty(), "{unfit:#?}");

    let (_dir, setup) = with_mapper(MAPPER);
    let server = setup.start();
    ask(&server);
    let page = page(&server);
    let unfit: Vec<_> = complaints(&page).into_iter().filter(|line| !of_go(line)).collect();
    // This file sets a unit that is not a base unit.
    assert!(unfit.iter().all(|line| line.contains("rl_response_milliseconds")), "{unfit:#?}");
    for line in [
        r#"rl_total_hits_total{domain="d",rule="k_v"} 5"#,
        r#"rl_over_limit_total{domain="d",rule="k_v"} 2"#,
        r#"rl_failures_total{why="should_rate_limit.service_error"} 1"#,
        r#"rl_response_milliseconds_count{method="ShouldRateLimit"} 8"#,
        r#"rl_response_milliseconds_bucket{method="ShouldRateLimit",le="20"} "#,
        r#"ratelimit_service_rate_limit_domain_not_found{domain="nowhere"} 1"#,
        "ratelimit_service_config_load_success 1",
        "tollgate_rules 2",
    ] {
        assert!(page.lines().any(|seen| seen.starts_with(line)), "{line}\n{page}");
    }
    assert!(!page.contains("total_requests"), "{page}");
    server.wait_for_log(&["mapper.yaml: warning: `ttl` has no effect"]);
}

#[test]
fn a_missing_file_is_logged_and_ignored() {
    let server =
        Setup::new().rules("d.yaml", RULES).env("PROMETHEUS_MAPPER_YAML", "/nowhere/conf.yaml").start();
    ask(&server);
    assert!(page(&server).contains(r#"ratelimit_service_rate_limit_over_limit{domain="d",key1="k_v"} 2"#));
    server.wait_for_log(&["PROMETHEUS_MAPPER_YAML: /nowhere/conf.yaml does not exist"]);
}
