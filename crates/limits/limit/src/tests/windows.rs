//! Windows and logs against complete lists of hits.

use std::collections::BTreeMap;

use super::*;

/// Every admitted hit that was not refunded.
#[derive(Default)]
struct SlowLog(Vec<u64>);

impl SlowLog {
    fn apply(&mut self, limit: SlidingLog, hits: Hits, now: u64) -> (bool, u64) {
        let hits_at = &mut self.0;
        if hits_at.last().is_some_and(|last| *last > now + LEEWAY) {
            for at in hits_at.iter_mut() {
                *at = now.min(*at);
            }
        }
        hits_at.retain(|at| at + limit.window.micros() > now);
        let admitted = hits.taken() == 0 || hits_at.len() as u64 + hits.taken() <= limit.limit;
        match hits {
            Hits::Take(hits) if admitted => {
                let at = hits_at.last().copied().unwrap_or(0).max(now);
                hits_at.extend((0..hits).map(|_| at));
            }
            Hits::Take(_) => {}
            Hits::Refund(hits) => {
                hits_at.truncate(hits_at.len() - hits_at.len().min(usize::try_from(hits).unwrap()));
            }
        }
        (admitted, limit.limit.saturating_sub(hits_at.len() as u64))
    }
}

/// The count of every window.
#[derive(Default)]
struct SlowWindows {
    counts: BTreeMap<u64, u64>,
    newest: u64,
}

impl SlowWindows {
    fn apply(&mut self, limit: SlidingWindow, hits: Hits, now: u64) -> bool {
        let length = limit.window.micros();
        if self.newest * length > now + LEEWAY {
            let moved =
                [self.newest, self.newest.wrapping_sub(1)].map(|at| self.counts.remove(&at).unwrap_or(0));
            self.newest = now / length;
            self.counts = BTreeMap::from([(self.newest, moved[0]), (self.newest.wrapping_sub(1), moved[1])]);
        }
        let at = self.newest.max(now / length);
        let elapsed = u128::from(now.saturating_sub(at * length) / limit.window.seconds());
        let [this, last] = [at, at.wrapping_sub(1)].map(|at| self.counts.get(&at).copied().unwrap_or(0));
        let overlapping = u128::from(last) * (1_000_000 - elapsed) / 1_000_000;
        let counted = u128::from(this) + u128::from(hits.taken()) + overlapping;
        let admitted = hits.taken() == 0 || counted <= u128::from(limit.limit);
        let (this, last) = match hits {
            Hits::Take(hits) if admitted => (this + hits, last),
            Hits::Take(_) => (this, last),
            Hits::Refund(hits) => (this.saturating_sub(hits), last - last.min(hits.saturating_sub(this))),
        };
        if (this, last)
            != [at, at.wrapping_sub(1)].map(|at| self.counts.get(&at).copied().unwrap_or(0)).into()
        {
            self.newest = at;
            self.counts.extend([(at, this), (at.wrapping_sub(1), last)]);
        }
        admitted
    }
}

proptest! {
    // A million steps each: histories have 500 on average.
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_log_equals_a_list_of_all_hits(limit in 0..60_u64, window in windows(), steps in steps(1000)) {
        let limit = SlidingLog { limit, window };
        let (mut log, mut model, mut now) = (Log::default(), SlowLog::default(), BEGIN);
        for step in steps {
            now = step.moment(now, window, limit.most());
            let hits = step.hits(limit.most());
            let verdict = apply(limit, &mut log, step, hits, now)?;
            let decided = (verdict.admitted, verdict.remaining);
            prop_assert_eq!(decided, model.apply(limit, hits, now), "{:?} at {}", hits, now);
        }
    }

    #[test]
    fn a_sliding_window_equals_weighted_windows(limit in requests(), window in windows(), steps in steps(1000)) {
        let limit = SlidingWindow { limit, window };
        let (mut state, mut model, mut now) = (State::default(), SlowWindows::default(), BEGIN);
        for step in steps {
            now = step.moment(now, window, limit.most());
            let hits = step.hits(limit.most());
            let verdict = apply(limit, &mut state, step, hits, now)?;
            prop_assert_eq!(verdict.admitted, model.apply(limit, hits, now), "{:?} at {}", hits, now);
        }
    }

    #[test]
    fn a_fixed_window_counts_its_hits(limit in large_requests(), window in windows(), steps in steps(1000)) {
        let limit = FixedWindow { limit, period: window.into() };
        let (mut states, mut counts, mut now) = (BTreeMap::new(), BTreeMap::new(), BEGIN);
        for step in steps {
            now = step.moment(now, window, limit.limit);
            let hits = step.hits(limit.limit);
            let (state, count) = (states.entry(now / window.micros()), counts.entry(now / window.micros()));
            let (state, count): (&mut State, &mut u128) = (state.or_default(), count.or_default());
            *count = match hits {
                Hits::Take(hits) => u128::from(u64::MAX).min(*count + u128::from(hits.min(1 << 63))),
                Hits::Refund(hits) => count.saturating_sub(u128::from(hits)),
            };
            let (after, counted) = limit.apply(*state, hits, Time::from_micros(now));
            *state = after;
            prop_assert_eq!((u128::from(after.number), u128::from(counted)), (*count, *count));
            let verdict = limit.verdict(counted, hits, Time::from_micros(now));
            prop_assert_eq!(verdict.admitted, *count <= u128::from(limit.limit));
            prop_assert_eq!(u128::from(verdict.remaining), u128::from(limit.limit).saturating_sub(*count));
            prop_assert_eq!((now + verdict.reset) % window.micros(), 0);
            let waits = if verdict.admitted { Some(0) } else { Some(verdict.reset) };
            let fits = verdict.admitted || hits.taken() <= limit.limit;
            prop_assert_eq!(verdict.retry_after, waits.filter(|_| fits));
        }
    }

}

