//! The page as Prometheus reads it: parsed back, and held against what was counted.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::rules::OnStoreFailure;

/// The samples of a page by name and labels, read by the rules of the text format.
fn parse(page: &str) -> BTreeMap<(String, Vec<(String, String)>), f64> {
    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let mut labels = Vec::new();
        let mut rest = rest.strip_prefix('{').unwrap_or(rest);
        while let Some((label, quoted)) = rest.split_once("=\"").filter(|_| !rest.starts_with(' ')) {
            let (value, after) = unquote(quoted);
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after.strip_prefix('}').unwrap_or(after);
        }
        let old = samples.insert((name.to_owned(), labels), rest.trim().parse().unwrap());
        assert_eq!(old, None, "a series stands twice on the page: {line}");
    }
    samples
}

/// A label's value up to its closing quote, and what follows.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.push(match chars.next().unwrap().1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    panic!("no closing quote in {quoted}");
}

fn sample(stats: &Stats, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    parse(&stats.render(&Gauges::default())).get(&(name.to_owned(), labels)).copied()
}

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
        store: Some(StoreGauges { keys: 5, keys_max: 6, bytes: 7, evictions: 8, expired: 9 }),
        local_cache: Some(LocalCacheGauges::default()),
        pools: [false, true].map(pool).into(),
        memcached: Some(pool(false)),
    }
}

fn pool(per_second: bool) -> PoolGauges {
    PoolGauges {
        per_second,
        connections: 10,
        opened: 11,
        closed: 12,
        reconnects: 13,
        breakers_open: 14,
        queued: 15,
        max_queued: 16,
        errors: vec![("timeout", 17), ("connect", 18)],
        operation_time: Distribution { within: vec![(0.001, 19)], count: 20, sum: 0.5 },
        batch_size: Distribution::default(),
    }
}

#[test]
fn a_full_page_shows_every_documented_metric_and_no_other() {
    let stats = Stats::new(StatsOptions { max_series: 0, ..StatsOptions::default() });
    stats.rule("d.k").add(RuleCounter::TotalHits, 1);
    let _ = stats.dynamic("d", "d.k_v");
    stats.domain_not_found("nowhere");
    let page = stats.render(&all_gauges());
    let head = |kind: &str| -> Vec<(String, String)> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(kind)?.split_once(' '));
        lines.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
    };
    let documented = |told: fn(&Metric) -> String| -> Vec<(String, String)> {
        documentation().iter().map(|metric| (metric.name.to_owned(), told(metric))).collect()
    };
    assert_eq!(head("# TYPE "), documented(|metric| metric.kind.to_string()));
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
fn without_redis_nothing_is_told_of_it() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&Gauges::default()));
    let told: Vec<_> = page.into_keys().filter(|(name, _)| name.contains("redis")).collect();
    assert_eq!(told.len(), 0, "{told:?}");
}

#[test]
fn decisions_without_counters_are_told_by_policy_and_reason() {
    let stats = Stats::new(StatsOptions::default());
    stats.service().store_failures(OnStoreFailure::Allow, StoreFailure::QueueFull).add(3);
    let value = |policy, reason| {
        let labels = [("policy", policy), ("reason", reason)];
        sample(&stats, "tollgate_store_failure_decisions_total", &labels)
    };
    assert_eq!(value("allow", "queue_full"), Some(3.0));
    assert_eq!(value("local", "timeout"), Some(0.0), "there from the start, so that a rate sees the first");
}

#[test]
fn values_from_other_rooms_stand_on_the_page() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&all_gauges()));
    let value = |name: &str| page.get(&(name.to_owned(), Vec::new())).copied();
    assert_eq!(value("tollgate_rules_last_load_success_timestamp_seconds"), Some(1_700_000_000.25));
    assert_eq!(value("tollgate_rules_load_failed"), Some(1.0));
    assert_eq!(value("tollgate_store_expired_total"), Some(9.0));
    let hash = vec![("hash".to_owned(), "c0ffee".to_owned())];
    assert_eq!(page.get(&("tollgate_rules_hash".to_owned(), hash)), Some(&1.0));
}

#[test]
fn an_idle_rule_costs_no_series_and_the_first_hit_brings_all_six() {
    let stats = Stats::new(StatsOptions::default());
    let rule = stats.rule("d.k_v.other");
    let rules = || -> usize {
        let page = stats.render(&Gauges::default());
        parse(&page).into_keys().filter(|(name, _)| name.starts_with("ratelimit_service_rate_limit")).count()
    };
    assert_eq!(rules(), 0);
    rule.add(RuleCounter::WithinLimit, 1);
    assert_eq!(rules(), 6);
    let labels = [("domain", "d"), ("key1", "k_v"), ("key2", "other")];
    assert_eq!(sample(&stats, "ratelimit_service_rate_limit_within_limit", &labels), Some(1.0));
    assert_eq!(sample(&stats, "ratelimit_service_rate_limit_shadow_mode", &labels), Some(0.0));
}

