//! Decisions with overrides.

use super::*;
use ::overrides::table::of_json_line;
use counters::Report as _;

const WITH_OVERRIDES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3, name: plain}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: replacer, rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: plain}]}}
  - {key: several, rate_limit: [{unit: hour, requests_per_unit: 9}, {unit: day, requests_per_unit: 2}]}
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 9, algorithm: token_bucket, burst: 2}}
  - key: apart
    overrides_only: true
    rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: plain}]}
  - key: list
    rate_limit:
      - {name: burst, unit: second, requests_per_unit: 4}
      - {name: bucket, unit: minute, requests_per_unit: 600, algorithm: token_bucket}
      - {name: day, unit: day, requests_per_unit: 8}
  - key: shared
    value: s*
    share_threshold: true
    rate_limit: [{name: hour, unit: hour, requests_per_unit: 4}, {name: day, unit: day, requests_per_unit: 6}]
  - {key: only, overrides_only: true, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_window}}
";

fn setup(lines: &[&str]) -> Setup {
    let setup = Setup::new(OnStoreFailure::Allow, |policy| {
        policy.response.metadata = MetadataDetail::WithLimits;
        policy.response.retry_after = Some("Retry-After".into());
    });
    setup.load(WITH_OVERRIDES);
    for line in lines {
        set(&setup, line);
    }
    setup
}

/// Sets an override of `key=v`.
fn set(setup: &Setup, line: &str) {
    let line = format!("{{\"domain\":\"d\",{line}}}");
    setup.overrides.set(&of_json_line(&line, setup.limiter.now()).unwrap().one).unwrap();
}

fn override_of(key: &str, action: &str) -> String {
    format!("\"descriptor\":\"{key}=v\",\"action\":\"{action}\"")
}

fn codes(setup: &Setup, key: &str, count: usize) -> Vec<Code> {
    (0..count).map(|_| setup.decide(&[key]).unwrap().code).collect()
}

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

