//! Rules with several limits, and with other algorithms than fixed windows.

use super::*;

/// The status of a descriptor.
#[derive(Debug, PartialEq)]
struct Reported {
    code: Code,
    name: Option<String>,
    remaining: u64,
    reset: u64,
}

fn status(code: Code, name: &str, remaining: u64, reset: u64) -> Reported {
    Reported { code, name: Some(name.to_owned()).filter(|name| !name.is_empty()), remaining, reset }
}

/// A limiter whose rules have one descriptor `k` with these fields.
fn setup(rest: &str, change: impl FnOnce(&mut Policy)) -> Setup {
    let setup = Setup::new(OnStoreFailure::Error, change);
    setup.load(&format!(
        "domain: d\ndescriptors:\n- key: k\n  {rest}\n- key: other\n  rate_limit: {{unit: day, \
                         requests_per_unit: 9, replaces: [{{name: spike}}]}}\n- key: others\n  rate_limit: {{unit: day, \
                         requests_per_unit: 9}}\n"
    ));
    setup
}

/// Decides a request with these hits at this millisecond, for the descriptor `k` and others.
fn ask(setup: &Setup, millis: u64, hits: u64, others: &[&str]) -> Reported {
    let keys = [&["k"], others].concat();
    let mut request = request(&keys);
    request.descriptors[0].hits_addend = Some(hits);
    setup.clock.set(Time::from_micros(7_200_000_000 + millis * 1000));
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    let Status { code, current_limit, limit_remaining } = answer.statuses[0].clone();
    let limit = current_limit.unwrap();
    Reported {
        code,
        name: limit.name.as_deref().map(ToOwned::to_owned),
        remaining: limit_remaining,
        reset: limit.seconds_until_reset,
    }
}

const WINDOWS: &str = "rate_limit: [{unit: second, requests_per_unit: 2, name: spike}, {unit: hour, \
                       requests_per_unit: 5, name: steady}]";

#[test]
fn the_limit_with_the_smallest_remaining_part_governs_until_one_rejects() {
    let setup = setup(WINDOWS, |_| ());
    for (millis, hits, expected) in [
        (0, 1, status(Code::Ok, "spike", 1, 1)),
        (0, 1, status(Code::Ok, "spike", 0, 1)),
        (1000, 0, status(Code::Ok, "steady", 3, 3599)),
        (1000, 1, status(Code::Ok, "steady", 2, 3599)),
        // Hits that one limit rejects are counted by none.
        (1500, 2, status(Code::OverLimit, "spike", 1, 1)),
        (1500, 0, status(Code::Ok, "steady", 2, 3599)),
        (2000, 1, status(Code::Ok, "steady", 1, 3598)),
        (2000, 2, status(Code::OverLimit, "steady", 1, 3598)),
        (2000, 1, status(Code::Ok, "spike", 0, 1)),
        (3000, 1, status(Code::OverLimit, "steady", 0, 3597)),
    ] {
        assert_eq!(ask(&setup, millis, hits, &[]), expected, "{hits} at {millis}");
    }
}

#[test]
fn hits_are_counted_once_by_the_governing_limit() {
    let setup = setup(WINDOWS, |policy| policy.near_limit_ratio = 0.5);
    for (millis, hits) in [(0, 1), (0, 3), (5000, 1)] {
        ask(&setup, millis, hits, &[]);
    }
    // One hit is within and not near; three are rejected; the last is within the second and the hour.
    assert_eq!(setup.counts("k"), [5, 3, 0, 2, 0, 0, 0]);
    ask(&setup, 7000, 1, &[]);
    assert_eq!(setup.counts("k"), [6, 3, 1, 3, 0, 0, 0], "near in the hour");
}

#[test]
fn a_rejection_by_one_limit_consumes_from_none_under_any_policy() {
    let list = "rate_limit: [{unit: second, requests_per_unit: 2, algorithm: token_bucket, name: spike}, \
                {unit: hour, requests_per_unit: 3, algorithm: sliding_log, name: steady}]";
    for stop in [true, false] {
        let setup = setup(list, |policy| policy.stop_when_over = stop);
        assert_eq!(ask(&setup, 0, 2, &[]), status(Code::Ok, "spike", 0, 1));
        assert_eq!(ask(&setup, 100, 1, &[]), status(Code::OverLimit, "spike", 0, 1));
        assert_eq!(ask(&setup, 1100, 0, &[]), status(Code::Ok, "steady", 1, 3599));
    }
}