proptest! {
    #[test]
    fn accepts_any_numbers(limit: u64, window in windows(), kept: (u64, u64), hits: u64, back: bool, now: u64) {
        let hits = if back { Hits::Refund(hits) } else { Hits::Take(hits) };
        let (state, now) = (State { number: kept.0, end: Time::from_micros(kept.1) }, Time::from_micros(now));
        let _ = FixedWindow { limit, period: window.into() }.apply(state, hits, now);
        let _ = SlidingWindow { limit: limit >> 32, window }.apply(state, hits, now);
        let mut log = Log::default();
        let limit = SlidingLog { limit: limit % 100_000, window };
        let _ = [hits, Hits::Take(1)].map(|hits| limit.apply(&mut log, hits, now));
    }
}

#[test]
fn a_log_uses_at_most_sixteen_bytes_a_hit_and_frees_them() {
    let limit = SlidingLog { limit: 100_000, window: Window::of_seconds(60).unwrap() };
    let mut log = Log::default();
    for micros in 0..100_000 {
        assert!(limit.apply(&mut log, Hits::Take(1), Time::from_micros(micros)).admitted);
    }
    assert!(log.bytes() <= 16 * 100_000, "{}", log.bytes());
    limit.apply(&mut log, Hits::Take(1), Time::from_seconds(1000));
    assert!(log.bytes() < 1000, "{}", log.bytes());
    limit.apply(&mut log, Hits::Take(99_999), Time::from_seconds(1000));
    assert!(log.bytes() < 1000, "{}", log.bytes());
}

#[test]
fn a_window_boundary_does_not_double_a_sliding_limit() {
    let window = Window::of_seconds(60).unwrap();
    let (before, after) = (Time::from_micros(119_999_999), Time::from_seconds(120));
    let sliding = SlidingWindow { limit: 100, window };
    let (state, first) = sliding.apply(State::default(), Hits::Take(100), before);
    let (_, second) = sliding.apply(state, Hits::Take(100), after);
    assert!(first.admitted && !second.admitted);
    // All but a part of one hit must leave the window.
    assert_eq!((second.remaining, second.retry_after), (0, Some(59_400_060)));
    let exact = SlidingLog { limit: 100, window };
    let mut log = Log::default();
    assert!(exact.apply(&mut log, Hits::Take(100), before).admitted);
    assert_eq!(exact.apply(&mut log, Hits::Take(1), after).retry_after, Some(59_999_999));
}

#[test]
fn a_window_has_a_second_to_ten_years() {
    let seconds = |seconds| Window::of_seconds(seconds).map(Window::seconds);
    assert_eq!([0, 1, 315_360_000, 315_360_001].map(seconds), [None, Some(1), Some(315_360_000), None]);
    assert_eq!(Window::MAX.seconds(), 315_360_000);
}

#[test]
fn windows_are_aligned_to_1970() {
    let (minute, now) = (Window::of_seconds(60).unwrap(), Time::from_micros(125_900_000));
    assert_eq!((minute.start(now), minute.end(now)), (Time::from_seconds(120), Time::from_seconds(180)));
    let left = |now| Period::Length(minute).seconds_left(now);
    assert_eq!((left(now), left(Time::from_seconds(120))), (55, 60));
}

proptest! {
    #[test]
    fn a_window_contains_its_times(now in 0..u64::MAX / 2, seconds in 1..=315_360_000_u64) {
        let (now, window) = (Time::from_micros(now), Window::of_seconds(seconds).unwrap());
        prop_assert!(window.start(now) <= now && now < window.end(now));
        prop_assert_eq!(window.end(now).micros() - window.start(now).micros(), window.micros());
        let left = Period::Length(window).seconds_left(now);
        prop_assert_eq!(now.seconds() + left, window.end(now).seconds());
    }
}
