//! The generic cell rate algorithm (GCRA): a bucket that refills at a constant rate. With a burst of the limit's
//! requests it is the token bucket, with a burst of one the leaky bucket.
//!
//! The state is one number: the tick at which the bucket is full again. A tick is the bucket's own unit of time,
//! chosen so that a second and a hit are both integral numbers of ticks. 3 per second has 1,000,002 ticks a second
//! and 333,334 a hit, so no error accumulates over a year. A tick is at most a microsecond, unless the bucket takes
//! more than 142 years to fill. Ticks are counted from 1970, or back from the state's end where a second has so many
//! that 64 bits would not last until 2106. Such a bucket fills within 12 days.
//!
//! No product or difference exceeds 2⁵³ once seconds and their fractions are separate: the Lua scripts in Redis,
//! which compute with doubles, get the same results.

use std::num::NonZeroU64;

use super::{Hits, LEEWAY, State, Verdict, Window};
use clock::Time;

const MICROS_PER_SECOND: u64 = 1_000_000;

const MAX_DEPTH: u64 = 1 << 52;

/// Upper bound on the ticks of a second. A depth and two seconds are the largest sum, and doubles are exact up to it.
const MAX_TICKS: u64 = 1 << 51;

/// Ticks of a second that are counted from 1970.
const MAX_COUNTED_TICKS: u64 = 1 << 32;

/// A bucket that holds `burst` hits and refills at a constant rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    ticks_per_second: u64,
    ticks_per_hit: u64,
    burst: u64,
    pub(super) leaky: bool,
}

impl Bucket {
    /// Refills at the limit's rate and holds a window's requests, or `burst`.
    pub fn token(requests: u64, window: Window, burst: Option<NonZeroU64>) -> Self {
        Self::new(requests, window, burst.map_or(requests, NonZeroU64::get), false)
    }

    /// Admits one hit at a time, evenly spaced, or `burst` at once.
    pub fn leaky(requests: u64, window: Window, burst: Option<NonZeroU64>) -> Self {
        Self::new(requests, window, burst.map_or(1, NonZeroU64::get), true)
    }

    // No divisor is 0, a window has fewer than 2²⁹ seconds, and where a depth has no room a hit has fewer
    // ticks than the window has seconds.
    fn new(requests: u64, window: Window, burst: u64, leaky: bool) -> Self {
        if requests == 0 || burst == 0 {
            return Self { ticks_per_second: 1, ticks_per_hit: 1, burst: 0, leaky };
        }
        // The coarsest tick that divides both a hit (`seconds` ticks) and a second (`hits` ticks). It is
        // subdivided until it is at most a microsecond.
        let [hits, seconds] = coarsest(requests, window);
        let finest = burst.checked_mul(seconds).map_or(0, |depth| MAX_DEPTH / depth).min(MAX_TICKS / hits);
        if finest >= 1 {
            let parts = MICROS_PER_SECOND.div_ceil(hits).min(finest);
            return Self { ticks_per_second: hits * parts, ticks_per_hit: seconds * parts, burst, leaky };
        }
        // Too deep to be exact: the rate is lower than configured by less than one part in `ticks_per_second`.
        // A bucket that takes billions of years to fill also has a smaller burst.
        // `is_exact` is false: rules and overrides have no such limit above 32 bits.
        let scaled = |number: u64, by: u64, per: u64| {
            let scaled = u128::from(number) * u128::from(by) / u128::from(per);
            u64::try_from(scaled).unwrap_or(u64::MAX).clamp(1, MAX_TICKS)
        };
        let ticks_per_hit =
            (MAX_DEPTH / burst).max(seconds.div_ceil(hits)).min(scaled(MAX_TICKS, seconds, hits));
        let ticks_per_second = scaled(ticks_per_hit, hits, seconds);
        Self { ticks_per_second, ticks_per_hit, burst: burst.min(MAX_DEPTH / ticks_per_hit), leaky }
    }

    /// True if a bucket has exactly this rate and holds exactly this burst.
    pub fn is_exact(requests: u64, window: Window, burst: u64) -> bool {
        let [hits, seconds] = coarsest(requests.max(1), window);
        hits <= MAX_TICKS && burst.checked_mul(seconds).is_some_and(|depth| depth <= MAX_DEPTH)
    }

    /// The largest limit up to `most` that [is exact](Self::is_exact) with this burst, or with a burst of as many hits.
    /// 0 if there is none.
    // A divisor is above 0, and no product exceeds what it divides.
    pub fn largest_exact(most: u64, window: Window, burst: Option<u64>) -> u64 {
        let seconds = window.seconds();
        let small = (1..).take_while(|divisor| divisor * divisor <= seconds);
        let divisors = small.filter(|divisor| seconds.is_multiple_of(*divisor));
        let limits = divisors.flat_map(|divisor| [divisor, seconds / divisor]).map(|shared| {
            let ticks_per_hit = seconds / shared;
            let most_held = MAX_DEPTH / ticks_per_hit;
            let bound = match burst {
                None => most_held.min(MAX_TICKS.saturating_mul(shared)),
                Some(burst) if burst <= most_held => MAX_TICKS.saturating_mul(shared),
                Some(_) => 0,
            };
            most.min(bound) / shared * shared
        });
        limits.max().unwrap_or_default()
    }

    /// The largest burst with which this limit is exact.
    pub fn largest_burst(requests: u64, window: Window) -> u64 {
        let [_, ticks_per_hit] = coarsest(requests.max(1), window);
        MAX_DEPTH.checked_div(ticks_per_hit).unwrap_or_default()
    }

