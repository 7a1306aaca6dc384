//! The store, and the policy for its failure.

use super::{super::*, problems, read, settings, warnings};
use faults::OnStoreFailure;
use limit::CountingMode;

#[test]
fn memcached_is_selected_by_backend_type_only() {
    let host = ("MEMCACHE_HOST_PORT", "memcached:11211");
    let warned = warnings(&[host]);
    assert_eq!(warned, ["BACKEND_TYPE: is not memcache, so these have no effect: MEMCACHE_HOST_PORT"]);
    assert_eq!(warnings(&[host, ("BACKEND_TYPE", "memory")]), [""; 0]);
    let selected = [host, ("BACKEND_TYPE", "memcache")];
    assert!(matches!(settings(&selected).backend, Backend::Memcached(_)));
    assert_eq!(warnings(&selected), [""; 0]);
}

#[test]
fn any_variable_of_redis_selects_redis() {
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
fn keys_are_compatible_by_default() {
    assert_eq!(settings(&[]).store.key_format, KeyFormat::Compatible);
    for (text, expected) in [
        ("", KeyFormat::Compatible),
        ("Compatible", KeyFormat::Compatible),
        ("unambiguous", KeyFormat::Unambiguous),
    ] {
        assert_eq!(settings(&[("COUNTER_KEY_FORMAT", text)]).store.key_format, expected);
    }
    let reported = problems(&[("COUNTER_KEY_FORMAT", "ambiguous")]);
    assert_eq!(reported, ["COUNTER_KEY_FORMAT=\"ambiguous\": expected compatible or unambiguous"]);
}

#[test]
fn failure_policies_are_case_insensitive() {
    for (text, expected) in [
        ("error", OnStoreFailure::Error),
        ("Allow", OnStoreFailure::Allow),
        ("DENY", OnStoreFailure::Deny),
        ("local", OnStoreFailure::Local),
        ("share", OnStoreFailure::Share),
    ] {
        assert_eq!(settings(&[("STORE_FAILURE_POLICY", text)]).store.on_failure, expected);
    }
    let reported = problems(&[("STORE_FAILURE_POLICY", "open")]);
    let expected = "STORE_FAILURE_POLICY=\"open\": expected error, allow, deny, local or share";
    assert_eq!(reported, [expected]);
}

#[test]
fn counting_is_exact_by_default() {
    assert_eq!(settings(&[]).store.counting, CountingMode::Exact);
    for (text, expected) in
        [("", CountingMode::Exact), ("Exact", CountingMode::Exact), ("leased", CountingMode::Leased)]
    {
        assert_eq!(settings(&[("COUNTING", text)]).store.counting, expected);
    }
    let reported = problems(&[("COUNTING", "lease"), ("LEASE_MAX_KEYS", "0")]);
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(reported[0], "COUNTING=\"lease\": expected exact or leased");
}
