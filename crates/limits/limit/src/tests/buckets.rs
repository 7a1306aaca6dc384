//! Buckets against exact fractions, and against the `governor` crate.

use std::{
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

use governor::{Quota, RateLimiter, clock::FakeRelativeClock};

use super::*;

/// A bucket in exact fractions: its unit is a microsecond divided by the requests of the limit.
struct Exact {
    requests: i128,
    window: i128,
    burst: i128,
    /// The missing part at the last change.
    missing: i128,
    changed: i128,
}

impl Exact {
    fn new(requests: u64, window: Window, burst: u64) -> Self {
        let [requests, window, burst] = [requests, window.micros(), burst].map(i128::from);
        Self { requests, window, burst, missing: 0, changed: 0 }
    }

    /// The missing part now: more than before if time has run backwards.
    fn missing(&self, now: u64) -> i128 {
        let missing = (self.missing - (i128::from(now) - self.changed) * self.requests).max(0);
        let too_far = missing > self.burst * self.window + i128::from(LEEWAY) * self.requests;
        if too_far { self.burst * self.window } else { missing }
    }

    /// The excess of these hits; they are rejected if it is above 0.
    fn excess(&self, hits: u64, now: u64) -> i128 {
        self.missing(now) + (i128::from(hits) - self.burst) * self.window
    }

    fn count(&mut self, hits: Hits, admitted: bool, now: u64) {
        let missing = self.missing(now);
        let after = match hits {
            Hits::Take(hits) if admitted => missing + i128::from(hits) * self.window,
            Hits::Take(_) => missing,
            Hits::Refund(hits) => (missing - i128::from(hits) * self.window).max(0),
        };
        let left = (self.missing - (i128::from(now) - self.changed) * self.requests).max(0);
        if after != left {
            (self.missing, self.changed) = (after, i128::from(now));
        }
    }
}

/// Limits whose ticks are microseconds.
fn even_requests() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 1000, 1024, 8000, 100_000, 1_000_000])
}

fn bursts() -> impl Strategy<Value = Option<NonZeroU64>> {
    prop_oneof![Just(None), (1..40_u64).prop_map(NonZeroU64::new), requests().prop_map(NonZeroU64::new)]
}

proptest! {
    // A million steps in two tests.
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_bucket_with_microsecond_ticks_is_exact(
        requests in even_requests(), window in prop::sample::select(vec![1_u64, 60, 900, 3600, 86_400]),
        burst in (1..2000_u64).prop_map(NonZeroU64::new), steps in steps(1000),
    ) {
        let window = Window::of_seconds(window).unwrap();
        let bucket = Bucket::token(requests, window, burst);
        prop_assume!(bucket.ticks_per_second() == 1_000_000);
        let (mut state, mut now) = (State::default(), BEGIN);
        let mut exact = Exact::new(requests, window, bucket.burst());
        for step in steps {
            now = step.moment(now, window, bucket.burst());
            let hits = step.hits(bucket.burst());
            let verdict = apply(bucket, &mut state, step, hits, now)?;
            let fits = hits.taken() == 0 || exact.excess(hits.taken(), now) <= 0;
            prop_assert_eq!(verdict.admitted, fits, "{:?} at {}", hits, now);
            exact.count(hits, fits, now);
        }
    }

    #[test]
    fn every_bucket_is_exact_to_a_microsecond(
        requests in requests(), window in windows(), burst in bursts(), leaky: bool, steps in steps(1000),
    ) {
        let make = if leaky { Bucket::leaky } else { Bucket::token };
        let bucket = make(requests, window, burst);
        let is_exact = u128::from(bucket.ticks_per_second()) * u128::from(window.seconds())
            == u128::from(bucket.ticks_per_hit()) * u128::from(requests);
        let is_fine = bucket.ticks_per_second() >= 1_000_000;
        let (mut state, mut latest) = (State::default(), BEGIN);
        let mut exact = Exact::new(requests, window, bucket.burst());
        for step in steps {
            let now;
            (latest, now) = step.moment_of_a_good_clock(latest, window, bucket.burst());
            let hits = step.hits(bucket.burst());
            let verdict = apply(bucket, &mut state, step, hits, now)?;
            if hits.taken() > 0 && is_exact && is_fine {
                let excess = exact.excess(hits.taken(), now);
                let tick = i128::from(requests);
                prop_assert!(!verdict.admitted || excess < tick, "{excess} too many at {now}");
                prop_assert!(verdict.admitted || excess > -tick, "{excess} too few at {now}");
            }
            exact.count(hits, verdict.admitted, now);
        }
    }
}

