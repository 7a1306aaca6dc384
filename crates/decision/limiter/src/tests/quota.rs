//! Buckets of RLQS: their rule, hits ahead of time in the counters that requests share, and their statistics.

use std::pin::pin;

use super::{
    setup::{Setup, finish},
    *,
};
use ::overrides::table::of_json_line;
use metrics::RuleCounter;

const RULES: &str = "\
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: sliding, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}}
  - {key: open, rate_limit: {algorithm: concurrency, requests_per_unit: 3, hold: {ttl: 15m}}}
  - key: several
    rate_limit:
    - {unit: hour, requests_per_unit: 100}
    - {unit: minute, requests_per_unit: 10}
  - key: tenant
    descriptors:
    - key: path
      rate_limit: {unit: minute, requests_per_unit: 6}
      descriptors:
      - {key: method, value: POST, rate_limit: {unit: minute, requests_per_unit: 5}}
      - {key: method, rate_limit: {unit: minute, requests_per_unit: 7}}
    - {key: path, value: /a*, rate_limit: {unit: minute, requests_per_unit: 8}}
";

/// The start of an hour.
const NOW: Time = Time::from_seconds(7200);

fn setup_with(policy: OnStoreFailure) -> Setup {
    let setup = Setup::new(policy, |_| ());
    setup.load(RULES);
    setup
}

fn bucket(entries: &[(&str, &str)]) -> QuotaBucket {
    let entries = entries.iter().map(|(key, value)| (Box::from(*key), Box::from(*value))).collect();
    QuotaBucket { domain: "d".into(), entries }
}

fn of(key: &str) -> QuotaBucket {
    bucket(&[(key, "v")])
}

fn limit_of(setup: &Setup, entries: &[(&str, &str)]) -> Option<(u64, u64)> {
    match setup.limiter.quota_rule(&bucket(entries), NOW) {
        QuotaRule::Limited(limit) => Some((limit.requests, limit.seconds)),
        _ => None,
    }
}

fn reserve(setup: &Setup, key: &str, hits: u64, at: Time) -> Result<u64, StoreLost> {
    finish(pin!(setup.limiter.reserve(&of(key), hits, at)))
}

fn give_back(setup: &Setup, key: &str, hits: u64, at: Time) {
    finish(pin!(setup.limiter.give_back(&of(key), hits, at)));
}

/// How many of ten requests pass.
fn passing(setup: &Setup, key: &str) -> usize {
    (0..10).filter(|_| setup.decide(&[key]).unwrap().code == Code::Ok).count()
}

fn set(setup: &Setup, key: &str, action: &str) {
    let line = format!("{{\"domain\":\"d\",\"descriptor\":\"{key}=v\",{action}}}");
    setup.overrides.set(&of_json_line(&line, NOW).unwrap().one).unwrap();
}

#[test]
fn a_bucket_has_the_limit_of_the_rule_that_its_entries_match_in_any_order() {
    let setup = setup_with(OnStoreFailure::Error);
    let entries = [("tenant", "t"), ("path", "/p"), ("method", "POST")];
    for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(limit_of(&setup, &[entries[a], entries[b], entries[c]]), Some((5, 60)));
    }
    assert_eq!(limit_of(&setup, &[("method", "GET"), ("path", "/p"), ("tenant", "t")]), Some((7, 60)));
    assert_eq!(limit_of(&setup, &[("path", "/p"), ("tenant", "t")]), Some((6, 60)));
    assert_eq!(limit_of(&setup, &[("path", "/ab"), ("tenant", "t")]), Some((8, 60)), "the wildcard first");
    assert_eq!(limit_of(&setup, &[("path", "/p")]), None);
    assert_eq!(limit_of(&setup, &[("tenant", "t"), ("path", "/p"), ("other", "x")]), None);
    assert_eq!(limit_of(&setup, &[]), None);
}

#[test]
fn any_order_of_the_entries_has_the_counter_of_requests() {
    let setup = setup_with(OnStoreFailure::Error);
    for entries in [[("path", "/p"), ("tenant", "t")], [("tenant", "t"), ("path", "/p")]] {
        assert_eq!(finish(pin!(setup.limiter.reserve(&bucket(&entries), 2, NOW))), Ok(2), "{entries:?}");
    }
    let entries = [("tenant", "t"), ("path", "/p")].map(|(key, value)| Entry { key, value });
    let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
    let request =
        Request { domain: "d", descriptors: [descriptor].into_iter().collect(), ..Request::default() };
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    assert_eq!(statuses(&answer), [(Code::Ok, Some(6), 1)]);
}

