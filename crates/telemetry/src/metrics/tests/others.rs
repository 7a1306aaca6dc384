//! The state of other modules on the page.

use std::{collections::BTreeMap, time::Duration};

use super::{super::*, reading::parse};
use store::{Distribution, LeaseUsage, PoolUsage, StoreKind, StoreUsage, table::Usage};

fn all_gauges() -> Gauges {
    Gauges {
        rules: Some(RulesGauges {
            last_success: Some(Duration::from_millis(1_700_000_000_250)),
            last_error: Some(Duration::from_secs(1)),
            loads: 1,
            errors: 1,
            load_failed: true,
            hash: Some("c0ffee".to_owned()),
            files: 2,
            domains: 3,
            rules: 4,
        }),
        tls: Some(TlsGauges {
            certificate_expiry: Duration::from_secs(16),
            reload_errors: 17,
            handshake_failures: vec![("timeout", 18)],
        }),
        xds: Some(XdsGauges { version: Some("1".to_owned()), ..XdsGauges::default() }),
        spans: Some(SpanGauges { exported: 21, dropped: vec![("queue_full", 22)] }),
        decision_log: Some((26, 27)),
        top_refused: vec![TopRefusedGauge {
            domain: "d".to_owned(),
            rule: "k".to_owned(),
            descriptor: "k=\"v\"".to_owned(),
            hits: 28,
        }],
        store: Some(StoreUsage {
            held: Usage { entries: 5, bytes: 7, evicted: 8, evicted_over: 3, expired: 9 },
            max_keys: 6,
        }),
        leases: Some(LeaseUsage::default()),
        local_cache: Some(LocalCacheGauges::default()),
        overrides: Some(OverrideGauges { by_action: [26, 27, 28, 29], bytes: 30 }),
        replicas: vec![("c0ffee".to_owned(), 31)],
        pools: [StoreKind::Redis, StoreKind::RedisPerSecond, StoreKind::Memcached].map(pool).into(),
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
        errors: vec![("timeout", 17), ("connect", 18)],
        denied: vec![("expire", 22)],
        without_expiry: 23,
        operation_time: Distribution { buckets: vec![(0.001, 19)], count: 20, sum: 0.5 },
        batch_size: Distribution::default(),
    }
}

#[test]
fn a_full_page_shows_every_documented_metric_and_no_other() {
    let stats = Stats::new(StatsOptions { max_series: 0, ..StatsOptions::default() });
    stats.rule("d", "d.k").add(RuleCounter::TotalHits, 1);
    let _ = stats.dynamic("d", "d.k_v", Time::default());
    stats.domain_not_found("nowhere", Time::default());
    stats.service().admin_changes.count("override_set", ChangeResult::Ok);
    let page = stats.render(&all_gauges());
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
    for (name, labels) in parse(&page).into_keys() {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let declared = [&name, of_histogram.unwrap_or(&name)].into_iter().find_map(|name| by_name.get(name));
        let declared = [declared.unwrap(), &["le"][..]].concat();
        assert!(labels.iter().map(|(label, _)| label).eq(&declared[..labels.len()]), "{name} {labels:?}");
    }
}

#[test]
fn each_redis_has_its_own_names_of_the_go_service_and_its_own_label() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&all_gauges()));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        page.get(&(name.to_owned(), labels)).copied()
    };
    for (name, pool) in [("redis_pool", "main"), ("redis_per_second_pool", "per_second")] {
        let of_go = ["cx_active", "cx_total", "cx_local_close"];
        let of_go = of_go.map(|what| value(&format!("ratelimit_{name}_{what}"), &[]));
        assert_eq!(of_go, [10.0, 11.0, 12.0].map(Some), "{pool}");
        let ours = ["reconnects_total", "breakers_open", "queued_checks", "queued_checks_max"];
        let ours = ours.map(|what| value(&format!("tollgate_redis_{what}"), &[("pool", pool)]));
        assert_eq!(ours, [13.0, 14.0, 15.0, 16.0].map(Some), "{pool}");
        let errors = value("tollgate_redis_errors_total", &[("pool", pool), ("kind", "connect")]);
        assert_eq!(errors, Some(18.0), "{pool}");
        let denied = value("tollgate_redis_command_denied_total", &[("pool", pool), ("command", "expire")]);
        let without = value("tollgate_redis_keys_without_expiry_total", &[("pool", pool)]);
        assert_eq!([denied, without], [22.0, 23.0].map(Some), "{pool}");
        let bucket = |bound| {
            let labels = [("pool", pool), ("le", bound)];
            value("tollgate_redis_operation_seconds_bucket", &labels)
        };
        let sum = value("tollgate_redis_operation_seconds_sum", &[("pool", pool)]);
        let [within, all] = ["0.001", "+Inf"].map(bucket);
        assert_eq!([within, all, sum], [19.0, 20.0, 0.5].map(Some), "{pool}");
    }
}

#[test]
fn milliseconds_are_for_the_response_times_of_the_go_service_alone() {
    let stats = Stats::new(StatsOptions::default()).shown(Exposition::Own { in_milliseconds: true });
    stats.service().response_time(Method::ShouldRateLimit).observe(Duration::from_millis(3));
    let page = stats.render(&all_gauges());
    let name = "ratelimit_service_response_time_seconds";
    for line in [
        &format!(r#"{name}_bucket{{grpc_method="ShouldRateLimit",le="0.01"}} 0"#),
        &format!(r#"{name}_bucket{{grpc_method="ShouldRateLimit",le="5"}} 1"#),
        &format!(r#"{name}_sum{{grpc_method="ShouldRateLimit"}} 3"#),
        r#"tollgate_redis_operation_seconds_bucket{pool="main",le="0.001"} 19"#,
    ] {
        assert!(page.lines().any(|seen| seen == line), "{line}\n{page}");
    }
}

#[test]
fn shows_no_redis_metrics_without_redis() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&Gauges::default()));
    let shown: Vec<_> = page.into_keys().filter(|(name, _)| name.contains("redis")).collect();
    assert_eq!(shown.len(), 0, "{shown:?}");
}

#[test]
fn the_page_has_values_of_other_modules() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&all_gauges()));
    let value = |name: &str| page.get(&(name.to_owned(), Vec::new())).copied();
    assert_eq!(value("tollgate_rules_last_load_success_timestamp_seconds"), Some(1_700_000_000.25));
    assert_eq!(value("tollgate_rules_load_failed"), Some(1.0));
    assert_eq!(value("tollgate_store_expired_total"), Some(9.0));
    let hash = vec![("hash".to_owned(), "c0ffee".to_owned())];
    assert_eq!(page.get(&("tollgate_rules_info".to_owned(), hash)), Some(&1.0));
}