proptest! {
    #[test]
    fn rates_are_exact_or_slightly_slower(requests in requests(), window in windows(), burst in bursts()) {
        let bucket = Bucket::token(requests, window, burst);
        let (ticks_per_second, ticks_per_hit, held) = (bucket.ticks_per_second(), bucket.ticks_per_hit(), bucket.burst());
        prop_assert!(ticks_per_second <= 1 << 32 && held * ticks_per_hit <= 1 << 52);
        let burst = burst.map_or(requests, NonZeroU64::get);
        if requests == 0 || burst == 0 {
            prop_assert_eq!(held, 0);
            return Ok(());
        }
        // Hits per window: configured and actual.
        let asked = u128::from(requests) * u128::from(ticks_per_hit);
        let given = u128::from(ticks_per_second) * u128::from(window.seconds());
        prop_assert!(given <= asked && (asked - given) * u128::from(ticks_per_second) < asked);
        // A bucket that fills in ten years is exact to a ten-millionth, and its ticks are below a microsecond.
        let fills_in = u128::from(burst) * u128::from(window.seconds()) / u128::from(requests);
        if fills_in <= 315_360_000 {
            prop_assert!(held == burst && ticks_per_second >= 1_000_000);
            prop_assert!((asked - given) * 10_000_000 <= asked);
        }
    }

    #[test]
    fn accepts_any_numbers(
        requests: u32, window in windows(), burst in bursts(), number: u64, hits: u64, back: bool, now: u64,
    ) {
        let hits = if back { Hits::Refund(hits) } else { Hits::Take(hits) };
        let state = State { number, end: Time::from_micros(now) };
        let _ = Bucket::token(requests.into(), window, burst).apply(state, hits, Time::from_micros(now));
    }

    #[test]
    fn agrees_with_governor(
        period in prop_oneof![1..50_u64, 1..5_000_000_u64], burst in 1..50_u32,
        steps in prop::collection::vec((0..4_u8, any::<u64>(), 1..60_u32), 1..500),
    ) {
        // A hit in `period` microseconds is this many in as many seconds.
        let window = Window::of_seconds(period).unwrap();
        let bucket = Bucket::leaky(1_000_000, window, NonZeroU64::new(burst.into()));
        let clock = FakeRelativeClock::default();
        let quota = Quota::with_period(Duration::from_micros(period)).unwrap();
        let quota = quota.allow_burst(NonZeroU32::new(burst).unwrap());
        let governor = RateLimiter::direct_with_clock(quota, clock.clone());
        let (mut state, mut now) = (State::default(), BEGIN);
        for (kind, long, hits) in steps {
            let pause = match kind {
                0 => 0,
                1 | 2 => long % (2 * period),
                _ => long % (period * u64::from(burst) * 2),
            };
            clock.advance(Duration::from_micros(pause));
            now += pause;
            let hits = if hits > 55 { hits } else { hits % 5 + 1 };
            let verdict;
            (state, verdict) = bucket.apply(state, Hits::Take(hits.into()), Time::from_micros(now));
            let expected = match governor.check_n(NonZeroU32::new(hits).unwrap()) {
                Err(_) => None,
                Ok(Ok(())) => Some(Duration::ZERO),
                Ok(Err(not_until)) => Some(not_until.wait_time_from(governor::clock::Clock::now(&clock))),
            };
            prop_assert_eq!(verdict.retry_after.map(Duration::from_micros), expected);
        }
    }
}

#[test]
fn default_bursts_of_token_and_leaky_buckets() {
    let minute = Window::of_seconds(60).unwrap();
    let at = |seconds: u64| Time::from_seconds(1_000_000 + seconds);
    let token = Bucket::token(60, minute, None);
    let (state, first) = token.apply(State::default(), Hits::Take(60), at(0));
    assert_eq!((first.admitted, first.remaining, first.reset), (true, 0, 60_000_000));
    assert_eq!(token.apply(state, Hits::Take(3), at(1)).1.retry_after, Some(2_000_000));
    assert_eq!(token.apply(state, Hits::Take(61), at(1)).1.retry_after, None);
    let leaky = Bucket::leaky(60, minute, None);
    let (state, _) = leaky.apply(State::default(), Hits::Take(1), at(0));
    assert!(!leaky.apply(state, Hits::Take(1), Time::from_micros(at(1).micros() - 1)).1.admitted);
    assert!(leaky.apply(state, Hits::Take(1), at(1)).1.admitted);
}

#[test]
fn a_bucket_loses_what_refills_in_the_time_by_which_its_clock_is_set_back() {
    let bucket = Bucket::token(60, Window::of_seconds(60).unwrap(), None);
    let began = 1_000_000;
    let at = |seconds: u64| Time::from_seconds(seconds);
    let (state, taken) = bucket.apply(State::default(), Hits::Take(10), at(began));
    assert_eq!(taken.remaining, 50);
    let after = |back: u64| bucket.apply(state, Hits::Take(0), at(began - back)).1;
    assert_eq!((after(20).remaining, after(20).reset), (30, 30_000_000));
    // A state up to a second beyond empty waits for the clock.
    assert_eq!((after(51).remaining, after(51).reset), (0, 61_000_000));
    // Beyond that it is empty, however far the clock went back, and refills from then on.
    for back in [52, 3600, 900_000] {
        assert_eq!((after(back).remaining, after(back).reset), (0, 60_000_000));
        let (emptied, _) = bucket.apply(state, Hits::Take(1), at(began - back));
        assert_eq!(bucket.apply(emptied, Hits::Take(0), at(began - back + 15)).1.remaining, 15);
    }
}

#[test]
fn three_per_second_has_no_drift_after_a_year() {
    let bucket = Bucket::leaky(3, Window::of_seconds(1).unwrap(), None);
    assert_eq!((bucket.ticks_per_second(), bucket.ticks_per_hit()), (1_000_002, 333_334));
    // A request per millisecond in the first and the last hour of a year.
    let (mut state, mut admitted) = (State::default(), 0);
    for hour in [0, 8759] {
        for milli in 0..3_600_000 {
            let now = Time::from_micros(BEGIN + hour * 3_600_000_000 + milli * 1000);
            let (after, verdict) = bucket.apply(state, Hits::Take(1), now);
            state = after;
            admitted += u64::from(verdict.admitted);
        }
    }
    // Each wait is a third of a second, rounded up to the millisecond at most.
    assert!((2 * 10_770..=2 * 10_800).contains(&admitted), "{admitted}");
}