#[test]
fn a_bucket_is_allowed_or_refused_where_requests_are() {
    let setup = setup_with(OnStoreFailure::Error);
    let rule = |key: &str| setup.limiter.quota_rule(&of(key), NOW);
    let end = |seconds| Some(Time::from_seconds(seconds));
    let limited =
        |requests, seconds, window_end| QuotaRule::Limited(QuotaLimit { requests, seconds, window_end });
    assert_eq!(rule("k"), limited(3, 3600, end(10_800)));
    assert_eq!(rule("quota"), limited(3, 3600, end(10_800)));
    assert_eq!(rule("several"), limited(100, 3600, end(10_800)), "100 an hour is stricter than 600");
    assert_eq!(rule("sliding"), limited(10, 60, None));
    for key in ["shadow", "free", "unknown"] {
        assert_eq!(rule(key), QuotaRule::Allowed, "{key}");
    }
    assert_eq!(rule("none"), QuotaRule::Refused, "the limit is 0");
    assert_eq!(rule("open"), QuotaRule::Refused, "what is held cannot be divided");
    let elsewhere = QuotaBucket { domain: "x".into(), ..of("k") };
    assert_eq!(setup.limiter.quota_rule(&elsewhere, NOW), QuotaRule::Allowed);
    let shadow = Setup::new(OnStoreFailure::Error, |policy| policy.shadow_mode = true);
    assert_eq!(shadow.limiter.quota_rule(&of("k"), NOW), QuotaRule::Allowed);
}

#[test]
fn overrides_and_reloads_apply_to_buckets() {
    let setup = setup_with(OnStoreFailure::Error);
    let limit = |setup: &Setup| limit_of(setup, &[("k", "v")]);
    set(&setup, "k", "\"action\":\"limit\",\"requests_per_unit\":2,\"unit\":\"minute\"");
    assert_eq!(limit(&setup), Some((2, 60)));
    assert_eq!(reserve(&setup, "k", 5, NOW), Ok(2));
    set(&setup, "k", "\"action\":\"block\"");
    assert_eq!(setup.limiter.quota_rule(&of("k"), NOW), QuotaRule::Refused);
    assert_eq!(reserve(&setup, "k", 5, NOW), Ok(0));
    for action in ["allow", "shadow"] {
        set(&setup, "k", &format!("\"action\":\"{action}\""));
        assert_eq!(setup.limiter.quota_rule(&of("k"), NOW), QuotaRule::Allowed, "{action}");
    }
    let setup = setup_with(OnStoreFailure::Error);
    setup.load(&RULES.replace("requests_per_unit: 3", "requests_per_unit: 30"));
    assert_eq!(limit(&setup), Some((30, 3600)));
}

#[test]
fn reserved_hits_are_gone_for_requests_and_the_other_way_round() {
    for policy in [OnStoreFailure::Error, OnStoreFailure::Local] {
        let setup = setup_with(policy);
        assert_eq!(reserve(&setup, "k", 1, NOW), Ok(1));
        assert_eq!(setup.decide(&["k"]).unwrap().code, Code::Ok);
        assert_eq!(reserve(&setup, "k", u64::MAX, NOW), Ok(1), "what is left");
        assert_eq!(reserve(&setup, "k", 1, NOW), Ok(0));
        assert_eq!(setup.counts("k"), [1, 0, 0, 1, 0, 0, 0], "only the request is in the statistics");
        assert_eq!(passing(&setup, "k"), 0);
        give_back(&setup, "k", 2, NOW);
        let refunds = setup.stats.rule("d", "d.k").get(RuleCounter::TotalNegativeHits);
        assert_eq!(refunds, 0, "no caller has refunded");
        assert_eq!(passing(&setup, "k"), 1, "the first refusal counted and is not remembered");
    }
}

#[test]
fn several_limits_are_reserved_together() {
    let setup = setup_with(OnStoreFailure::Error);
    assert_eq!(reserve(&setup, "several", 50, NOW), Ok(10));
    assert_eq!(reserve(&setup, "several", 1, NOW), Ok(0));
    for minute in 1..10 {
        let at = Time::from_seconds(7200 + 60 * minute);
        assert_eq!(reserve(&setup, "several", 10, at), Ok(10));
    }
    let last = Time::from_seconds(7200 + 600);
    assert_eq!(reserve(&setup, "several", 10, last), Ok(0), "the hour is used up");
    setup.clock.set(last);
    give_back(&setup, "several", 4, NOW);
    assert_eq!(reserve(&setup, "several", 10, last), Ok(4), "the hour has not ended");
}

