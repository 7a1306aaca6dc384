//! Counters that must not be one: of other callers, other windows, and other limits, in memory, in the cache of keys
//! that are over their limit, and where this process counts in place of a lost store.

use std::pin::pin;

use super::{
    house::{House, finish, request},
    *,
};
use crate::limiter::{Descriptor, Entry, LimitOverride};

/// 2026-11-22, 00:00:00 UTC: a minute, an hour, a day and a 30th of a month begin at once.
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

fn house(lost: bool) -> House {
    let house = House::new(OnStoreFailure::Local, |_| ());
    house.clock.set(Time::from_seconds(MIDNIGHT));
    house.load(APART);
    house.store.set_lost(lost.then_some(FailureReason::Timeout));
    house
}

fn left(house: &House, entries: &[(&str, &str)], limit: Option<LimitOverride>) -> u32 {
    let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let mut asked = request(&[]);
    asked.descriptors.push(Descriptor { entries, limit, ..Descriptor::default() });
    let answer = finish(pin!(house.limiter.decide(&asked, None, None))).unwrap();
    answer.statuses[0].limit_remaining
}

#[test]
fn a_value_cannot_reach_the_counter_of_another_caller() {
    for lost in [false, true] {
        let house = house(lost);
        for _ in 0..6 {
            left(&house, &[("path", "/home_user_victim")], None);
        }
        assert_eq!(left(&house, &[("path", "/home"), ("user", "victim")], None), 2, "lost: {lost}");
        assert_eq!(left(&house, &[("path", "/home"), ("user", "victim")], None), 1, "lost: {lost}");
    }
}

#[test]
fn each_window_has_its_own_counter_at_midnight() {
    for lost in [false, true] {
        let house = house(lost);
        let brings = |requests_per_unit, unit| Some(LimitOverride { requests_per_unit, unit });
        // Minute, hour, day and week by their numbers in Envoy's API; a week begins on another day.
        for _ in 0..5 {
            left(&house, &[("day", "v")], brings(2, 2));
        }
        assert_eq!(left(&house, &[("day", "v")], brings(50, 3)), 49, "lost: {lost}");
        assert_eq!(left(&house, &[("day", "v")], None), 99, "lost: {lost}");
        assert_eq!(left(&house, &[("day", "v")], brings(50, 7)), 49, "lost: {lost}");
        assert_eq!(left(&house, &[("day", "v")], brings(50, 4)), 48, "one of the same length counts on");
    }
}

#[test]
fn a_raised_limit_ignores_cached_rejections_of_the_old_one() {
    let house = house(false);
    for _ in 0..5 {
        left(&house, &[("path", "v")], None);
    }
    house.load(&APART.replace("requests_per_unit: 3", "requests_per_unit: 30"));
    assert_eq!(
        left(&house, &[("path", "v")], None),
        30 - 5,
        "four were counted, and one was known to be over"
    );
}

#[test]
fn statistics_of_huge_hits_saturate() {
    for hits in [1 << 32, 1 << 63, u64::MAX] {
        let house = House::new(OnStoreFailure::Error, |_| ());
        let mut asked = request(&["k", "shadow", "k", "shadow"]);
        for descriptor in &mut asked.descriptors {
            descriptor.hits_addend = Some(hits);
        }
        for n in 1..4_u64 {
            let answer = finish(pin!(house.limiter.decide(&asked, None, None))).unwrap();
            assert_eq!(answer.code, Code::OverLimit);
            let all = hits.saturating_mul(2 * n);
            for key in ["k", "shadow"] {
                let [total, over, near, within, _, shadow] = house.counts(key);
                assert_eq!(total, all, "{key} {hits}");
                // Three fit, one of them near the limit.
                assert!((all - 3..=all).contains(&over), "{key} {hits}: {over}");
                assert_eq!((near, within), (1, 0), "{key} {hits}");
                assert_eq!(shadow, if key == "shadow" { over } else { 0 });
            }
        }
    }
}
