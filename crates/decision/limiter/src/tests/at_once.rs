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

fn try_decide(setup: &Setup, keys: &[&str]) -> Decided {
    setup.limiter.try_decide(&request(keys), setup.limiter.now(), None, None).unwrap()
}

/// The answer to a request that has to wait for the store.
fn wait(setup: &Setup, keys: &[&str]) -> Answer {
    match try_decide(setup, keys) {
        Decided::Wait(pending) => finish(pin!(pending)).decided.unwrap(),
        Decided::Answer(answer) => panic!("only the store knows: {answer:?}"),
    }
}

#[test]
fn a_key_that_is_known_to_be_over_is_refused_without_the_store() {
    let setup = setup(false);
    for _ in 0..4 {
        wait(&setup, &["k"]);
    }
    let counted = setup.limiter.over_limit.as_ref().unwrap().usage();
    setup.store.set_lost(Some(FailureReason::Timeout));
    let Decided::Answer(refused) = try_decide(&setup, &["k"]) else { panic!("the cache knows") };
    assert_eq!(statuses(&refused), [(Code::OverLimit, Some(3), 0)]);
    setup.store.set_lost(None);
    let both = wait(&setup, &["k", "bucket"]);
    assert_eq!(statuses(&both)[0], statuses(&refused)[0]);
    let usage = setup.limiter.over_limit.as_ref().unwrap().usage();
    assert_eq!((usage.lookups, usage.hits), (counted.lookups + 3, counted.hits + 2));
    // Total, over limit, near limit, within limit, over limit by the cache, shadow mode.
    assert_eq!(setup.counts("k"), [6, 3, 1, 3, 2, 0, 0], "each hit once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whether a request waits or not, its answer, the statistics and the cache are the same.
    #[test]
    fn a_wait_changes_nothing(
        requests in prop::collection::vec(
            (prop::collection::vec(0..KEYS.len(), 1..5), prop::option::of(0..4_u64), prop::bool::weighted(0.1), 0..40_u64),
            60..90,
        ),
        stop_when_over: bool,
    ) {
        let (near, remote) = (setup(stop_when_over), setup(stop_when_over));
        near.store.is_near.store(true, Relaxed);
        let (mut now, mut waited) = (7200, 0);
        for (keys, hits, back, seconds) in requests {
            let keys: Vec<_> = keys.into_iter().map(|at| KEYS[at]).collect();
            let mut request = request(&keys);
            request.descriptors[0].hits_addend = hits;
            request.descriptors[0].is_negative_hits = back;
            now += seconds / 10;
            for setup in [&near, &remote] {
                setup.clock.set(Time::from_seconds(now));
            }
            let answers = [&near, &remote].map(|setup| {
                match setup.limiter.try_decide(&request, setup.limiter.now(), None, None).unwrap() {
                    Decided::Answer(answer) => answer,
                    Decided::Wait(pending) => {
                        waited += 1;
                        finish(pin!(pending)).decided.unwrap()
                    }
                }
            });
            prop_assert_eq!(&answers[0], &answers[1]);
        }
        prop_assert!(waited > 0);
        for key in KEYS {
            prop_assert_eq!(near.counts(key), remote.counts(key), "{}", key);
        }
        let [usage, expected] = [&near, &remote].map(|setup| setup.limiter.over_limit.as_ref().unwrap().usage());
        prop_assert_eq!((usage.lookups, usage.hits), (expected.lookups, expected.hits));
        prop_assert_eq!(usage.keys.entries, expected.keys.entries);
    }
}
