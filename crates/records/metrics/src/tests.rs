//! Parsed pages against the counts.

mod others;
mod reading;

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::FailureReason;
use faults::OnStoreFailure;
use reading::parse;

const NOW: Time = Time::from_seconds(1_000_000);

fn sample(stats: &Stats, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    parse(&stats.render(&|_| ())).get(&(name.to_owned(), labels)).copied()
}

#[test]
fn counts_decisions_without_counters_by_policy_and_reason() {
    let stats = Stats::new(StatsOptions::default());
    stats.service().store_failures(OnStoreFailure::Allow, FailureReason::QueueFull).add(3);
    let value = |policy, reason| {
        let labels = [("policy", policy), ("reason", reason)];
        sample(&stats, "tollgate_store_failure_decisions_total", &labels)
    };
    assert_eq!(value("allow", "queue_full"), Some(3.0));
    assert_eq!(value("local", "timeout"), Some(0.0), "there from the start, so that a rate sees the first");
}

#[test]
fn an_idle_rule_has_no_series_and_the_first_hit_adds_all_six() {
    let stats = Stats::new(StatsOptions::default());
    let rule = stats.rule("d", "d.k_v.other");
    let rules = || -> usize {
        let page = stats.render(&|_| ());
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
        let rule = stats.rule("d", full_key);
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
fn histograms_have_the_format_of_prometheus() {
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
fn no_count_is_lost_while_the_page_is_rendered() {
    shard::set_count(ShardCount::for_workers(4));
    let stats = Stats::new(StatsOptions { max_series: 100, ..StatsOptions::default() });
    let rule = stats.rule("d", "d.hot");
    let work = |thread: usize| {
        shard::assign();
        for n in 0..5_000 {
            rule.add(RuleCounter::TotalHits, 1);
            stats.dynamic("d", &format!("d.k_{}", (n + thread) % 150), NOW).add(RuleCounter::TotalHits, 1);
            stats.service().requests(Method::ShouldRateLimit).increment();
        }
    };
    let hits = || -> BTreeMap<_, _> {
        let mut page = parse(&stats.render(&|_| ()));
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
    fn any_text_in_a_key_survives_the_page(keys in prop::collection::hash_set("\\PC{1,8}|[\"\\\\\n{}=,.# ]{1,8}", 1..8)) {
        let stats = Stats::new(StatsOptions::default());
        let mut expected = BTreeMap::<_, f64>::new();
        for key in &keys {
            let full_key = format!("d.{key}");
            stats.rule("d", &full_key).add(RuleCounter::TotalHits, 3);
            // A newline has its own escape in the format.
            let shown: Vec<_> = full_key.split('\n').map(::text::printable).collect();
            *expected.entry(labels::Labels::of(&shown.join("\n"))).or_default() += 3.0;
        }
        let page = parse(&stats.render(&|_| ()));
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
    let rule = Stats::new(StatsOptions::default()).rule("d", "d.k");
    rule.add(RuleCounter::TotalHits, 1);
    assert_eq!((Arc::strong_count(&rule), rule.get(RuleCounter::TotalHits)), (1, 1));
}

#[test]
fn rule_hits_have_the_full_path_and_the_outcome() {
    // Of SHADOW_MODE, the Go service's counters of a rule show nothing.
    for (shadow_mode, expected) in [(false, [7.0, 2.0, 3.0]), (true, [7.0, 0.0, 5.0])] {
        let stats = Stats::new(StatsOptions { shadow_mode, ..StatsOptions::default() });
        let rule = stats.rule("shop.eu", "shop.eu.a.b_1.2.3.4.c:\"\\");
        rule.add(RuleCounter::TotalHits, 12);
        rule.add(RuleCounter::WithinLimit, 7);
        rule.add(RuleCounter::OverLimit, 5);
        rule.add(RuleCounter::ShadowMode, 3);
        let hits = |outcome| {
            let labels = [("domain", "shop.eu"), ("rule", "a.b_1.2.3.4.c:\"\\"), ("outcome", outcome)];
            sample(&stats, "tollgate_rule_hits_total", &labels)
        };
        assert_eq!(["allowed", "over_limit", "shadow"].map(hits), expected.map(Some));
    }
}

#[test]
fn current_rules_are_shown_at_zero_until_a_reload_removes_them() {
    let stats = Stats::new(StatsOptions { max_series: 9, ..StatsOptions::default() });
    let hits = |rule| {
        let labels = [("domain", "d"), ("rule", rule), ("outcome", "allowed")];
        sample(&stats, "tollgate_rule_hits_total", &labels)
    };
    let [a, b, c, d] = ["d.a", "d.b", "d.c", "d.d"].map(|key| stats.rule("d", key));
    assert_eq!(hits("a"), None, "a rule that no set in service has");
    stats.set_in_service(vec![a.clone(), b.clone(), a.clone()]);
    assert_eq!(["a", "b"].map(hits), [Some(0.0); 2]);
    b.add(RuleCounter::WithinLimit, 2);
    assert_eq!(["a", "b"].map(hits), [Some(0.0), Some(2.0)]);
    stats.set_in_service(vec![b.clone(), c.clone()]);
    assert_eq!(["a", "b", "c"].map(hits), [None, Some(2.0), Some(0.0)]);
    // Three series each: nine are shown, twelve are not.
    stats.set_in_service(vec![a.clone(), c.clone(), d.clone()]);
    assert_eq!(["a", "b", "c"].map(hits), [Some(0.0), Some(2.0), Some(0.0)]);
    stats.set_in_service(vec![a, b, c, d]);
    assert_eq!(["a", "b", "c"].map(hits), [None, Some(2.0), None]);
}

#[test]
fn a_callers_rule_hits_take_room_like_its_other_series() {
    let stats = Stats::new(StatsOptions { max_series: 5, ..StatsOptions::default() });
    let series = || {
        let made = |(name, labels): &&(String, Vec<(String, String)>)| {
            (name.starts_with("ratelimit_service_rate_limit") || name == "tollgate_rule_hits_total")
                && !labels.iter().any(|(_, value)| value == OVERFLOW)
        };
        parse(&stats.render(&|_| ())).keys().filter(made).count()
    };
    let hit = |key: &str, counter| {
        let rule = stats.dynamic("d", key, NOW);
        rule.add(RuleCounter::TotalHits, 1);
        rule.add(counter, 1);
    };
    hit("d.a", RuleCounter::WithinLimit);
    assert_eq!((series(), stats.room.taken()), (3, 3));
    hit("d.b", RuleCounter::WithinLimit);
    assert_eq!((series(), stats.room.taken()), (4, 4), "the other series find no room");
    hit("d.a", RuleCounter::NearLimit);
    assert_eq!((series(), stats.room.taken()), (5, 5));
    hit("d.a", RuleCounter::OverLimit);
    assert_eq!((series(), stats.room.taken()), (5, 5));
}

#[test]
fn requests_are_counted_by_domain_and_code() {
    let stats = Stats::new(StatsOptions::default());
    let requests =
        |domain, code| sample(&stats, "tollgate_requests_total", &[("domain", domain), ("code", code)]);
    let shop = stats.domain("shop");
    assert_eq!(requests("shop", "over_limit"), Some(0.0), "there from the start");
    shop.count(ResponseCode::OverLimit, 1, 0);
    stats.unknown_domain().count(ResponseCode::Error, 0, 0);
    let counts = [("shop", "ok"), ("shop", "over_limit"), ("__unknown__", "error")];
    assert_eq!(counts.map(|(domain, code)| requests(domain, code)), [Some(0.0), Some(1.0), Some(1.0)]);
}

#[cfg(target_os = "linux")]
#[test]
fn the_cpu_time_of_the_process_has_a_fraction() {
    let stats = Stats::new(StatsOptions::default());
    let begun = std::time::Instant::now();
    let mut seen = Vec::new();
    // Every hundredth of a second of work is another value, and one in a hundred has no fraction.
    while seen.len() < 3 {
        let seconds = sample(&stats, "process_cpu_seconds_total", &[]).unwrap();
        if seen.last() != Some(&seconds) {
            seen.push(seconds);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{seen:?}");
    }
    assert!(seen.iter().any(|seconds| seconds.fract() != 0.0), "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
}