/// Limits of 30 per second and 70 per minute: all 70 requests of a client that keeps retrying pass.
#[test]
fn a_client_that_keeps_retrying_gets_the_full_longer_limit() {
    for (lost, flag) in [(None, ""), (Some(FailureReason::Timeout), ""), (None, "shadow_mode: true\n  ")] {
        let list =
            "rate_limit: [{unit: second, requests_per_unit: 30}, {unit: minute, requests_per_unit: 70}]";
        let setup = setup(&format!("{flag}{list}"), |own| own.on_store_failure = OnStoreFailure::Local);
        setup.store.set_lost(lost);
        let mut passed = [0; 6];
        for millis in (0..6000).step_by(10) {
            let refused = setup.counts("k")[1];
            ask(&setup, millis, 1, &[]);
            passed[usize::try_from(millis / 1000).unwrap()] += 1 - (setup.counts("k")[1] - refused);
        }
        assert_eq!(passed, [30, 30, 10, 0, 0, 0], "{lost:?} {flag}");
    }
}

#[test]
fn a_rejected_descriptor_with_one_limit_counts_beside_a_rule_with_several() {
    let setup = setup(WINDOWS, |_| ());
    // `k` has no hits left in this second: the hour counts none, but the other descriptor does.
    for (at, expected) in [(0, 8), (1, 7), (2, 6), (3, 5)] {
        let answer = setup.decide(&["k", "others"]).map(|answer| answer.code);
        let code = if at < 2 { Code::Ok } else { Code::OverLimit };
        assert_eq!(answer.unwrap(), code);
        let mut look = request(&["others"]);
        look.descriptors[0].hits_addend = Some(0);
        let answer = finish(pin!(setup.limiter.decide(&look, None, None))).unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, expected);
    }
    assert_eq!(ask(&setup, 1000, 0, &[]), status(Code::Ok, "steady", 3, 3599));
}

#[test]
fn a_refund_reaches_every_limit_of_a_rule() {
    let setup = setup(WINDOWS, |_| ());
    assert_eq!(ask(&setup, 0, 2, &[]), status(Code::Ok, "spike", 0, 1));
    assert_eq!(ask(&setup, 0, 1, &[]), status(Code::OverLimit, "spike", 0, 1));
    let mut back = request(&["k"]);
    (back.descriptors[0].hits_addend, back.descriptors[0].is_negative_hits) = (Some(2), true);
    assert_eq!(statuses(&finish(pin!(setup.limiter.decide(&back, None, None))).unwrap())[0].2, 2);
    assert_eq!(ask(&setup, 0, 2, &[]), status(Code::Ok, "spike", 0, 1));
    assert_eq!(ask(&setup, 1000, 0, &[]), status(Code::Ok, "steady", 3, 3599));
}

#[test]
fn a_rejected_key_skips_the_store_until_its_retry_time() {
    let setup = setup("rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket}", |_| ());
    assert_eq!(ask(&setup, 0, 2, &[]), status(Code::Ok, "", 0, 1));
    assert_eq!(ask(&setup, 100, 2, &[]), status(Code::OverLimit, "", 0, 1));
    // The store is lost; a cached rejection does not need it.
    setup.store.set_lost(Some(FailureReason::Timeout));
    assert_eq!(ask(&setup, 999, 2, &[]), status(Code::OverLimit, "", 0, 1));
    assert_eq!(setup.counts("k"), [6, 4, 1, 2, 2, 0, 0]);
    setup.store.set_lost(None);
    assert_eq!(ask(&setup, 600, 1, &[]), status(Code::Ok, "", 0, 1), "fewer hits may fit before");
    assert_eq!(ask(&setup, 1000, 2, &[]), status(Code::OverLimit, "", 1, 1), "another request has taken one");
    assert_eq!(ask(&setup, 1500, 2, &[]), status(Code::Ok, "", 0, 1));
}