#[test]
fn hits_refused_by_the_local_cache_count_twice_below_a_second_key_as_in_the_go_service() {
    let stats = Stats::new(StatsOptions::default());
    for full_key in ["d.k", "d.k.deep"] {
        let rule = stats.rule(full_key);
        rule.add(RuleCounter::OverLimit, 5);
        rule.add(RuleCounter::OverLimitWithLocalCache, 3);
    }
    let over_limit = "ratelimit_service_rate_limit_over_limit";
    let shallow = [("domain", "d"), ("key1", "k")];
    let deep = [("domain", "d"), ("key1", "k"), ("key2", "deep")];
    assert_eq!(sample(&stats, over_limit, &shallow), Some(5.0));
    assert_eq!(sample(&stats, over_limit, &deep), Some(8.0));
    let cached = "ratelimit_service_rate_limit_over_limit_with_local_cache";
    assert_eq!(sample(&stats, cached, &deep), Some(3.0));
}

#[test]
fn the_histogram_reads_as_prometheus_expects() {
    let stats = Stats::new(StatsOptions::default());
    let times = stats.service().response_time(Method::ShouldRateLimit);
    for micros in [25, 26, 2_000_000] {
        times.observe(Duration::from_micros(micros));
    }
    let bucket = |bound: &str| {
        let labels = [("grpc_method", "ShouldRateLimit"), ("le", bound)];
        sample(&stats, "ratelimit_service_response_time_seconds_bucket", &labels)
    };
    let found = ["0.00001", "0.000025", "0.00005", "0.02", "1", "+Inf"].map(bucket);
    assert_eq!(found, [0.0, 1.0, 2.0, 2.0, 2.0, 3.0].map(Some));
    let of = |suffix: &str| {
        let name = format!("ratelimit_service_response_time_seconds_{suffix}");
        sample(&stats, &name, &[("grpc_method", "ShouldRateLimit")])
    };
    assert_eq!((of("count"), of("sum")), (Some(3.0), Some(2.000_051)));
}

#[test]
fn counts_made_by_four_threads_while_the_page_is_read_are_all_there_in_the_end() {
    let stats = Stats::new(StatsOptions { max_series: 100, shards: ShardCount::for_workers(4) });
    let rule = stats.rule("d.hot");
    let work = |thread: usize| {
        shard::assign();
        for n in 0..5_000 {
            rule.add(RuleCounter::TotalHits, 1);
            stats.dynamic("d", &format!("d.k_{}", (n + thread) % 150)).add(RuleCounter::TotalHits, 1);
            stats.service().requests(Method::ShouldRateLimit).increment();
        }
    };
    let hits = || -> BTreeMap<_, _> {
        let mut page = parse(&stats.render(&Gauges::default()));
        page.retain(|(name, _), _| name == "ratelimit_service_rate_limit_total_hits");
        page
    };
    thread::scope(|scope| {
        (0..4).for_each(|thread| drop(scope.spawn(move || work(thread))));
        let mut before = BTreeMap::new();
        for _ in 0..20 {
            let now = hits();
            let shrunk = before.iter().find(|(series, n)| now.get(*series).is_none_or(|now| now < *n));
            assert_eq!(shrunk, None);
            before = now;
        }
    });
    assert_eq!(hits().len(), 102, "the hot rule, a hundred names, and the overflow");
    assert!((hits().values().sum::<f64>() - 40_000.0).abs() < 0.5);
    assert_eq!(rule.get(RuleCounter::TotalHits), 20_000);
    assert_eq!(stats.service().requests(Method::ShouldRateLimit).get(), 20_000);
}

proptest! {
    #[test]
    fn any_text_in_a_key_comes_back_from_the_page(keys in prop::collection::hash_set("\\PC{1,8}|[\"\\\\\n{}=,.# ]{1,8}", 1..8)) {
        let stats = Stats::new(StatsOptions::default());
        let mut expected = BTreeMap::<_, f64>::new();
        for key in &keys {
            let full_key = format!("d.{key}");
            stats.rule(&full_key).add(RuleCounter::TotalHits, 3);
            *expected.entry(labels::Labels::of(&full_key)).or_default() += 3.0;
        }
        let page = parse(&stats.render(&Gauges::default()));
        let mut found = BTreeMap::new();
        for ((_, labels), value) in
            page.into_iter().filter(|((name, _), _)| name == "ratelimit_service_rate_limit_total_hits")
        {
            let mut values = labels.into_iter().map(|(_, value)| value);
            let mut next = || values.next();
            let (domain, key1) = (next().unwrap(), next().unwrap());
            found.insert(labels::Labels { domain, key1, key2: next() }, value);
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn handles_outlive_their_registry() {
    let rule = Stats::new(StatsOptions::default()).rule("d.k");
    rule.add(RuleCounter::TotalHits, 1);
    assert_eq!((Arc::strong_count(&rule), rule.get(RuleCounter::TotalHits)), (1, 1));
}
