//! Settings that exclude each other, and passwords in messages.

use super::{super::*, Backend, problems, read, warnings};

/// Asserts that the only problem of an environment is in this variable and contains this text.
fn is_refused(set: &[(&str, &str)], name: &str, reported: &str) {
    let problems = problems(set);
    assert_eq!(problems.len(), 1, "{set:?}: {problems:?}");
    assert!(problems[0].starts_with(name) && problems[0].contains(reported), "{set:?}: {problems:?}");
}

#[test]
fn rejects_invalid_urls_with_a_hint() {
    for (set, name, reported) in [
        (&[("BACKEND_TYPE", "redis")][..], "REDIS_URL", "default is /var/run/nutcracker/ratelimit.sock"),
        (&[("REDIS_SOCKET_TYPE", "tcp")], "REDIS_URL", "expected host:port"),
        (&[("REDIS_URL", "redis")], "REDIS_URL", "the port is missing: redis:6379"),
        (&[("REDIS_URL", "a:1,b:2")], "REDIS_URL", "several require REDIS_TYPE=CLUSTER"),
        (&[("REDIS_URL", "redis://a,redis://b:2")], "REDIS_URL", "several require REDIS_TYPE=CLUSTER"),
        (&[("REDIS_URL", "/r.sock"), ("REDIS_SOCKET_TYPE", "tcp")], "REDIS_URL", "REDIS_SOCKET_TYPE=unix"),
        (&[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "unix")], "REDIS_URL", "set it to tcp"),
        (&[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "udp")], "REDIS_SOCKET_TYPE", "tcp6 or unix"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TYPE", "ring")], "REDIS_TYPE", "SINGLE, SENTINEL or CLUSTER"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m")], "REDIS_URL", "at least one sentinel"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m, ,")], "REDIS_URL", "at least one sentinel"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "a:1,b:2")], "REDIS_URL", "the name of the master"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", ",b:2")], "REDIS_URL", "the name of the master"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "p@a,b:2")], "REDIS_URL", "the name of the master"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m,redis://a/1")], "REDIS_URL", "database 0"),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "/r.sock")], "REDIS_URL", "requires TCP"),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", ",")], "REDIS_URL", "at least one server"),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "redis://a/1")], "REDIS_URL", "only database 0"),
    ] {
        is_refused(set, name, reported);
    }
}

#[test]
fn rejects_conflicting_settings_with_a_hint() {
    let tls = ("REDIS_TLS", "true");
    for (set, name, reported) in [
        (&[("REDIS_URL", "/r.sock"), tls][..], "REDIS_TLS", "does not support TLS"),
        (&[("REDIS_URL", "a:1"), tls, ("REDIS_TLS_CACERT", "/ca")], "REDIS_TLS_CACERT", "is it mounted?"),
        (
            &[("REDIS_URL", "rediss://a"), ("REDIS_TLS_CLIENT_CERT", "/tls/c")],
            "REDIS_TLS_CLIENT_KEY",
            "REDIS_TLS_CLIENT_CERT requires it",
        ),
        (
            &[("REDIS_URL", "a:1"), tls, ("REDIS_TLS_CLIENT_KEY", "/tls/k")],
            "REDIS_TLS_CLIENT_CERT",
            "REDIS_TLS_CLIENT_KEY requires it",
        ),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_PERSECOND", "true")],
            "REDIS_PERSECOND_URL",
            "ratelimitpersecond.sock",
        ),
        (&[("REDIS_URL", "a:1"), ("REDIS_CONNECT_TIMEOUT", "0")], "REDIS_CONNECT_TIMEOUT", "above 0"),
        (&[("REDIS_URL", "a:1"), ("REDIS_MAX_QUEUED", "0")], "REDIS_MAX_QUEUED", "from 1"),
        (&[("REDIS_URL", "a:1"), ("REDIS_POOL_SIZE", "-1")], "REDIS_POOL_SIZE", "from 0"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "10")], "REDIS_TIMEOUT", "10s is in seconds"),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_PIPELINE_WINDOW", "10ms")],
            "REDIS_PIPELINE_WINDOW",
            "expected less than REDIS_TIMEOUT (10ms)",
        ),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "-1")],
            "REDIS_CLUSTER_PIPELINE_PARALLELISM",
            "an integer",
        ),
        (&[("REDIS_URL", "a:1"), ("REDIS_PIPELINE_LIMIT", "many")], "REDIS_PIPELINE_LIMIT", "an integer"),
    ] {
        is_refused(set, name, reported);
    }
}

