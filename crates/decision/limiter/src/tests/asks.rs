//! Requests that only look, report or reserve.

use super::*;
use ::overrides::table::of_json_line;
use metrics::RuleCounter;

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: first, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: second, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: list, rate_limit: [{unit: second, requests_per_unit: 2}, {unit: hour, requests_per_unit: 5}]}
  - {key: token_bucket, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: sliding_window, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_window}}
  - {key: sliding_log, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_log}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: budget, rate_limit: {unit: hour, requests_per_unit: 100, hold: {amount: 40, ttl: 10m}}}
  - {key: cut, rate_limit: {unit: hour, requests_per_unit: 100, hold: {amount: 40, most: 50%, ttl: 10m}}}
  - {key: streams, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: {ttl: 10m}}}
";

/// The last is near: it answers at once.
fn setups(policy: OnStoreFailure, change: impl Fn(&mut Policy)) -> [Setup; 2] {
    [false, true].map(|is_near| {
        let setup = Setup::new(policy, &change);
        setup.load(RULES);
        setup.store.is_near.store(is_near, Relaxed);
        setup
    })
}

fn asked(setup: &Setup, keys: &[&str], ask: Ask, hits: u64) -> Result<Answer, RequestError> {
    let mut request = request(keys);
    request.ask = ask;
    request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(hits));
    finish(pin!(setup.limiter.decide(&request, None, None)))
}

fn look(setup: &Setup, keys: &[&str]) -> Code {
    asked(setup, keys, Ask::Look, 1).unwrap().code
}

fn report(setup: &Setup, key: &str, hits: u64) {
    let answer = asked(setup, &[key], Ask::Report, hits).unwrap();
    assert_eq!((answer.code, answer.statuses[0].code), (OK, OK), "a report of {key} passes");
}

fn reserve(setup: &Setup, key: &str, amount: u64) -> Answer {
    asked(setup, &[key], Ask::Reserve { ttl: None }, amount).unwrap()
}

/// What is left of the limit that governs a descriptor, by a read.
fn left(setup: &Setup, key: &str) -> u64 {
    asked(setup, &[key], Ask::Decide, 0).unwrap().statuses[0].limit_remaining
}

#[test]
fn a_look_says_whether_a_hit_fits_and_counts_nothing() {
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        for key in ["k", "list", "token_bucket", "sliding_window", "sliding_log", "second"] {
            for _ in 0..20 {
                assert_eq!(look(&setup, &[key]), OK, "{key}");
            }
        }
        assert_eq!(setup.counts("k"), [0; RuleCounter::ALL.len()]);
        assert_eq!(look(&setup, &["none"]), OVER);
        assert_eq!(look(&setup, &["k", "none"]), OVER, "of all descriptors");
        assert_eq!(look(&setup, &["free", "unknown", "k"]), OK);
        report(&setup, "k", 2);
        assert_eq!((look(&setup, &["k"]), left(&setup, "k")), (OK, 1));
        report(&setup, "k", 1);
        assert_eq!((look(&setup, &["k"]), look(&setup, &["k"]), left(&setup, "k")), (OVER, OVER, 0));
        // Total, over limit, near limit, within limit: what is reported, and what a look refused.
        assert_eq!(setup.counts("k")[..4], [5, 2, 1, 3]);
    }
}

#[test]
fn a_report_counts_beyond_the_limit_whatever_else_decides_requests() {
    for setup in setups(OnStoreFailure::Error, |policy| policy.stop_when_over = true) {
        report(&setup, "k", 2);
        report(&setup, "k", 20);
        report(&setup, "k", 5);
        // Total, over limit, near limit, within limit, over limit by the cache, shadow mode.
        assert_eq!(setup.counts("k")[..6], [27, 24, 1, 2, 0, 0], "also once the cache knows that it is over");
        assert_eq!(look(&setup, &["k"]), OVER);
        // Of a list each limit counts, also beside one that is over.
        report(&setup, "list", 4);
        setup.clock.set(Time::from_seconds(7202));
        assert_eq!((look(&setup, &["list"]), left(&setup, "list")), (OK, 1), "the hour has one more");
        report(&setup, "list", 1);
        assert_eq!(look(&setup, &["list"]), OVER);
        report(&setup, "shadow", 9);
        assert_eq!((look(&setup, &["shadow"]), left(&setup, "shadow")), (OK, 0));
        // The quota that is left suffices.
        report(&setup, "first", 9);
        assert_eq!((look(&setup, &["first"]), look(&setup, &["first", "second"])), (OVER, OK));
    }
}

