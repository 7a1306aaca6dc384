//! The generic cell rate algorithm (GCRA): a bucket that refills at a constant rate. With a burst of the limit's
//! requests it is the token bucket, with a burst of one the leaky bucket.
//!
//! The state is one number: the tick at which the bucket is full again. A tick is the bucket's own unit of time,
//! chosen so that a second and a hit are both integral numbers of ticks. 3 per second has 1,000,002 ticks a second
//! and 333,334 a hit, so no error accumulates over a year. A tick is at most a microsecond, unless the bucket takes
//! more than 142 years to fill. Ticks are counted from 1970; 64 bits last until 2106.
//!
//! No product or difference exceeds 2⁵³ once seconds and their fractions are separate: the Lua scripts in Redis,
//! which compute with doubles, get the same results.

use std::num::NonZeroU64;

use super::{Hits, LEEWAY, State, Verdict, Window, micros_until};
use clock::Time;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Upper bound on a bucket's depth in ticks: doubles are exact up to twice as many.
const MAX_DEPTH: u64 = 1 << 52;

/// A bucket that holds `burst` hits and refills at a constant rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    ticks_per_second: u64,
    ticks_per_hit: u64,
    burst: u64,
    pub(super) leaky: bool,
}

impl Bucket {
    /// The largest limit, and the largest burst: a second has no more than 2³² ticks.
    pub const MOST: u64 = u32::MAX as u64;

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
        assert!(requests.max(burst) <= Self::MOST, "larger limits and bursts are refused");
        if requests == 0 || burst == 0 {
            return Self { ticks_per_second: 1, ticks_per_hit: 1, burst: 0, leaky };
        }
        // The coarsest tick that divides both a hit (`seconds` ticks) and a second (`hits` ticks). It is
        // subdivided until it is at most a microsecond.
        let shared = greatest_common_divisor(requests, window.seconds());
        let hits = requests / shared;
        let seconds = window.seconds() / shared;
        let finest = MAX_DEPTH / (burst * seconds);
        if finest >= 1 {
            let parts = MICROS_PER_SECOND.div_ceil(hits).min(finest);
            return Self { ticks_per_second: hits * parts, ticks_per_hit: seconds * parts, burst, leaky };
        }
        // Too deep to be exact: the rate is lower than configured by less than one part in `ticks_per_second`.
        // A bucket that takes billions of years to fill also has a smaller burst.
        let ticks_per_hit = (MAX_DEPTH / burst).max(seconds.div_ceil(hits));
        let ticks_per_second = ticks_per_hit * hits / seconds;
        Self { ticks_per_second, ticks_per_hit, burst: burst.min(MAX_DEPTH / ticks_per_hit), leaky }
    }

    pub fn apply(self, state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let present = self.tick(now);
        let lacking = state.number.saturating_sub(present);
        let missing = self.missing(lacking);
        let (after, admitted) = self.take(missing, hits);
        let state = if after == lacking { state } else { self.state(present.saturating_add(after)) };
        (state, self.verdict(after, admitted, hits, now))
    }

    /// The verdict of a bucket that is `missing` ticks short of full, after these hits were admitted or not.
    pub fn verdict(self, missing: u64, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let full_at = self.tick(now).saturating_add(missing);
        let until = |tick| micros_until(now, self.micros(tick));
        let remaining = self.hits(self.depth().saturating_sub(missing));
        // The hits fit once no more than `spare` is missing; never, if they exceed the burst.
        let spare = self.burst.checked_sub(hits.taken()).map(|rest| self.ticks(rest));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            count: self.burst.saturating_sub(remaining),
            remaining,
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

    /// The state of a bucket that is full `ticks` after this second.
    pub const fn full_at(self, second: u64, ticks: u64) -> State {
        self.state(second.saturating_mul(self.ticks_per_second).saturating_add(ticks))
    }

    /// The number of hits that it holds.
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// Ticks per second; at most 2³².
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

// A second and a hit have at least one tick; a second has at most 2³² and a depth 2⁵², so no product exceeds
// 2⁵³.
impl Bucket {
    /// The ticks of up to `burst` hits.
    const fn ticks(self, hits: u64) -> u64 {
        hits * self.ticks_per_hit
    }

    const fn hits(self, ticks: u64) -> u64 {
        ticks / self.ticks_per_hit
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

    const fn state(self, full_at: u64) -> State {
        State { number: full_at, end: Time::from_seconds(full_at.div_ceil(self.ticks_per_second)) }
    }

    /// The last tick at or before `time`, counted from 1970.
    const fn tick(self, time: Time) -> u64 {
        let fraction = time.micros() % MICROS_PER_SECOND * self.ticks_per_second / MICROS_PER_SECOND;
        time.seconds().saturating_mul(self.ticks_per_second).saturating_add(fraction)
    }

    /// The first microsecond at or after a tick.
    const fn micros(self, tick: u64) -> u64 {
        let fraction = (tick % self.ticks_per_second * MICROS_PER_SECOND).div_ceil(self.ticks_per_second);
        (tick / self.ticks_per_second).saturating_mul(MICROS_PER_SECOND).saturating_add(fraction)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    a.checked_rem(b).map_or(a, |rest| greatest_common_divisor(b, rest))
}