#[test]
fn hits_of_a_window_that_has_not_begun_are_of_that_window() {
    let setup = setup_with(OnStoreFailure::Error);
    let next = Time::from_seconds(10_800);
    assert_eq!(reserve(&setup, "k", 2, next), Ok(2));
    assert_eq!(passing(&setup, "k"), 3, "this window has all of its hits");
    give_back(&setup, "k", 1, next);
    setup.clock.set(next);
    assert_eq!(passing(&setup, "k"), 2);
    give_back(&setup, "k", 3, NOW);
    assert_eq!(passing(&setup, "k"), 0, "the window of these has ended");
}

#[test]
fn a_lost_store_is_told_by_the_failure_policy() {
    for (policy, expected) in [
        (OnStoreFailure::Allow, Err(StoreLost::Allow)),
        (OnStoreFailure::Deny, Err(StoreLost::Deny)),
        (OnStoreFailure::Error, Err(StoreLost::Unknown)),
        (OnStoreFailure::Local, Ok(3)),
    ] {
        let setup = setup_with(policy);
        setup.store.set_lost(Some(FailureReason::Timeout));
        assert_eq!(reserve(&setup, "k", 5, NOW), expected, "{policy:?}");
        assert!(setup.decided(policy, FailureReason::Timeout) > 0);
        give_back(&setup, "k", 3, NOW);
    }
}

#[test]
fn reports_count_as_requests_would() {
    let setup = setup_with(OnStoreFailure::Error);
    setup.limiter.count_quota(&of("k"), 5, 2, NOW);
    assert_eq!(setup.counts("k"), [7, 2, 0, 5, 0, 0, 0]);
    setup.limiter.count_quota(&of("k"), 0, 0, NOW);
    assert_eq!(setup.counts("k"), [7, 2, 0, 5, 0, 0, 0]);
    set(&setup, "k", "\"action\":\"block\"");
    setup.limiter.count_quota(&of("k"), 1, 1, NOW);
    assert_eq!(setup.counts("k"), [9, 3, 0, 6, 0, 0, 0], "what passed before the block passed");
    setup.limiter.count_quota(&of("unknown"), 4, 0, NOW);
    let elsewhere = QuotaBucket { domain: "x".into(), ..of("k") };
    setup.limiter.count_quota(&elsewhere, 3, 0, NOW);
    let domains = setup.stats.requests_by_domain();
    assert_eq!((domains["d"].all, domains["d"].unmatched), (13, 4));
    assert_eq!(domains["__unknown__"].all, 3);
    assert_eq!(passing(&setup, "quota"), 3, "no counter is touched");
}

#[test]
fn a_rule_that_holds_is_not_divided() {
    let setup = setup_with(OnStoreFailure::Error);
    assert_eq!(reserve(&setup, "open", 1, NOW), Ok(0));
    give_back(&setup, "open", 1, NOW);
    setup.limiter.count_quota(&of("open"), 0, 3, NOW);
    assert_eq!(setup.counts("open")[..2], [3, 3]);
    assert_eq!(setup.stats.quotas().refused(metrics::QuotaRefused::Holds).get(), 1);
}

proptest! {
    /// Hits are reserved at most up to the limit, whatever the steps.
    #[test]
    fn never_more_than_the_limit_is_out(steps in prop::collection::vec((0..3_u8, 0..6_u64), 0..40)) {
        let setup = setup_with(OnStoreFailure::Error);
        let (mut reserved, mut passed) = (0, 0);
        for (step, hits) in steps {
            match step {
                0 => {
                    let got = reserve(&setup, "several", hits, NOW).unwrap();
                    prop_assert_eq!(got, hits.min(10 - reserved - passed));
                    reserved += got;
                }
                1 => {
                    let back = hits.min(reserved);
                    give_back(&setup, "several", back, NOW);
                    reserved -= back;
                }
                _ => passed += u64::from(setup.decide(&["several"]).unwrap().code == Code::Ok),
            }
            prop_assert!(reserved + passed <= 10);
        }
    }
}