#[test]
fn a_report_takes_what_is_left_of_limits_that_refuse_hits_beyond_them() {
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        for key in ["token_bucket", "sliding_window", "sliding_log"] {
            report(&setup, key, 4);
            assert_eq!(left(&setup, key), 6, "{key}");
            let taken = asked(&setup, &[key], Ask::Report, 7).unwrap();
            let read = asked(&setup, &[key], Ask::Decide, 0).unwrap();
            let resets = [&taken, &read].map(|answer| {
                let limit = answer.statuses[0].current_limit.as_ref().unwrap();
                limit.seconds_until_reset
            });
            assert!(resets[0] > 0 && resets[0] == resets[1], "{key}: {resets:?}");
            assert_eq!((left(&setup, key), look(&setup, &[key])), (0, OVER), "{key}");
            // Total and over limit, with the look.
            assert_eq!(setup.counts(key)[..2], [12, 8], "{key}");
            report(&setup, key, u64::MAX);
        }
    }
}

#[test]
fn overrides_apply_to_looks_and_reports() {
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        let set = |key: &str, action: &str| {
            let line = format!(r#"{{"domain":"d","descriptor":"{key}=v","action":{action}}}"#);
            setup.overrides.set(&of_json_line(&line, setup.limiter.now()).unwrap().one).unwrap();
        };
        set("k", r#""block""#);
        set("none", r#""allow""#);
        assert_eq!((look(&setup, &["k"]), look(&setup, &["none"])), (OVER, OK));
        let answer = asked(&setup, &["k", "second"], Ask::Report, 2).unwrap();
        assert_eq!((answer.code, left(&setup, "second")), (OK, 1), "the request did run");
    }
}

#[test]
fn a_reservation_where_nothing_holds_is_a_look() {
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        for (amount, code) in [(0, OK), (3, OK), (3, OK), (4, OVER), (u64::MAX, OVER)] {
            let answer = reserve(&setup, "k", amount);
            assert_eq!((answer.code, answer.hold), (code, None), "{amount}");
        }
        assert_eq!(left(&setup, "k"), 3);
        assert_eq!(reserve(&setup, "unknown", 9).code, OK);
    }
}

#[test]
fn a_reservation_holds_what_fits_and_is_refused_as_a_whole() {
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        let held = || left(&setup, "budget");
        let first = reserve(&setup, "budget", 60);
        assert_eq!((first.code, first.hold.is_some(), held()), (OK, true, 40));
        let over = reserve(&setup, "budget", 41);
        assert_eq!((over.code, over.hold, held()), (OVER, None, 40));
        // A hold of the ordinary kind is cut to the limit.
        for amount in [101, u64::MAX] {
            let over = reserve(&setup, "unused", amount);
            assert_eq!((over.code, over.hold), (OK, None), "no rule");
            let both = asked(&setup, &["budget", "streams"], Ask::Reserve { ttl: None }, amount).unwrap();
            assert_eq!((both.code, both.hold, held()), (OVER, None, 40), "{amount}");
        }
        assert_eq!(look(&setup, &["streams"]), OK, "nothing is held beside what is refused");
        // A limit that does not hold refuses before anything is held.
        let beside = asked(&setup, &["budget", "k"], Ask::Reserve { ttl: None }, 4).unwrap();
        assert_eq!((beside.code, beside.hold, held()), (OVER, None, 40));
        assert_eq!(reserve(&setup, "budget", 40).code, OK);
        assert_eq!((held(), look(&setup, &["budget"])), (0, OVER), "a look sees what is reserved");
        let none = reserve(&setup, "budget", 0);
        assert_eq!((none.code, none.hold), (OK, None));
        report(&setup, "budget", 30);
        report(&setup, "budget", 300);
        let one = reserve(&setup, "streams", 7);
        assert_eq!((one.code, one.hold.is_some()), (OK, true), "one at a time, whatever it costs");
        report(&setup, "streams", 7);
        assert_eq!((look(&setup, &["streams"]), reserve(&setup, "streams", 7).code), (OVER, OVER));
    }
}

