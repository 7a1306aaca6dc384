//! The arithmetic of the Lua scripts, which have only doubles: every intermediate number is an exact integer, and the
//! results are those of the algorithms.

use std::{
    num::NonZeroU64,
    ops::{Add, Mul, Sub},
};

use super::*;

/// A double that must never be rounded.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Double(f64);

impl Double {
    #[expect(clippy::cast_precision_loss, reason = "what is lost shows in a number beyond the bound")]
    fn of(number: u64) -> Self {
        Self::exact(number as f64)
    }

    fn exact(number: f64) -> Self {
        assert!(number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0, "{number} is rounded");
        Self(number)
    }

    /// `math.floor(a / b)`: the quotient alone may be rounded.
    fn divided_by(self, other: Self) -> Self {
        Self::exact((self.0 / other.0).floor())
    }

    fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole and not negative"
    )]
    fn whole(self) -> u64 {
        self.0 as u64
    }
}

macro_rules! exact_arithmetic {
    ($($operation:ident $method:ident $sign:tt),*) => {
        $(impl $operation for Double {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                Self::exact(self.0 $sign other.0)
            }
        })*
    };
}

exact_arithmetic!(Add add +, Sub sub -, Mul mul *);

fn now_of(now: u64) -> [Double; 2] {
    [Double::of(now / 1_000_000), Double::of(now % 1_000_000)]
}

/// A bucket's state in two parts: the second, and the ticks after it.
fn script_of_buckets(bucket: Bucket, kept: &mut [Double; 2], hits: Hits, now: u64) -> (Double, bool) {
    let [zero, million] = [0, 1_000_000].map(Double::of);
    let [burst, per_second, per_hit] =
        [bucket.burst(), bucket.ticks_per_second(), bucket.ticks_per_hit()].map(Double::of);
    let [second, micros] = now_of(now);
    let tick = (micros * per_second).divided_by(million);
    // Only this may be rounded, and then it is so far from 0 and the bucket's depth that it does not matter.
    let left = (kept[0].0 - second.0) * per_second.0 + (kept[1].0 - tick.0);
    let left = Double(left.max(0.0));
    let depth = burst * per_hit;
    let missing = if left > depth + per_second { depth } else { left };
    let (after, admitted) = match hits {
        Hits::Take(0) => (missing, true),
        Hits::Take(hits) if hits > bucket.burst() => (missing, false),
        Hits::Take(hits) if missing <= (burst - Double::of(hits)) * per_hit => {
            (missing + Double::of(hits) * per_hit, true)
        }
        Hits::Take(_) => (missing, false),
        Hits::Refund(hits) => {
            ((missing - Double::of(hits.min(bucket.burst() + 1)) * per_hit).max(zero), true)
        }
    };
    if after != left {
        let full_at = tick + after;
        let seconds = full_at.divided_by(per_second);
        *kept = [second + seconds, full_at - seconds * per_second];
    }
    (after, admitted)
}

/// A sliding window's state: the second of its start, its count, and the previous window's.
fn script_of_windows(
    limit: SlidingWindow,
    kept: &mut [Double; 3],
    hits: Hits,
    now: u64,
) -> ([Double; 3], bool) {
    let [zero, one, million] = [0, 1, 1_000_000].map(Double::of);
    let (most, length) = (Double::of(limit.limit), Double::of(limit.window.seconds()));
    let [second, micros] = now_of(now);
    let start = second.divided_by(length) * length;
    let [mut began, mut this, mut last] = *kept;
    let is_far_ahead = began > second + one;
    if is_far_ahead {
        began = start;
        *kept = [began, this, last];
    }
    if began < start {
        last = if began + length >= start { this } else { zero };
        (began, this) = (start, zero);
    }
    let elapsed = ((second - began) * million + micros).max(zero).divided_by(length);
    let overlap = (million - elapsed).max(zero);
    let before = [this, last];
    let admitted = match hits {
        Hits::Take(0) => true,
        Hits::Take(hits) if hits > limit.limit => false,
        Hits::Take(hits) => {
            let room = most - Double::of(hits) - this;
            let admitted = room >= zero && (last * overlap).divided_by(million) <= room;
            this = if admitted { this + Double::of(hits) } else { this };
            admitted
        }
        Hits::Refund(hits) => {
            let hits = Double::of(hits.min(u32::MAX.into()));
            let older = (hits - this).max(zero);
            (this, last) = ((this - hits).max(zero), (last - older).max(zero));
            true
        }
    };
    if before != [this, last] {
        *kept = [began, this, last];
    }
    ([began, this, last], admitted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn buckets_in_doubles_are_exact(
        requests in requests(), window in windows(), burst in requests().prop_map(NonZeroU64::new),
        own: bool, steps in steps(600),
    ) {
        let bucket = Bucket::token(requests, window, burst.filter(|_| own));
        let (mut state, mut kept, mut now) = (State::default(), [Double::of(0); 2], BEGIN);
        for step in steps {
            now = step.moment(now, window, bucket.burst());
            let (hits, time) = (step.hits(bucket.burst()), Time::from_micros(now));
            let verdict;
            (state, verdict) = bucket.apply(state, hits, time);
            let (missing, admitted) = script_of_buckets(bucket, &mut kept, hits, now);
            prop_assert_eq!(verdict, bucket.verdict(missing.whole(), admitted, hits, time));
            prop_assert_eq!(state, bucket.full_at(kept[0].whole(), kept[1].whole()));
        }
    }

    #[test]
    fn sliding_windows_in_doubles_are_exact(limit in requests(), window in windows(), steps in steps(600)) {
        let limit = SlidingWindow { limit, window };
        let (mut state, mut kept, mut now) = (State::default(), [Double::of(0); 3], BEGIN);
        for step in steps {
            now = step.moment(now, window, limit.most());
            let (hits, time) = (step.hits(limit.most()), Time::from_micros(now));
            let verdict;
            (state, verdict) = limit.apply(state, hits, time);
            let ([start, this, last], admitted) = script_of_windows(limit, &mut kept, hits, now);
            let [this, last] = [this, last].map(|count| u32::try_from(count.whole()).unwrap());
            let counts = sliding_window::WindowCounts { start: Time::from_seconds(start.whole()), this, last };
            prop_assert_eq!(verdict, limit.verdict(counts, admitted, hits, time));
        }
    }
}
