//! Which store counts, and what becomes of requests when it is lost.

use super::{super::*, problems, read, settings, warnings};
use crate::rules::{CountingMode, OnStoreFailure};

#[test]
fn memcached_is_asked_for_by_the_backends_type_alone() {
    let host = ("MEMCACHE_HOST_PORT", "memcached:11211");
    let warned = warnings(&[host]);
    assert_eq!(warned, ["BACKEND_TYPE: is not memcache, so that these do nothing: MEMCACHE_HOST_PORT"]);
    assert_eq!(warnings(&[host, ("BACKEND_TYPE", "memory")]), [""; 0]);
    let asked_for = [host, ("BACKEND_TYPE", "memcache")];
    assert!(matches!(settings(&asked_for).backend, Backend::Memcached(_)));
    assert_eq!(warnings(&asked_for), [""; 0]);
}

#[test]
fn anything_said_of_redis_asks_for_it() {
    for var in vars::ALL.iter().filter(|var| var.name.starts_with("REDIS_")) {
        let value = match var.default {
            "" => "redis:6379",
            default => default,
        };
        let alone = read(&[(var.name, value)]);
        let reported =
            alone.map_err(|problems| problems.iter().map(|problem| problem.variable).collect::<Vec<_>>());
        match reported {
            Ok((settings, _)) => assert!(matches!(settings.backend, Backend::Redis(_)), "{}", var.name),
            Err(reported) => assert!(reported.contains(&"REDIS_URL"), "{}: {reported:?}", var.name),
        }
        assert_eq!(settings(&[(var.name, value), ("BACKEND_TYPE", "memory")]).backend, Backend::Memory);
    }
    assert!(settings(&[("REDIS_PORT", "tcp://10.0.0.7:6379")]).is_backend_default, "Kubernetes sets such");
}

#[test]
fn keys_are_those_of_the_go_service_unless_they_are_to_be_unambiguous() {
    assert_eq!(settings(&[]).store.key_format, KeyFormat::Compatible);
    for (text, expected) in [
        ("", KeyFormat::Compatible),
        ("Compatible", KeyFormat::Compatible),
        ("unambiguous", KeyFormat::Unambiguous),
    ] {
        assert_eq!(settings(&[("COUNTER_KEY_FORMAT", text)]).store.key_format, expected);
    }
    let reported = problems(&[("COUNTER_KEY_FORMAT", "ambiguous")]);
    assert_eq!(
        reported,
        ["COUNTER_KEY_FORMAT=\"ambiguous\": accepted is compatible or unambiguous, in any case"]
    );
}

#[test]
fn what_becomes_of_requests_without_counters_is_read_in_any_case() {
    for (text, expected) in [
        ("error", OnStoreFailure::Error),
        ("Allow", OnStoreFailure::Allow),
        ("DENY", OnStoreFailure::Deny),
        ("local", OnStoreFailure::Local),
    ] {
        assert_eq!(settings(&[("STORE_FAILURE_POLICY", text)]).store.on_failure, expected);
    }
    let reported = problems(&[("STORE_FAILURE_POLICY", "open")]);
    let expected = "STORE_FAILURE_POLICY=\"open\": accepted is error, allow, deny or local, in any case";
    assert_eq!(reported, [expected]);
}

#[test]
fn counting_is_exact_unless_it_is_leased() {
    assert_eq!(settings(&[]).store.counting, CountingMode::Exact);
    for (text, expected) in
        [("", CountingMode::Exact), ("Exact", CountingMode::Exact), ("leased", CountingMode::Leased)]
    {
        assert_eq!(settings(&[("COUNTING", text)]).store.counting, expected);
    }
    let reported = problems(&[("COUNTING", "lease"), ("LEASE_MAX_KEYS", "0")]);
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(reported[0], "COUNTING=\"lease\": accepted is exact or leased, in any case");
}