#[test]
fn most_cuts_a_reservation_and_no_report() {
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        let reserved = reserve(&setup, "cut", 1000);
        assert_eq!((reserved.code, reserved.hold.is_some(), left(&setup, "cut")), (OK, true, 50));
        report(&setup, "cut", 60);
        assert_eq!(left(&setup, "cut"), 0);
        assert_eq!(reserve(&setup, "cut", 1).code, OVER);
    }
}

#[test]
fn a_request_without_descriptors_is_only_an_error_of_decisions() {
    let [setup, _] = setups(OnStoreFailure::Error, |_| ());
    for ask in [Ask::Look, Ask::Report, Ask::Reserve { ttl: None }] {
        let answer = asked(&setup, &[], ask, 1).unwrap();
        assert_eq!((answer.code, answer.statuses.len(), answer.hold), (OK, 0, None));
        let empty = Request {
            domain: "d",
            ask,
            descriptors: std::iter::once(Descriptor::default()).collect(),
            ..Request::default()
        };
        assert_eq!(finish(pin!(setup.limiter.decide(&empty, None, None))).unwrap().code, OK);
    }
    assert_eq!(asked(&setup, &[], Ask::Decide, 1), Err(RequestError::NoDescriptors));
    assert_eq!(setup.stats.service().service_error.get(), 1);
}

#[test]
fn the_failure_policy_decides_what_a_lost_store_does_not() {
    for (policy, looked) in [
        (OnStoreFailure::Error, None),
        (OnStoreFailure::Allow, Some(OK)),
        (OnStoreFailure::Deny, Some(OVER)),
        (OnStoreFailure::Local, Some(OK)),
        (OnStoreFailure::Share, Some(OK)),
    ] {
        let [setup, _] = setups(policy, |_| ());
        setup.store.set_lost(Some(FailureReason::Timeout));
        let answer = asked(&setup, &["k"], Ask::Look, 1);
        assert_eq!(answer.ok().map(|answer| answer.code), looked, "{policy:?}");
        let answer = asked(&setup, &["k"], Ask::Report, 9);
        assert_eq!(answer.ok().map(|answer| answer.code), looked.map(|_| OK), "{policy:?}");
        let held = asked(&setup, &["budget"], Ask::Reserve { ttl: None }, 9);
        assert_eq!(held.ok().map(|answer| answer.code), looked, "{policy:?}");
        if looked == Some(OK) && policy != OnStoreFailure::Allow {
            assert_eq!(look(&setup, &["k"]), OVER, "{policy:?}: the replica's memory has the report");
        }
    }
}

#[test]
fn a_malformed_identity_is_counted_and_the_report_stands() {
    let long = "A".repeat(500);
    for setup in setups(OnStoreFailure::Error, |_| ()) {
        let mut commit = request(&["k"]);
        commit.ask = Ask::Report;
        for (reservation, unknown) in [("", 0), ("no identity", 1), (&*long, 2)] {
            commit.reservation = reservation;
            let answer = finish(pin!(setup.limiter.decide(&commit, None, None))).unwrap();
            assert!(!answer.released);
            assert_eq!(setup.stats.holds().unknown_ids.get(), unknown, "{reservation}");
        }
        assert_eq!(left(&setup, "k"), 0);
    }
}