#[test]
fn a_block_counts_hits_over_the_limit_and_nothing_in_the_store() {
    let setup = setup(&[&override_of("k", "block")]);
    let answer = setup.decide(&["k"]).unwrap();
    assert_eq!((answer.code, statuses(&answer)), (OVER, vec![(OVER, Some(3), 0)]));
    assert!(answer.response_headers.is_empty(), "without an expiry there is no Retry-After");
    assert_eq!(setup.counts("k"), [1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(setup.store.counters.usage().map(|usage| usage.held.entries), Some(0));
    set(&setup, &format!("{},\"for\":\"90s\"", override_of("k", "block")));
    let answer = setup.decide(&["k"]).unwrap();
    assert_eq!(answer.response_headers[0].value, "90");
    setup.clock.set(Time::from_seconds(7200 + 90));
    assert_eq!(codes(&setup, "k", 4), [OK, OK, OK, OVER]);
}

#[test]
fn a_block_rejects_in_shadow_mode_in_quota_mode_and_when_another_rule_replaces_the_limit() {
    for key in ["shadow", "quota"] {
        let setup = setup(&[&override_of(key, "block")]);
        assert_eq!(codes(&setup, key, 1), [OVER], "{key}");
    }
    let setup = setup(&[&override_of("quota", "block"), &override_of("k", "block")]);
    assert_eq!(setup.decide(&["quota", "replacer"]).unwrap().code, OVER, "even if quotas have hits left");
    assert_eq!(setup.decide(&["k", "replacer"]).unwrap().code, OVER);
    let setup = Setup::new(OnStoreFailure::Allow, |policy| policy.quota_mode = true);
    set(&setup, &override_of("k", "block"));
    assert_eq!(setup.decide(&["k", "quota"]).unwrap().code, OVER);
    let setup = Setup::new(OnStoreFailure::Allow, |policy| policy.shadow_mode = true);
    set(&setup, &override_of("k", "block"));
    assert_eq!(setup.decide(&["k"]).unwrap().code, OK, "SHADOW_MODE allows every request");
}

#[test]
fn a_limit_replaces_all_limits_of_a_rule_and_keeps_its_algorithm_and_name() {
    let limit = |key: &str, requests: u32| {
        format!("{},\"requests_per_unit\":{requests},\"unit\":\"hour\"", override_of(key, "limit"))
    };
    let setup = setup(&[&limit("several", 4), &limit("bucket", 1), &limit("k", 5), &limit("unknown", 1)]);
    assert_eq!(codes(&setup, "several", 5), [OK, OK, OK, OK, OVER]);
    assert_eq!(codes(&setup, "bucket", 2), [OK, OVER]);
    assert_eq!(codes(&setup, "unknown", 2), [OK, OVER], "it needs no rule");
    let decision = |key: &str| {
        let metadata = setup.decide(&[key]).unwrap().dynamic_metadata.unwrap();
        let Some(Value::List(descriptors)) = metadata.get("descriptors") else { panic!("{metadata:?}") };
        let Value::Map(first) = &descriptors[0] else { panic!("{metadata:?}") };
        let Some(Value::Map(decision)) = first.get("decision") else { panic!("{metadata:?}") };
        format!("{decision:?}")
    };
    assert!(decision("bucket").contains("token_bucket"), "{}", decision("bucket"));
    assert!(decision("k").contains("plain"), "{}", decision("k"));
    assert!(decision("k").contains("\"override\": Map({\"action\": Text(\"limit\")})"), "{}", decision("k"));
    let answer = setup.decide(&["k", "replacer"]).unwrap();
    assert_eq!(statuses(&answer)[0], (OK, None, 0), "another rule replaces the limit of this name");
}

#[test]
fn a_rule_for_overrides_only_replaces_nothing_without_one() {
    let codes = |setup: &Setup| [(); 4].map(|()| setup.decide(&["k", "apart"]).unwrap().code);
    assert_eq!(codes(&setup(&[])), [OK, OK, OK, OVER]);
    let limit = format!("{},\"requests_per_unit\":2,\"unit\":\"hour\"", override_of("apart", "limit"));
    assert_eq!(codes(&setup(&[&limit])), [OK, OK, OVER, OVER], "it limits, and the other is replaced");
}

#[test]
fn a_raised_limit_continues_the_rules_counter_and_ignores_the_over_limit_cache() {
    let setup = setup(&[]);
    assert_eq!(codes(&setup, "k", 5), [OK, OK, OK, OVER, OVER]);
    set(&setup, &format!("{},\"requests_per_unit\":6,\"unit\":\"hour\"", override_of("k", "limit")));
    assert_eq!(codes(&setup, "k", 3), [OK, OK, OVER], "four were counted");
}

fn later(setup: &Setup, seconds: u64) {
    setup.clock.set(Time::from_seconds(setup.limiter.now().seconds() + seconds));
}

/// What is used of each limit of a key, with the numbers of requests in force.
fn used(setup: &Setup, key: &str) -> Vec<(u64, u64)> {
    let counters = finish(pin!(setup.limiter.counters(&request(&[key])))).unwrap();
    counters[0].limits.iter().map(|one| (one.used, one.limit.requests_per_unit)).collect()
}

#[test]
fn an_override_of_one_limit_leaves_the_others_and_their_counters() {
    let setup = setup(&[]);
    assert_eq!(codes(&setup, "list", 4), [OK; 4]);
    let burst = |requests: u32| {
        format!(
            "{},\"name\":\"burst\",\"requests_per_unit\":{requests},\"unit\":\"second\"",
            override_of("list", "limit")
        )
    };
    set(&setup, &burst(2));
    assert_eq!(used(&setup, "list"), [(4, 2), (4, 600), (4, 8)], "every counter continues");
    assert_eq!(codes(&setup, "list", 1), [OVER]);
    later(&setup, 1);
    assert_eq!(codes(&setup, "list", 3), [OK, OK, OVER]);
    assert_eq!(used(&setup, "list")[2], (6, 8), "the day counts on");
    setup.overrides.remove(
        &of_json_line(&format!("{{\"domain\":\"d\",{}}}", burst(2)), setup.limiter.now()).unwrap().one.target,
    );
    later(&setup, 1);
    assert_eq!(codes(&setup, "list", 3), [OK, OK, OVER], "eight in a day, with the override and without");
}

#[test]
fn a_scale_follows_the_limits_of_the_rule() {
    let setup = setup(&[&format!("{},\"scale\":\"50%\"", override_of("list", "scale"))]);
    assert_eq!(used(&setup, "list"), [(0, 2), (0, 300), (0, 4)]);
    assert_eq!(codes(&setup, "list", 3), [OK, OK, OVER]);
    assert_eq!(used(&setup, "list").iter().map(|one| one.0).collect::<Vec<_>>(), [2, 2, 2]);
    setup.load(&WITH_OVERRIDES.replace("unit: day, requests_per_unit: 8", "unit: day, requests_per_unit: 6"));
    assert_eq!(used(&setup, "list")[2], (2, 3), "of the new rule");
    set(&setup, &format!("{},\"scale\":\"200%\",\"name\":\"day\"", override_of("list", "scale")));
    assert_eq!(used(&setup, "list")[2], (2, 12));
    assert_eq!(used(&setup, "list")[0], (2, 4), "of the rule, whose counter the scaled limit continued");
    set(&setup, &format!("{},\"scale\":\"50%\",\"name\":\"none\"", override_of("list", "scale")));
    assert_eq!(
        used(&setup, "list").iter().map(|one| one.1).collect::<Vec<_>>(),
        [4, 600, 6],
        "no such limit"
    );
}

#[test]
fn only_the_limit_that_an_override_changes_leaves_a_shared_counter() {
    let setup =
        setup(&["\"descriptor\":\"shared=sv\",\"action\":\"scale\",\"scale\":\"50%\",\"name\":\"hour\""]);
    let ask = |value: &str| {
        let descriptor = Descriptor {
            entries: std::iter::once(Entry { key: "shared", value }).collect(),
            ..Descriptor::default()
        };
        let descriptors = std::iter::once(descriptor).collect();
        let request = Request { domain: "d", descriptors, ..Request::default() };
        finish(pin!(setup.limiter.decide(&request, None, None))).unwrap().code
    };
    assert_eq!([(); 4].map(|()| ask("sw")), [OK; 4]);
    assert_eq!([(); 3].map(|()| ask("sv")), [OK, OK, OVER], "it has an hour of its own, and shares the day");
    later(&setup, 3600);
    assert_eq!([ask("sw"), ask("sv")], [OVER; 2], "the day of all values has six");
}

#[test]
fn a_scale_by_entry_leaves_the_counters_of_the_limits_that_it_does_not_change() {
    let scale = "\"entry\":{\"key\":\"list\",\"value\":\"v\"},\"action\":\"scale\",\"scale\":\"25%\",\"name\":\"burst\"";
    let setup = setup(&[]);
    assert_eq!(codes(&setup, "list", 2), [OK; 2]);
    set(&setup, scale);
    assert_eq!(used(&setup, "list"), [(0, 1), (2, 600), (2, 8)], "a changed limit has a counter of its own");
    assert_eq!(codes(&setup, "list", 2), [OK, OVER]);
    assert_eq!(used(&setup, "list")[2], (3, 8));
}

#[test]
fn allowed_and_shadowed_requests_pass() {
    let setup = setup(&[
        &override_of("k", "allow"),
        &override_of("several", "shadow"),
        &override_of("none", "shadow"),
    ]);
    assert_eq!(codes(&setup, "k", 9), [OK; 9]);
    assert_eq!(setup.counts("k"), [0; 7]);
    assert_eq!(codes(&setup, "several", 9), [OK; 9]);
    assert_eq!(setup.counts("several")[0], 9);
    assert_eq!(setup.counts("several")[5], 7, "as in shadow mode");
    let answer = setup.decide(&["none", "unknown"]).unwrap();
    assert_eq!(statuses(&answer), [(OK, None, 0); 2], "without a rule there is nothing to shadow");
}

#[test]
fn an_override_uses_the_algorithm_of_a_rule_for_overrides_only() {
    let setup = setup(&[]);
    let unlimited = setup.decide(&["only"]).unwrap();
    assert_eq!(statuses(&unlimited), [(OK, None, u32::MAX.into())]);
    set(&setup, &override_of("only", "shadow"));
    assert_eq!(statuses(&setup.decide(&["only"]).unwrap()), [(OK, Some(1), 0)]);
    set(&setup, &format!("{},\"requests_per_unit\":2,\"unit\":\"hour\"", override_of("only", "limit")));
    let metadata = format!("{:?}", setup.decide(&["only"]).unwrap().dynamic_metadata);
    assert!(metadata.contains("sliding_window"), "{metadata}");
}

#[test]
fn a_blocked_request_does_not_ask_the_store() {
    let setup = setup(&[&override_of("k", "block")]);
    setup.store.set_lost(Some(FailureReason::Timeout));
    let answer = setup.decide(&["k", "bucket"]).unwrap();
    assert_eq!(statuses(&answer), [(OVER, Some(3), 0), (OK, Some(9), 2)]);
    assert_eq!(setup.decide(&["k"]).unwrap().code, OVER);
    assert_eq!(setup.decided(OnStoreFailure::Allow, FailureReason::Timeout), 0, "a block needs no store");
}

#[test]
fn checks_of_a_request_with_a_block_and_cached_rejections_stay_in_order() {
    let setup = setup(&[&override_of("shadow", "block")]);
    assert_eq!(codes(&setup, "k", 4), [OK, OK, OK, OVER]);
    for keys in [["shadow", "k", "bucket"], ["bucket", "shadow", "k"]] {
        let answer = setup.decide(&keys).unwrap();
        let expected = |key: &&str| match *key {
            "shadow" => (OVER, Some(0)),
            "k" => (OVER, Some(3)),
            _ => (OK, Some(9)),
        };
        let seen: Vec<_> = statuses(&answer).iter().map(|(code, limit, _)| (*code, *limit)).collect();
        let expected: Vec<_> = keys.iter().map(expected).collect();
        assert_eq!(seen, expected, "{keys:?}");
    }
}

#[test]
fn many_values_with_overrides_and_without_a_rule_share_one_series() {
    let setup = Setup::new(OnStoreFailure::Allow, |_| ());
    setup.load("domain: d\ndescriptors: [{key: other, rate_limit: {unit: hour, requests_per_unit: 1}}]\n");
    for n in 0..50 {
        set(&setup, &format!("\"descriptor\":\"u={n}\",\"action\":\"block\""));
        let value = n.to_string();
        let descriptor = Descriptor {
            entries: std::iter::once(Entry { key: "u", value: &value }).collect(),
            ..Descriptor::default()
        };
        let request =
            Request { domain: "d", descriptors: std::iter::once(descriptor).collect(), ..Request::default() };
        assert_eq!(finish(pin!(setup.limiter.decide(&request, None, None))).unwrap().code, OVER);
    }
    let series = setup.stats.render(&|_| ());
    let of_overrides = series.lines().filter(|line| {
        line.starts_with("ratelimit_service_rate_limit_total_hits{") && line.contains("key1=\"u")
    });
    assert_eq!(of_overrides.count(), 1, "{series}");
}

#[test]
fn a_percentage_of_a_hold_is_of_the_number_in_force() {
    let setup = setup(&[]);
    let limit = "rate_limit: {unit: hour, requests_per_unit: 100, hold: {amount: 1, most: 20%, ttl: 10m}";
    let schedule = "schedule: [{requests_per_unit: 51, from: '02:00', to: '03:00'}]";
    let keys = ["plain", "scheduled", "limited", "scaled"];
    let rules = keys.map(|key| match key {
        "scheduled" => format!("{{key: {key}, {limit}, {schedule}}}}}"),
        _ => format!("{{key: {key}, {limit}}}}}"),
    });
    setup.load(&format!("domain: d\ndescriptors: [{}]\n", rules.join(", ")));
    set(&setup, &(override_of("limited", "limit") + ",\"requests_per_unit\":300,\"unit\":\"hour\""));
    set(&setup, &(override_of("scaled", "scale") + ",\"scale\":\"50%\""));
    let mut request = request(&keys);
    request.hits_addend = 90;
    // What it holds ends with it.
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    let counters = finish(pin!(setup.limiter.counters(&request))).unwrap();
    let held: Vec<_> = counters.iter().map(|counter| counter.limits[0].held).collect();
    assert_eq!((answer.code, held), (OK, [20, 11, 60, 10].map(Some).to_vec()));
    assert_eq!(setup.counts("plain")[0], 90, "the statistics have what was asked for");
}
