//! Answers that do not come from a counter's own verdict: from the over-limit cache, and the time to wait of a request
//! with several limits.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{select, subsequence},
};

use super::{
    setup::{Setup, request},
    *,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: LIMIT}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: LIMIT}}
  - {key: window, rate_limit: {unit: minute, requests_per_unit: LIMIT, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: LIMIT, algorithm: sliding_log}}
  - {key: token, rate_limit: {unit: minute, requests_per_unit: LIMIT, algorithm: token_bucket}}
  - {key: leaky, rate_limit: {unit: minute, requests_per_unit: LIMIT, algorithm: leaky_bucket, burst: 3}}
  - key: list
    rate_limit:
    - {unit: minute, requests_per_unit: 4}
    - {unit: hour, requests_per_unit: LIMIT}
  - key: mixed
    rate_limit:
    - {unit: minute, requests_per_unit: 4, algorithm: token_bucket}
    - {unit: hour, requests_per_unit: LIMIT, algorithm: sliding_log}
    - {unit: day, requests_per_unit: 9}
  - {key: minute_quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: LIMIT}}
  - {key: hour_quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: LIMIT}}
";

const KEYS: [&str; 10] =
    ["fixed", "hour", "window", "log", "token", "leaky", "list", "mixed", "minute_quota", "hour_quota"];

/// All entries of the cache have expired by then, as have all states but those of an hour and a day.
const LONG: u64 = 3 * 86_400;

fn setup(has_cache: bool) -> Setup {
    let mut setup = Setup::new(OnStoreFailure::Deny, |_| ());
    let response = ResponseOptions { retry_after: Some("Retry-After".into()), ..ResponseOptions::default() };
    let policy = Policy { response, ..Policy::default() };
    let cache = has_cache.then(|| Arc::new(OverLimitCache::new(100_000)));
    let (source, store) = (setup.source.clone(), setup.store.clone());
    setup.limiter =
        Arc::new(Limiter::new(policy, source, store, cache, setup.stats.clone(), setup.clock.clone()));
    setup.store.is_near.store(true, Relaxed);
    setup.load(&RULES.replace("LIMIT", "6"));
    setup
}

fn decide(setup: &Setup, keys: &[&str], hits: u64, is_refund: bool) -> Answer {
    let mut request = request(keys);
    for descriptor in &mut request.descriptors {
        (descriptor.hits_addend, descriptor.is_negative_hits) = (Some(hits), is_refund);
    }
    match setup.limiter.try_decide(&request, setup.limiter.now(), None, None) {
        Ok(Decided::Answer(answer)) => answer,
        _ => panic!("it waits"),
    }
}

fn retry_after(answer: &Answer) -> Option<u64> {
    let header = answer.response_headers.iter().find(|header| &*header.name == "Retry-After");
    header.map(|header| header.value.parse().expect("a number"))
}

