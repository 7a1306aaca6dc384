//! Counters that must be separate: of different callers, windows and limits, in memory, in the over-limit cache, and in
//! the local fallback.

use std::pin::pin;

use super::{
    setup::{Setup, finish, request},
    *,
};
use crate::{Descriptor, Entry, LimitOverride};

/// 2026-11-22, 00:00:00 UTC: a minute, an hour, a day and a 30th of a month begin at the same time.
const MIDNIGHT: u64 = 1_795_305_600;

const APART: &str = "\
domain: d
descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 3}
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 100}}
";

fn setup(lost: bool) -> Setup {
    let setup = Setup::new(OnStoreFailure::Local, |_| ());
    setup.clock.set(Time::from_seconds(MIDNIGHT));
    setup.load(APART);
    setup.store.set_lost(lost.then_some(FailureReason::Timeout));
    setup
}

fn left(setup: &Setup, entries: &[(&str, &str)], limit: Option<LimitOverride>) -> u64 {
    let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let mut asked = request(&[]);
    asked.descriptors.push(Descriptor { entries, limit, ..Descriptor::default() });
    let answer = finish(pin!(setup.limiter.decide(&asked, None, None))).unwrap();
    answer.statuses[0].limit_remaining
}

#[test]
fn a_value_cannot_reach_the_counter_of_another_caller() {
    for lost in [false, true] {
        let setup = setup(lost);
        for _ in 0..6 {
            left(&setup, &[("path", "/home_user_victim")], None);
        }
        assert_eq!(left(&setup, &[("path", "/home"), ("user", "victim")], None), 2, "lost: {lost}");
        assert_eq!(left(&setup, &[("path", "/home"), ("user", "victim")], None), 1, "lost: {lost}");
    }
}

#[test]
fn each_window_has_its_own_counter_at_midnight() {
    for lost in [false, true] {
        let setup = setup(lost);
        let of_request =
            |requests_per_unit, unit| Some(LimitOverride { requests_per_unit, unit, unit_multiplier: None });
        // Minute, hour, day and week by their numbers in Envoy's API; a week begins on another day.
        for _ in 0..5 {
            left(&setup, &[("day", "v")], of_request(2, 2));
        }
        assert_eq!(left(&setup, &[("day", "v")], of_request(50, 3)), 49, "lost: {lost}");
        assert_eq!(left(&setup, &[("day", "v")], None), 99, "lost: {lost}");
        assert_eq!(left(&setup, &[("day", "v")], of_request(50, 7)), 49, "lost: {lost}");
        assert_eq!(
            left(&setup, &[("day", "v")], of_request(50, 4)),
            48,
            "another limit of the same length shares the counter"
        );
    }
}

#[test]
fn a_raised_limit_ignores_cached_rejections_of_the_old_one() {
    let setup = setup(false);
    for _ in 0..5 {
        left(&setup, &[("path", "v")], None);
    }
    setup.load(&APART.replace("requests_per_unit: 3", "requests_per_unit: 30"));
    assert_eq!(
        left(&setup, &[("path", "v")], None),
        30 - 5,
        "four were counted, and one was known to be over"
    );
}

#[test]
fn statistics_of_huge_hits_saturate() {
    for hits in [1 << 32, 1 << 63, u64::MAX] {
        let setup = Setup::new(OnStoreFailure::Error, |_| ());
        let mut asked = request(&["k", "shadow", "k", "shadow"]);
        for descriptor in &mut asked.descriptors {
            descriptor.hits_addend = Some(hits);
        }
        for n in 1..4_u64 {
            let answer = finish(pin!(setup.limiter.decide(&asked, None, None))).unwrap();
            assert_eq!(answer.code, Code::OverLimit);
            let all = hits.saturating_mul(2 * n);
            for key in ["k", "shadow"] {
                let [total, over, near, within, _, shadow, _] = setup.counts(key);
                assert_eq!(total, all, "{key} {hits}");
                // Three fit, one of them near the limit.
                assert!((all - 3..=all).contains(&over), "{key} {hits}: {over}");
                assert_eq!((near, within), (1, 0), "{key} {hits}");
                assert_eq!(shadow, if key == "shadow" { over } else { 0 });
            }
        }
    }
}