#[test]
fn reports_all_problems_at_once() {
    let reported = problems(&[
        ("REDIS_URL", "redis"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/nowhere"),
        ("REDIS_TLS_CLIENT_CERT", "/tls/cert"),
        ("REDIS_TIMEOUT", "soon"),
        ("REDIS_POOL_SIZE", "x"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_TYPE", "CLUSTER"),
        ("REDIS_PERSECOND_URL", "/r.sock"),
        ("REDIS_PERSECOND_TLS", "perhaps"),
        ("REDIS_STARTUP_MAX_INTERVAL", "-1s"),
        ("STORE_FAILURE_POLICY", "panic"),
        ("PORT", "http"),
    ]);
    assert_eq!(reported.len(), 10, "{reported:#?}");
}

#[test]
fn warns_about_ignored_settings() {
    for (set, name, reported) in [
        (&[("REDIS_SENTINEL_AUTH", "s")][..], "REDIS_SENTINEL_AUTH", "without REDIS_TYPE=SENTINEL"),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_SOCKET_TYPE", "unix")], "REDIS_SOCKET_TYPE", "use TCP"),
        (&[("REDIS_TLS_CACERT", "/nowhere")], "REDIS_TLS_CACERT", "without REDIS_TLS=true"),
        (&[("REDIS_PERSECOND_URL", "b:2")], "REDIS_PERSECOND", "REDIS_PERSECOND_URL"),
        (&[("REDIS_POOL_ON_EMPTY_BEHAVIOR", "error")], "REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_MAX_QUEUED"),
        (&[("REDIS_AUTH", "user:")], "REDIS_AUTH", "without a password"),
        (&[("REDIS_TIMEOUT", "0")], "REDIS_TIMEOUT", "using 10ms"),
        (&[("REDIS_TIMEOUT", "21ms")], "REDIS_TIMEOUT", "timeout, 20ms"),
        (&[("REDIS_TIMEOUT", "10s")], "REDIS_TIMEOUT", "with 10s, the Go service's default, a response"),
    ] {
        let warnings = warnings(&[&[("REDIS_URL", "a:1")], set].concat());
        assert_eq!(warnings.len(), 1, "{set:?}: {warnings:?}");
        assert!(
            warnings[0].starts_with(&format!("{name}: ")) && warnings[0].contains(reported),
            "{warnings:?}"
        );
    }
    let long = [("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "1s")];
    let Backend::Redis(read) = read(&long).unwrap().0.backend else { panic!() };
    assert_eq!(read.main.timeout, Duration::from_secs(1), "the value stays in force");
    assert_eq!(warnings(&[("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "20ms")]), [""; 0]);
}

#[test]
fn never_shows_a_password() {
    for set in [
        &[("REDIS_URL", "redis://u:hunter2@h")][..],
        &[("REDIS_URL", "redis://u:hunter2@h/x")],
        &[("REDIS_URL", "redis://u:hunter2@h"), ("REDIS_TYPE", "ring")],
        &[("REDIS_URL", "redis://u:hunter2@h"), ("REDIS_SOCKET_TYPE", "unix")],
        &[("REDIS_URL", "redis://u:hunter2@h,x:1"), ("REDIS_TYPE", "CLUSTER")],
        &[("REDIS_URL", "m,redis://:hunter2@h:1,redis://:hunter22@i:1"), ("REDIS_TYPE", "SENTINEL")],
        &[("REDIS_URL", "m,redis://:hunter2@h:1"), ("REDIS_TYPE", "SENTINEL")],
        &[("REDIS_URL", "redis://u:hunter2"), ("REDIS_AUTH", "hunter2")],
        &[("REDIS_URL", "hunter2@h")],
        &[("REDIS_URL", "h:1"), ("REDIS_AUTH", "u:hunter2")],
        &[("REDIS_URL", "h:1"), ("REDIS_AUTH", "hunter2:"), ("REDIS_TIMEOUT", "9s")],
        &[("REDIS_URL", "h:1"), ("REDIS_SENTINEL_AUTH", "hunter2")],
        &[
            ("REDIS_URL", "h:1"),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", "redis://h?password=hunter2"),
            ("REDIS_PERSECOND_AUTH", "u:hunter2"),
        ],
        &[("REDIS_PERSECOND_AUTH", "hunter2"), ("REDIS_URL", "h:1")],
    ] {
        let (debug, reported) = match read(set) {
            Ok((settings, warnings)) => (format!("{settings:?}"), warnings),
            Err(problems) => (String::new(), problems),
        };
        // The user is not a secret.
        let is_user = set.iter().any(|(_, value)| *value == "hunter2:");
        assert!(is_user || !debug.contains("hunter2"), "{debug}");
        assert!(!reported.concat().contains("hunter2"), "{reported:?}");
    }
}