#[derive(Clone, Debug)]
enum Step {
    Take(&'static str, u64),
    Refund(&'static str, u64),
    Wait(u64),
    /// A reload that lowers the limits.
    Lower,
}

fn step() -> impl Strategy<Value = Step> {
    // A window that counts what it rejects does not count what the cache rejects, so that refunds differ.
    let refunded = select(&KEYS[2..8]);
    prop_oneof![
        20 => (select(&KEYS[..]), 1..9_u64).prop_map(|(key, hits)| Step::Take(key, hits)),
        2 => (refunded, 1..4_u64).prop_map(|(key, hits)| Step::Refund(key, hits)),
        4 => (0..40_u64).prop_map(Step::Wait),
        1 => Just(Step::Wait(LONG)),
        1 => Just(Step::Lower),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Hits that were admitted since a rejection make others wait for longer than the cache knows.
    #[test]
    fn the_cache_answers_what_the_counter_would(steps in vec(step(), 1..60)) {
        let (cached, exact) = (setup(true), setup(false));
        let mut is_changed = BTreeMap::new();
        for step in &steps {
            match *step {
                Step::Take(key, hits) => {
                    let [cached, exact] = [&cached, &exact].map(|setup| decide(setup, &[key], hits, false));
                    prop_assert_eq!(cached.code, exact.code, "{} {} of {:?}", hits, key, steps);
                    let [wait, true_wait] = [&cached, &exact].map(retry_after);
                    if exact.code == Code::Ok {
                        is_changed.entry(key).and_modify(|changed| *changed = true);
                    } else if *is_changed.entry(key).or_insert(false) {
                        prop_assert!(wait.is_none() == true_wait.is_none() && wait <= true_wait);
                    } else {
                        prop_assert_eq!(wait, true_wait, "{} {} of {:?}", hits, key, steps);
                        let [known, status] = [&cached, &exact].map(|answer| &answer.statuses[0]);
                        prop_assert_eq!(&known.current_limit, &status.current_limit, "{} {} of {:?}", hits, key, steps);
                        // A bucket, a sliding window and a log may have more by now, but not enough.
                        let is_count = !["window", "log", "token", "leaky", "mixed"].contains(&key);
                        prop_assert!(known.limit_remaining <= status.limit_remaining);
                        prop_assert!(!is_count || known.limit_remaining == status.limit_remaining);
                    }
                }
                Step::Refund(key, hits) => {
                    for setup in [&cached, &exact] {
                        decide(setup, &[key], hits, true);
                    }
                    is_changed.remove(key);
                }
                Step::Wait(seconds) => {
                    for setup in [&cached, &exact] {
                        setup.clock.set(Time::from_seconds(setup.limiter.now().seconds() + seconds));
                    }
                    if seconds == LONG {
                        is_changed.clear();
                    }
                }
                Step::Lower => {
                    for setup in [&cached, &exact] {
                        setup.load(&RULES.replace("LIMIT", "5"));
                    }
                }
            }
        }
    }

    #[test]
    fn the_same_request_passes_after_its_wait(
        before in vec((vec(select(&KEYS[..]), 1..4), 1..4_u64, 0..30_u64), 0..20),
        // Two descriptors of one counter would need room for both.
        keys in subsequence(&KEYS[..], 1..6),
        hits in 1..5_u64,
    ) {
        let setup = setup(false);
        let wait = |seconds| setup.clock.set(Time::from_seconds(setup.limiter.now().seconds() + seconds));
        for (keys, hits, seconds) in &before {
            decide(&setup, keys, *hits, false);
            wait(*seconds);
        }
        let answer = decide(&setup, &keys, hits, false);
        match retry_after(&answer) {
            Some(seconds) => wait(seconds),
            None if answer.code == Code::Ok => return Ok(()),
            None => wait(LONG),
        }
        let again = decide(&setup, &keys, hits, false);
        prop_assert_eq!(again.code == Code::Ok, retry_after(&answer).is_some(), "{:?} {:?}", answer, again);
    }
}

#[test]
fn a_rejection_of_few_hits_does_not_answer_for_more() {
    let setup = setup(true);
    let wait = |key, hits| retry_after(&decide(&setup, &[key], hits, false));
    for key in ["token", "window", "log", "list", "mixed"] {
        decide(&setup, &[key], 4, false);
    }
    assert_eq!([wait("token", 3), wait("token", 6), wait("token", 7)], [Some(10), Some(40), None]);
    assert_eq!([wait("list", 1), wait("list", 3), wait("list", 5)], [Some(60), Some(3600), None]);
    assert_eq!([wait("window", 3), wait("window", 7)], [Some(61), None]);
    assert_eq!([wait("mixed", 1), wait("mixed", 3)], [Some(15), Some(3600)]);
}

#[test]
fn a_wait_covers_a_limit_that_the_rejected_request_itself_used_up() {
    let setup = setup(false);
    decide(&setup, &["fixed", "hour"], 3, false);
    decide(&setup, &["fixed"], 3, false);
    let answer = decide(&setup, &["fixed", "hour"], 3, false);
    assert_eq!(retry_after(&answer), Some(3600), "the minute is over its limit, and the hour is used up now");
}