#[test]
fn every_algorithm_reports_remaining_and_reset() {
    for (algorithm, hits, first, ten_seconds_later) in [
        ("fixed_window", 2, (3, 900), (0, 890)),
        // Half a window later one of the two no longer counts, and shortly after neither does.
        ("sliding_window", 2, (3, 1351), (3, 1341)),
        ("sliding_log", 2, (3, 900), (3, 890)),
        ("token_bucket", 2, (3, 360), (3, 350)),
        ("token_bucket, burst: 2", 1, (1, 180), (1, 170)),
        ("leaky_bucket, burst: 5", 1, (4, 180), (4, 170)),
    ] {
        let limit =
            format!("unit: minute, unit_multiplier: 15, requests_per_unit: 5, algorithm: {algorithm}");
        let setup = setup(&format!("rate_limit: {{{limit}}}"), |_| ());
        let (remaining, reset) = first;
        assert_eq!(ask(&setup, 0, hits, &[]), status(Code::Ok, "", remaining, reset), "{algorithm}");
        let (remaining, reset) = ten_seconds_later;
        let refused = status(Code::OverLimit, "", remaining, reset);
        assert_eq!(ask(&setup, 10_000, 6, &[]), refused, "{algorithm}");
    }
}

#[test]
fn answers_contain_the_multiplier() {
    let setup = setup("rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 5}", |_| ());
    let answer = setup.decide(&["k"]).unwrap();
    let limit = answer.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.unit.name(), limit.multiplier.get(), limit.seconds_until_reset), ("MINUTE", 15, 900));
}

#[test]
fn one_limit_of_a_list_may_be_replaced() {
    let setup = setup(WINDOWS, |_| ());
    assert_eq!(ask(&setup, 0, 3, &["other"]), status(Code::Ok, "steady", 2, 3600));
    assert_eq!(setup.counts("k"), [3, 0, 0, 3, 0, 0, 0]);
    let all = setup_with_one_name();
    let answer = all.decide(&["k", "other"]).unwrap();
    assert_eq!(answer.statuses[0], Status::NO_LIMIT);
    assert_eq!(all.counts("k"), [0; 7]);
}

fn setup_with_one_name() -> Setup {
    setup(&WINDOWS.replace("steady", "spike"), |_| ())
}

#[test]
fn a_rule_with_one_cached_rejection_skips_the_store() {
    let setup = setup(WINDOWS, |_| ());
    ask(&setup, 0, 2, &[]);
    ask(&setup, 0, 2, &[]);
    assert_eq!(setup.counts("k"), [4, 2, 1, 2, 0, 0, 0]);
    // The limit per second is known to reject two hits, and the store, which has the hour, is lost.
    setup.store.set_lost(Some(FailureReason::Timeout));
    assert_eq!(ask(&setup, 500, 2, &[]), status(Code::OverLimit, "spike", 0, 1));
    assert_eq!(setup.counts("k"), [6, 4, 1, 2, 2, 0, 0]);
    setup.store.set_lost(None);
    assert_eq!(ask(&setup, 500, 1, &[]), status(Code::OverLimit, "spike", 0, 1), "fewer hits are checked");
    assert_eq!(ask(&setup, 1000, 0, &[]), status(Code::Ok, "steady", 3, 3599));
}

#[test]
fn a_replaced_limit_counts_nothing() {
    let setup = setup(WINDOWS, |_| ());
    assert_eq!(ask(&setup, 0, 6, &["other"]), status(Code::OverLimit, "steady", 5, 3600));
    assert_eq!(ask(&setup, 0, 4, &["other"]), status(Code::Ok, "steady", 1, 3600));
    assert_eq!(ask(&setup, 1000, 0, &[]), status(Code::Ok, "steady", 1, 3599));
}

#[test]
fn a_failed_store_leaves_all_limits_full_or_all_exhausted() {
    let list = "rate_limit: [{unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 7, name: \
                spike}, {unit: hour, requests_per_unit: 5, algorithm: sliding_window, name: steady}]";
    for (policy, expected) in [
        (OnStoreFailure::Allow, status(Code::Ok, "spike", 7, 0)),
        (OnStoreFailure::Deny, status(Code::OverLimit, "steady", 0, 3600)),
        (OnStoreFailure::Local, status(Code::Ok, "steady", 4, 3601)),
    ] {
        let setup = setup(list, |own| own.on_store_failure = policy);
        setup.store.set_lost(Some(FailureReason::Timeout));
        assert_eq!(ask(&setup, 0, 1, &[]), expected, "{policy:?}");
    }
}

#[test]
fn an_override_is_a_plain_fixed_window() {
    let setup = setup(WINDOWS, |_| ());
    let mut request = request(&["k"]);
    request.descriptors[0].limit =
        Some(LimitOverride { requests_per_unit: 7, unit: 4, unit_multiplier: None });
    let answer = finish(pin!(setup.limiter.decide(&request, None, None))).unwrap();
    assert_eq!(statuses(&answer), [(Code::Ok, Some(7), 6)]);
}