    pub fn apply(self, state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let lacking = self.lacking(state, now);
        let missing = self.missing(lacking);
        let (after, admitted) = self.take(missing, hits);
        let state = if after == lacking {
            state
        } else {
            self.full_at(now.seconds(), self.ticks_of(now).saturating_add(after))
        };
        (state, self.verdict(after, admitted, hits, now))
    }

    /// The verdict of a bucket that is `missing` ticks short of full, after these hits were admitted or not.
    pub fn verdict(self, missing: u64, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let full_at = self.ticks_of(now).saturating_add(missing);
        let latest = u64::MAX.saturating_sub(now.micros());
        let until = |ticks| self.micros(ticks).saturating_sub(now.micros() % MICROS_PER_SECOND).min(latest);
        // The hits fit once no more than `spare` is missing; never, if they exceed the burst.
        let spare = self.burst.checked_sub(hits.taken()).map(|rest| self.ticks(rest));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            remaining: self.hits(self.depth().saturating_sub(missing)),
            reset: until(full_at),
            retry_after: if admitted {
                Some(0)
            } else {
                spare.map(|spare| until(full_at.saturating_sub(spare)))
            },
        }
    }

    /// Whole microseconds in which so many hits refill, up to `burst`.
    pub(super) fn micros_of(self, hits: u64) -> u64 {
        self.micros(self.ticks(hits)).saturating_sub(1)
    }

    /// The number of hits that it holds.
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// Ticks per second; at most 2⁵¹.
    pub const fn ticks_per_second(self) -> u64 {
        self.ticks_per_second
    }

    pub const fn ticks_per_hit(self) -> u64 {
        self.ticks_per_hit
    }

    /// Ticks from empty to full; at most 2⁵².
    pub const fn depth(self) -> u64 {
        self.ticks(self.burst)
    }
}

/// A limit's hits and a window's seconds, divided by what they share.
// A divisor of a number above 0 is above 0.
fn coarsest(requests: u64, window: Window) -> [u64; 2] {
    let shared = greatest_common_divisor(requests, window.seconds());
    [requests / shared, window.seconds() / shared]
}

// A second and a hit have at least one tick; a second has at most 2⁵¹ and a depth 2⁵², so no product exceeds
// 2⁵³.
impl Bucket {
    /// The ticks of up to `burst` hits.
    const fn ticks(self, hits: u64) -> u64 {
        hits * self.ticks_per_hit
    }

    const fn hits(self, ticks: u64) -> u64 {
        ticks / self.ticks_per_hit
    }

    /// The ticks from now until the bucket is full by its state.
    const fn lacking(self, state: State, now: Time) -> u64 {
        if self.ticks_per_second <= MAX_COUNTED_TICKS {
            let tick = now.seconds().saturating_mul(self.ticks_per_second).saturating_add(self.ticks_of(now));
            return state.number.saturating_sub(tick);
        }
        let seconds = state.end.seconds().saturating_sub(now.seconds());
        let gone = self.ticks_of(now).saturating_add(state.number);
        seconds.saturating_mul(self.ticks_per_second).saturating_sub(gone)
    }

    /// The ticks missing from the bucket by its state. A state too far ahead was written before the clock was set
    /// back, and counts as an empty bucket.
    const fn missing(self, lacking: u64) -> u64 {
        let leeway = self.ticks_per_second * (LEEWAY / MICROS_PER_SECOND);
        if lacking > self.depth() + leeway { self.depth() } else { lacking }
    }

    /// The ticks missing afterwards, and whether these hits are admitted.
    const fn take(self, missing: u64, hits: Hits) -> (u64, bool) {
        match hits {
            Hits::Take(0) => (missing, true),
            Hits::Take(hits) if hits <= self.burst && missing <= self.ticks(self.burst - hits) => {
                (missing + self.ticks(hits), true)
            }
            Hits::Take(_) => (missing, false),
            Hits::Refund(hits) => (missing.saturating_sub(hits.saturating_mul(self.ticks_per_hit)), true),
        }
    }

    /// The state of a bucket that is full `ticks` after this second.
    pub const fn full_at(self, second: u64, ticks: u64) -> State {
        if self.ticks_per_second <= MAX_COUNTED_TICKS {
            let number = second.saturating_mul(self.ticks_per_second).saturating_add(ticks);
            return State { number, end: Time::from_seconds(number.div_ceil(self.ticks_per_second)) };
        }
        let end = second.saturating_add(ticks.div_ceil(self.ticks_per_second));
        let rest = ticks % self.ticks_per_second;
        let number = if rest == 0 { 0 } else { self.ticks_per_second - rest };
        State { number, end: Time::from_seconds(end) }
    }

    /// The ticks of this second before `time`. In two parts, because a second may have 2⁵¹ ticks.
    const fn ticks_of(self, time: Time) -> u64 {
        let micros = time.micros() % MICROS_PER_SECOND;
        micros * (self.ticks_per_second / MICROS_PER_SECOND)
            + micros * (self.ticks_per_second % MICROS_PER_SECOND) / MICROS_PER_SECOND
    }

    /// The microseconds of this many ticks, rounded up.
    #[expect(clippy::cast_possible_truncation, reason = "less than a second")]
    const fn micros(self, ticks: u64) -> u64 {
        let rest = ticks % self.ticks_per_second;
        let fraction = if rest >> 44 == 0 {
            (rest * MICROS_PER_SECOND).div_ceil(self.ticks_per_second)
        } else {
            (rest as u128 * MICROS_PER_SECOND as u128).div_ceil(self.ticks_per_second as u128) as u64
        };
        (ticks / self.ticks_per_second).saturating_mul(MICROS_PER_SECOND).saturating_add(fraction)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    a.checked_rem(b).map_or(a, |rest| greatest_common_divisor(b, rest))
}
