//! The declarations of all metrics, and the values of the parts on the page.

use std::collections::HashSet;

use super::*;
use metrics::{MetricType, Stats, StatsOptions, StoreUsage, TableUsage};

#[test]
fn every_name_is_declared_once_and_valid() {
    let mut seen = HashSet::new();
    for metric in documentation() {
        assert!(seen.insert(metric.name), "{} is declared twice", metric.name);
        let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        assert!(fits(metric.name) && metric.labels.iter().all(|label| fits(label)), "{metric:?}");
        assert!(metric.help.ends_with('.'), "{}: help is a sentence", metric.name);
    }
}

#[test]
fn our_counters_end_in_total() {
    for metric in documentation().iter().filter(|metric| metric.name.starts_with("tollgate_")) {
        assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricType::Counter, "{}", metric.name);
    }
}

fn everything(samples: &mut Samples<'_>) {
    let held = TableUsage { entries: 5, bytes: 7, evicted: 8, evicted_over: 3, expired: 9 };
    local_cache(samples, &CacheUsage { keys: held, lookups: 10, hits: 4 });
    decision_log(samples, 26, 27);
    request_log(samples, 31, 32);
    let [refused, shadowed] = [28, 40].map(|hits| vec![(["d", "k", "k=v"].map(str::to_owned), hits)]);
    top(samples, &refused, &shadowed);
    tls(samples, &TlsUsage { handshake_failures: vec![("timeout", 18)], ..TlsUsage::default() });
    spans(samples, &SpanCounts::default());
    let time = Some(Time::from_micros(1_700_000_000_250_000));
    rules(samples, &ReloadState { last_success: time, ..ReloadState::default() }, Some("c0ffee"));
    let (full_key, unit) = ("d.k.m".to_owned(), "day".to_owned());
    limits(samples, &[RuleLimit { full_key, domain_bytes: 1, unit, requests: 32 }]);
    control_plane(samples, &xds::SubscriptionState::default());
    rows::store(samples, &StoreUsage { held, max_keys: 6 });
    overrides(
        samples,
        &Usage { by_action: [26, 27, 28, 29, 30], has_local_calendar: false, bytes: 30 },
        3,
        1,
    );
    memory(samples, 37, &[MemoryUse { name: "rules", bytes: 38, used: Some(39) }]);
}

#[test]
fn the_page_has_the_values_of_the_parts() {
    let page = Stats::new(StatsOptions::default()).render(&everything);
    let declared: HashSet<String> = documentation()
        .iter()
        .map(|metric| format!("# TYPE {} {}", metric.name, metric.kind.name()))
        .collect();
    for head in page.lines().filter(|line| line.starts_with("# TYPE ")) {
        assert!(declared.contains(head), "{head}");
    }
    for line in [
        "tollgate_rules_last_load_success_timestamp_seconds 1700000000.25",
        "tollgate_rules_load_failed 1",
        "tollgate_rules_info{hash=\"c0ffee\"} 1",
        "tollgate_store_expired_total 9",
        "tollgate_store_evictions_total{counter=\"within_limit\"} 5",
        "ratelimit_localcache_missCount 6",
        "tollgate_overrides{action=\"shadow\"} 29",
        "ratelimit_service_rate_limit_limit{domain=\"d\",key1=\"k\",key2=\"m\"} 32",
        "tollgate_rule_limit{domain=\"d\",rule=\"k.m\",unit=\"day\"} 32",
        "tollgate_top_refused_hits{domain=\"d\",rule=\"k\",descriptor=\"k=v\"} 28",
        "tollgate_top_shadowed_hits{domain=\"d\",rule=\"k\",descriptor=\"k=v\"} 40",
    ] {
        assert!(page.lines().any(|seen| seen == line), "{line}\n{page}");
    }
}
