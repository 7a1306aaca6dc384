//! Rules that change at run time.

use std::{env, fs, os::unix::fs::symlink, path::Path};

use crate::support::{
    client::request,
    eventually, holds,
    load::Load,
    server::{Server, Setup},
};

/// A limit for the key, in requests per hour.
fn rules(key: &str, limit: u32) -> String {
    format!(
        "domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
    )
}

/// The line of that limit in `/rlconfig`.
fn shown(key: &str, limit: u32) -> String {
    format!("d.{key}: unit=HOUR requests_per_unit={limit},")
}

#[test]
fn detects_files_that_are_written_renamed_created_or_removed() {
    let server = Server::start(&rules("a", 1));
    let dir = server.rules_dir();

    fs::write(dir.join("rules.yaml"), rules("a", 2)).unwrap();
    server.wait_for_rule(&shown("a", 2));
    server.write("rules.yaml", &rules("a", 3));
    server.wait_for_rule(&shown("a", 3));

    fs::write(dir.join("more.yaml"), rules("b", 4).replace("domain: d", "domain: e")).unwrap();
    server.wait_for_rule("e.b: unit=HOUR requests_per_unit=4,");
    fs::rename(dir.join("more.yaml"), server.dir().join("more.yaml")).unwrap();
    eventually("the rules of a removed file are gone", || {
        let shown = server.rules_shown();
        holds(shown.len() == 1, || format!("{shown:?}"))
    });
    fs::create_dir(dir.join("deeper")).unwrap();
    fs::rename(server.dir().join("more.yaml"), dir.join("deeper").join("more.yaml")).unwrap();
    server.wait_for_rule("e.b: unit=HOUR requests_per_unit=4,");
}

#[test]
fn detects_a_swap_of_the_root_symlink() {
    let dir = tempfile::tempdir().unwrap();
    let version = |name: &str, limit: u32| {
        let config = dir.path().join(name).join("config");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("d.yaml"), rules("a", limit)).unwrap();
    };
    version("v1", 1);
    version("v2", 2);
    let current = dir.path().join("current");
    symlink("v1", &current).unwrap();
    let setup = Setup::new().env("RUNTIME_ROOT", current.to_str().unwrap()).env("RUNTIME_SUBDIRECTORY", "");
    let server = setup.env("RUNTIME_WATCH_ROOT", "true").start();
    server.wait_for_rule(&shown("a", 1));

    swap(&current, "v2");
    server.wait_for_rule(&shown("a", 2));
    swap(&current, "v1");
    server.wait_for_rule(&shown("a", 1));
}

#[test]
fn reads_a_config_map_update_once() {
    let server = Setup::new().start();
    let dir = server.rules_dir();
    let version = |name: &str, limit: u32| {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("d.yaml"), rules("a", limit)).unwrap();
    };
    version("..2026_01_01", 1);
    symlink("..2026_01_01", dir.join("..data")).unwrap();
    symlink("..data/d.yaml", dir.join("d.yaml")).unwrap();
    server.wait_for_rule(&shown("a", 1));

    version("..2026_01_02", 2);
    swap(&dir.join("..data"), "..2026_01_02");
    fs::remove_dir_all(dir.join("..2026_01_01")).unwrap();
    server.wait_for_rule(&shown("a", 2));
    assert_eq!(server.rules_shown().len(), 1);
}

/// Replaces a symlink atomically.
fn swap(link: &Path, to: &str) {
    let new = link.with_file_name("..new");
    symlink(to, &new).unwrap();
    fs::rename(&new, link).unwrap();
}

#[test]
fn an_invalid_file_keeps_the_previous_rules() {
    let server = Server::start(&rules("a", 5));
    let errors = |server: &Server| {
        let metrics = server.metrics();
        metrics.get("ratelimit_service_config_load_error").copied().unwrap_or_default()
    };
    assert!(errors(&server) < 0.5, "the first load succeeded");

    server.write("rules.yaml", "domain: d\ndescriptors:\n  - kee: a\n");
    eventually("the failed load is counted", || {
        let errors = errors(&server);
        holds(errors > 0.5, || format!("{errors}"))
    });
    server.wait_for_log(&["rules.yaml", "kee"]);
    let page = server.rules_shown().join("\n");
    assert!(page.contains(&shown("a", 5)) && page.contains("kee"), "the served rules and the error: {page}");
    let answer = server.ask(request("d", &[&[("a", "v")]])).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 4, "the previous rules are served");

    server.write("rules.yaml", &rules("a", 6));
    server.wait_for_rule(&shown("a", 6));
}

#[test]
fn unchanged_rules_keep_their_counters() {
    let server = Server::start(&rules("a", 5));
    let remaining =
        |server: &Server| server.ask(request("d", &[&[("a", "v")]])).unwrap().statuses[0].limit_remaining;
    assert_eq!([remaining(&server), remaining(&server)], [4, 3]);

    let more =
        format!("{}  - {{key: b, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n", in_block("a", 5));
    server.write("rules.yaml", &more);
    server.wait_for_rule(&shown("b", 1));
    assert_eq!(remaining(&server), 2);
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\"}";
    assert_eq!(server.metrics().get(hits), Some(&3.0), "and their statistics");
}

/// As [`rules`], in block style, so that rules can be appended.
fn in_block(key: &str, limit: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}\n"
    )
}

/// `TOLLGATE_TEST_RELOADS` sets the number of reloads.
#[test]
fn reloads_under_load_lose_no_request() {
    let reloads: u32 = env::var("TOLLGATE_TEST_RELOADS").map_or(50, |text| text.parse().unwrap());
    let limit = |reload: u32| 1_000_000_000 + reload;
    let server = Server::start(&rules("k", limit(0)));
    let load = Load::start(&[server.ports.grpc], 4, &request("d", &[&[("k", "v")]]));
    for reload in 1..=reloads {
        server.write("rules.yaml", &rules("k", limit(reload)));
        server.wait_for_rule(&shown("k", limit(reload)));
    }
    let mut outcome = load.stop();
    let p999 = outcome.p999();
    println!("{reloads} reloads, {} answers, 99.9 % within {p999:?}", outcome.answered);
    outcome.assert_nothing_lost();
    let loads = server.metrics().get("ratelimit_service_config_load_success").copied().unwrap_or_default();
    assert!(loads > f64::from(reloads), "{loads} loads are counted");
}
