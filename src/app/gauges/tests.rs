//! The whole page: the statistics, and the gauges of all parts.

use std::collections::BTreeMap;

use super::*;
use metrics::{ChangeResult, Metric, RuleCounter, Stats, StatsOptions, StoreKind, documentation};

fn everything(spans: &Counts) -> Gauges<'_> {
    let keys = metrics::TableUsage { entries: 5, bytes: 7, evicted: 8, evicted_over: 3, expired: 9 };
    let time = Time::from_micros(1_700_000_000_250_000);
    Gauges {
        local_cache: Some(CacheUsage { keys, lookups: 10, hits: 4 }),
        pools: [StoreKind::Redis, StoreKind::RedisPerSecond, StoreKind::Memcached].map(pool).into(),
        leases: Some(LeaseUsage::default()),
        decision_log: Some((26, 27)),
        request_log: Some((31, 32)),
        top: [28, 40].map(|hits| vec![(["d", "k", "k=v"].map(str::to_owned), hits)]),
        tls: Some(TlsUsage { handshake_failures: vec![("timeout", 18)], ..TlsUsage::default() }),
        spans: Some(spans),
        rules: ReloadState {
            last_success: Some(time),
            last_error: Some((time, Vec::new())),
            hash: 0x00c0_ffee,
            ..ReloadState::default()
        },
        xds: Some(xds::SubscriptionState {
            version: Some("1".to_owned()),
            ..xds::SubscriptionState::default()
        }),
        store: Some(StoreUsage { held: keys, max_keys: 6 }),
        overrides: Usage { by_action: [26, 27, 28, 29], has_local_calendar: false, bytes: 30 },
        holds: (3, 1),
        limits: vec![RuleLimit {
            full_key: "d.k.m".to_owned(),
            domain_bytes: 1,
            unit: "day".to_owned(),
            requests: 32,
        }],
        memory: (37, vec![MemoryUse { name: "rules", bytes: 38, used: Some(39) }]),
    }
}

fn pool(kind: StoreKind) -> PoolUsage {
    PoolUsage {
        kind,
        connections: 10,
        opened: 11,
        closed: 12,
        reconnects: 13,
        breakers_open: 14,
        queued: 15,
        max_queued: 16,
        max_outstanding: 23,
        shed: [("overloaded", 24), ("late", 25)],
        errors: vec![("timeout", 17)],
        last_error: None,
        denied: vec![("expire", 22)],
        without_expiry: 23,
        operation_time: metrics::Distribution { buckets: vec![(0.001, 19)], count: 20, sum: 0.5 },
        batch_size: metrics::Distribution::default(),
    }
}

fn page() -> String {
    let stats = Stats::new(StatsOptions { max_series: 0, ..StatsOptions::default() });
    stats.rule("d", "d.k").add(RuleCounter::TotalHits, 1);
    stats.rule("d", "d.k").add(RuleCounter::TotalNegativeHits, 1);
    stats.holds().add_rule("d.k");
    let _ = stats.dynamic("d", "d.k_v", Time::default());
    stats.domain_not_found("nowhere", Time::default());
    stats.service().admin_changes.count("override_set", ChangeResult::Ok);
    stats.set_not_enforced(vec![["d", "rule_shadow"].map(str::to_owned)]);
    let spans = Counts::default();
    stats.render(&|samples| everything(&spans).sample(samples))
}

#[test]
fn a_full_page_shows_every_documented_metric_and_no_other() {
    let page = page();
    let head = |kind: &str| -> Vec<(String, String)> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(kind)?.split_once(' '));
        lines.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
    };
    let documented = |shown: fn(&Metric) -> String| -> Vec<(String, String)> {
        documentation().iter().map(|metric| (metric.name.to_owned(), shown(metric))).collect()
    };
    assert_eq!(head("# TYPE "), documented(|metric| metric.kind.name().to_owned()));
    assert_eq!(head("# HELP "), documented(|metric| metric.help.to_owned()));
    let by_name: BTreeMap<_, _> = documentation().iter().map(|metric| (metric.name, metric.labels)).collect();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) =
            line.rsplit_once(' ').unwrap().0.split_once('{').unwrap_or((line.split(' ').next().unwrap(), ""));
        let labels: Vec<_> = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let declared = [name, of_histogram.unwrap_or(name)].into_iter().find_map(|name| by_name.get(name));
        let declared = [declared.unwrap(), &["le"][..]].concat();
        assert_eq!(labels, declared[..labels.len()], "{line}");
    }
}

#[test]
fn the_page_has_the_values_of_the_parts() {
    let page = page();
    for line in [
        "tollgate_rules_last_load_success_timestamp_seconds 1700000000.25",
        "tollgate_rules_load_failed 1",
        "tollgate_rules_info{hash=\"0000000000c0ffee\"} 1",
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
