//! The command line: what it prints, and the exit code that a script goes by.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::support::{
    client::request,
    ports::free_port,
    server::{BINARY, Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";

fn tollgate(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Both outputs.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn check(dir: &Path) -> Output {
    tollgate(&["check", dir.to_str().unwrap()])
}

/// `tollgate request` of the service on this port.
fn ask(port: u16, domain: &str, descriptors: &[&str]) -> Output {
    let address = format!("127.0.0.1:{port}");
    tollgate(&[&["request", "--addr", &address, domain], descriptors].concat())
}

#[test]
fn check_says_nothing_bad_about_good_rules() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("d.yaml"), RULES).unwrap();
    let output = check(dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn check_tells_every_error_of_every_file_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let bad = "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 2}\n  - value: v\n";
    fs::write(dir.path().join("a.yaml"), bad).unwrap();
    fs::write(dir.path().join("b.yaml"), "domain: b\ndescriptors:\n  - kye: k\n").unwrap();
    let output = check(dir.path());
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    for told in ["a.yaml:4:", "fortnight", "a.yaml:5:", "b.yaml:3:", "kye"] {
        assert!(said.contains(told), "{told:?} in\n{said}");
    }
}

#[test]
fn check_warns_without_failing() {
    let dir = tempfile::tempdir().unwrap();
    let odd = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: 2, shadow_mode: true}\n";
    fs::write(dir.path().join("d.yaml"), odd).unwrap();
    let output = check(dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("warning"), "{}", said(&output));
}

#[test]
fn check_warns_of_what_the_go_service_would_refuse_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("d.yaml"), format!("on_store_failure: local\n{RULES}")).unwrap();
    let output = check(dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!said(&output).contains("warning"), "{}", said(&output));
    let output = tollgate(&["check", "--portable", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    for told in ["warning: the Go service refuses `on_store_failure`", "d.yaml:1:1"] {
        assert!(said(&output).contains(told), "{told:?} in\n{}", said(&output));
    }
}

#[test]
fn check_refuses_what_memcached_cannot_count_when_that_counts() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("config");
    fs::create_dir(&rules).unwrap();
    let bucket = RULES.replace("unit: hour", "algorithm: token_bucket, unit: hour");
    fs::write(rules.join("d.yaml"), bucket).unwrap();
    let refused = |output: &Output| {
        assert_eq!(output.status.code(), Some(1), "{}", said(output));
        for told in ["d.yaml:2:48", "error: `token_bucket` cannot be counted", "help: use `fixed_window`"] {
            assert!(said(output).contains(told), "{told:?} in\n{}", said(output));
        }
    };
    assert_eq!(check(&rules).status.code(), Some(0));
    refused(&tollgate(&["check", "--memcached", rules.to_str().unwrap()]));

    let as_served = |backend: &str| {
        let mut command = Command::new(BINARY);
        command.arg("check").env("BACKEND_TYPE", backend).env("MEMCACHE_HOST_PORT", "memcached:11211");
        command.env("RUNTIME_ROOT", dir.path()).env("RUNTIME_SUBDIRECTORY", "");
        command.stdin(Stdio::null()).output().unwrap()
    };
    refused(&as_served("memcache"));
    let good = as_served("memory");
    assert_eq!(good.status.code(), Some(0), "{}", said(&good));
}

#[test]
fn check_names_both_files_that_do_not_agree() {
    let dir = tempfile::tempdir().unwrap();
    let other = "domain: d\non_store_failure: deny\ndescriptors: [{key: m, rate_limit: {unlimited: true}}]\n";
    fs::write(dir.path().join("a.yaml"), format!("on_store_failure: local\n{RULES}")).unwrap();
    fs::write(dir.path().join("b.yaml"), other).unwrap();
    let output = tollgate(&["check", "--merge-domains", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for told in ["b.yaml:2:19", "`deny`", "a.yaml for `local` at line 1, column 19"] {
        assert!(said(&output).contains(told), "{told:?} in\n{}", said(&output));
    }
}

#[test]
fn check_of_a_directory_that_is_not_there_fails() {
    let output = check(Path::new("/nowhere/at/all"));
    assert_ne!(output.status.code(), Some(0));
    assert!(said(&output).contains("/nowhere/at/all"), "{}", said(&output));
}

#[test]
fn request_ends_with_0_1_or_2() {
    let server = Server::start(RULES);
    let port = server.ports.grpc;
    for (expected, told) in [(0, "OK"), (0, "OK"), (1, "OVER_LIMIT")] {
        let output = ask(port, "d", &["k=v"]);
        assert_eq!(output.status.code(), Some(expected), "{}", said(&output));
        assert!(said(&output).contains(told), "{told} in\n{}", said(&output));
    }
    let refused = ask(port, "", &["k=v"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("domain must not be empty"), "{}", said(&refused));
    let nobody = ask(free_port(), "d", &["k=v"]);
    assert_eq!(nobody.status.code(), Some(2), "{}", said(&nobody));
}

#[test]
fn request_sends_every_descriptor_with_its_entries() {
    let rules = "
domain: d
descriptors:
  - key: a
    descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 1}}]
  - key: c
    rate_limit: {unit: hour, requests_per_unit: 9}
";
    let server = Server::start(rules);
    assert_eq!(ask(server.ports.grpc, "d", &["a=1,b=2=3", "c=4"]).status.code(), Some(0));
    let answer = server.ask(request("d", &[&[("a", "1"), ("b", "2=3")], &[("c", "4")]])).unwrap();
    let remaining: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(remaining, [0, 7], "both were counted once before");
}

#[test]
fn help_version_settings_and_completions_are_printed() {
    for (args, told) in [
        (&["--help"][..], "check"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["settings"], "GRPC_MAX_CONNECTION_AGE"),
        (&["completions", "bash"], "tollgate"),
    ] {
        let output = tollgate(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains(told), "{args:?}: {}", said(&output));
    }
}

#[test]
fn a_command_that_does_not_exist_is_a_mistake() {
    let output = tollgate(&["serv"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("serve"), "the nearest is offered: {}", said(&output));
}

#[test]
fn called_as_ratelimit_it_serves_and_warns_about_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("ratelimit");
    symlink(BINARY, &link).unwrap();
    let args = ["-config", "/somewhere", "--quotaRateLimitServiceAddr=elsewhere"];
    let server = Setup::new().rules("d.yaml", RULES).program(&link, &args).start();
    assert!(server.ask(request("d", &[&[("k", "v")]])).is_ok());
    let log = server.process.log();
    assert!(log.contains("--quotaRateLimitServiceAddr=elsewhere"), "{log}");
}
