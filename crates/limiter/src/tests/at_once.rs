//! Decisions without waiting for the store, by the over-limit cache.

use super::*;

const RULES: &str = "\
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: several, rate_limit: [{unit: second, requests_per_unit: 2}, {unit: hour, requests_per_unit: 5}]}
  - {key: detailed, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: free, rate_limit: {unlimited: true}}
";

const KEYS: [&str; 8] = ["k", "bucket", "shadow", "quota", "several", "detailed", "free", "unknown"];

fn setup(stop_when_over: bool) -> Setup {
    let setup = Setup::new(OnStoreFailure::Error, |policy| policy.stop_when_over = stop_when_over);
    setup.load(RULES);
    setup
}

fn at_once(setup: &Setup, keys: &[&str]) -> Option<Answer> {
    setup.limiter.decide_sync(&request(keys), setup.limiter.now()).map(Result::unwrap)
}

#[test]
fn a_key_that_is_known_to_be_over_is_refused_without_the_store() {
    let setup = setup(false);
    for _ in 0..4 {
        assert_eq!(at_once(&setup, &["k"]), None, "only the store knows");
        setup.decide(&["k"]).unwrap();
    }
    let counted = setup.limiter.over_limit.as_ref().unwrap().usage();
    let refused = at_once(&setup, &["k"]).unwrap();
    assert_eq!(statuses(&refused), [(Code::OverLimit, Some(3), 0)]);
    assert_eq!(at_once(&setup, &["k", "bucket"]), None, "the store counts the bucket");
    let usage = setup.limiter.over_limit.as_ref().unwrap().usage();
    assert_eq!((usage.lookups, usage.hits), (counted.lookups + 1, counted.hits + 1));
    // Total, over limit, near limit, within limit, over limit by the cache, shadow mode.
    assert_eq!(setup.counts("k"), [5, 2, 1, 3, 1, 0], "each hit once");
    assert_eq!(setup.store.last_until.lock().unwrap().take(), None);
    setup.store.set_lost(Some(FailureReason::Timeout));
    assert_eq!(at_once(&setup, &["k"]), Some(refused));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whether a request is tried or not, its answer, the statistics and the cache are the same.
    #[test]
    fn a_try_changes_nothing(
        requests in prop::collection::vec(
            (prop::collection::vec(0..KEYS.len(), 1..5), prop::option::of(0..4_u64), prop::bool::weighted(0.1), 0..40_u64),
            60..90,
        ),
        stop_when_over: bool,
    ) {
        let (tried, waiting) = (setup(stop_when_over), setup(stop_when_over));
        let (mut now, mut decided) = (7200, 0);
        for (keys, hits, back, seconds) in requests {
            let keys: Vec<_> = keys.into_iter().map(|at| KEYS[at]).collect();
            let mut request = request(&keys);
            request.descriptors[0].hits_addend = hits;
            request.descriptors[0].is_negative_hits = back;
            now += seconds / 10;
            for setup in [&tried, &waiting] {
                setup.clock.set(Time::from_seconds(now));
            }
            let expected = finish(pin!(waiting.limiter.decide(&request, None, None))).unwrap();
            let answer = match tried.limiter.decide_sync(&request, tried.limiter.now()) {
                Some(answer) => {
                    decided += 1;
                    answer.unwrap()
                }
                None => finish(pin!(tried.limiter.decide(&request, None, None))).unwrap(),
            };
            prop_assert_eq!(answer, expected);
        }
        prop_assert!(decided > 0);
        for key in KEYS {
            prop_assert_eq!(tried.counts(key), waiting.counts(key), "{}", key);
        }
        let [usage, expected] = [&tried, &waiting].map(|setup| setup.limiter.over_limit.as_ref().unwrap().usage());
        prop_assert_eq!((usage.lookups, usage.hits), (expected.lookups, expected.hits));
        prop_assert_eq!(usage.keys.entries, expected.keys.entries);
    }
}
