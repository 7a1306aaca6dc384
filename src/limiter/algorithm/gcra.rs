//! The generic cell rate algorithm: a bucket of hits that is refilled evenly. With the limit's requests for
//! its depth it is the token bucket, with a depth of one the leaky bucket.
//!
//! The state is one number, the tick at which the bucket will be full again. A tick is the bucket's own
//! unit of time, so chosen that a second and a hit are both a whole number of ticks: 3 per second has
//! 1,000,002 ticks a second and 333,334 a hit, and after a year not one hit too many. A tick is at most a
//! microsecond, unless the bucket takes more than 142 years to fill.
//!
//! No product or difference exceeds 2⁵³ once seconds and what is below them are kept apart: a script that
//! has only doubles, as Redis's have, comes to the same answers.

use std::num::NonZeroU32;

use super::{Hits, LEEWAY, State, Verdict, Window, micros_until};
use crate::clock::Time;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// The most ticks that a bucket may hold: doubles are exact to twice as many.
const DEEPEST: u64 = 1 << 52;

/// A bucket that holds `burst` hits and is refilled evenly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    ticks_per_second: u64,
    ticks_per_hit: u64,
    burst: u64,
    leaky: bool,
}

impl Bucket {
    /// Fills at the rate of the limit and holds a window's requests, or `burst`.
    #[must_use]
    pub fn token(requests: u32, window: Window, burst: Option<NonZeroU32>) -> Self {
        Self { leaky: false, ..Self::new(requests, window, burst.map_or(requests, NonZeroU32::get)) }
    }

    /// Lets one hit through at a time, evenly spaced, or `burst` at once.
    #[must_use]
    pub fn leaky(requests: u32, window: Window, burst: Option<NonZeroU32>) -> Self {
        Self { leaky: true, ..Self::new(requests, window, burst.map_or(1, NonZeroU32::get)) }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "no divisor is 0; requests and burst are below 2³², a window's seconds below 2²⁹, \
                  and where a depth has no room a hit has fewer ticks than the window has seconds"
    )]
    fn new(requests: u32, window: Window, burst: u32) -> Self {
        if requests == 0 || burst == 0 {
            return Self { ticks_per_second: 1, ticks_per_hit: 1, burst: 0, leaky: false };
        }
        let (requests, burst) = (u64::from(requests), u64::from(burst));
        // The coarsest tick of which a hit and a second are whole numbers: the one takes `seconds` of
        // them, the other has `hits`. It is divided further until it is at most a microsecond.
        let shared = greatest_common_divisor(requests, window.seconds());
        let (hits, seconds) = (requests / shared, window.seconds() / shared);
        let finest = DEEPEST / (burst * seconds);
        if finest >= 1 {
            let parts = MICROS_PER_SECOND.div_ceil(hits).min(finest);
            return Self {
                ticks_per_second: hits * parts,
                ticks_per_hit: seconds * parts,
                burst,
                leaky: false,
            };
        }
        // Too deep to be exact: a little slower than asked for, by less than one part in `ticks_per_second`.
        // A bucket that takes longer than the Earth is old to fill is also less deep.
        let ticks_per_hit = (DEEPEST / burst).max(seconds.div_ceil(hits));
        let ticks_per_second = ticks_per_hit * hits / seconds;
        Self { ticks_per_second, ticks_per_hit, burst: burst.min(DEEPEST / ticks_per_hit), leaky: false }
    }

    /// Takes these hits from the bucket, or gives them back.
    #[must_use]
    pub fn ask(self, state: State, hits: Hits, now: Time) -> (State, Verdict) {
        let present = self.tick(now);
        let told = state.number.saturating_sub(present);
        let missing = self.missing(told);
        let (after, admitted) = self.take(missing, hits);
        let state = if after == told { state } else { self.state(present.saturating_add(after)) };
        (state, self.verdict(after, admitted, hits, now))
    }

    /// What a bucket says that lacks so many ticks after these hits were admitted or not.
    #[must_use]
    pub fn verdict(self, missing: u64, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let full_at = self.tick(now).saturating_add(missing);
        let left = self.hits(self.depth().saturating_sub(missing));
        // They are admitted once it lacks no more than what they leave; never, if they are more than it holds.
        let spare = self.burst.checked_sub(hits.taken()).map(|others| self.ticks(others));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset: micros_until(now, self.moment(full_at)),
            retry_after: match spare {
                _ if admitted => Some(0),
                spare => spare.map(|spare| micros_until(now, self.moment(full_at.saturating_sub(spare)))),
            },
        }
    }

    /// It was made as a leaky bucket.
    #[must_use]
    pub const fn is_leaky(self) -> bool {
        self.leaky
    }

    /// The state of a bucket that will be full so many ticks after this second.
    #[must_use]
    pub const fn full_at(self, second: u64, ticks: u64) -> State {
        self.state(second.saturating_mul(self.ticks_per_second).saturating_add(ticks))
    }

    /// How many hits it holds.
    #[must_use]
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// How many ticks a second has; at most 2³².
    #[must_use]
    pub const fn ticks_per_second(self) -> u64 {
        self.ticks_per_second
    }

    /// How many ticks a hit takes from the bucket.
    #[must_use]
    pub const fn ticks_per_hit(self) -> u64 {
        self.ticks_per_hit
    }

    /// How many ticks it takes to fill.
    #[must_use]
    pub const fn depth(self) -> u64 {
        self.ticks(self.burst)
    }
}

/// The arithmetic of ticks.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a second and a hit have at least one tick; a second has at most 2³² and a depth at most 2⁵², \
              so no product exceeds 2⁵³"
)]
impl Bucket {
    /// How many ticks so many hits take, which are at most `burst`.
    const fn ticks(self, hits: u64) -> u64 {
        hits * self.ticks_per_hit
    }

    /// How many hits so many ticks hold.
    const fn hits(self, ticks: u64) -> u64 {
        ticks / self.ticks_per_hit
    }

    /// How many ticks the bucket lacks, of which its state tells so many.
    const fn missing(self, told: u64) -> u64 {
        let leeway = self.ticks_per_second * (LEEWAY / MICROS_PER_SECOND);
        if told > self.depth() + leeway { self.depth() } else { told }
    }

    /// How many ticks the bucket lacks afterwards, and whether these hits are admitted.
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

    /// The last tick that has come at a moment. Ticks are counted from 1970; at the finest they last in 64
    /// bits until 2106.
    const fn tick(self, at: Time) -> u64 {
        let below = at.micros() % MICROS_PER_SECOND * self.ticks_per_second / MICROS_PER_SECOND;
        at.seconds().saturating_mul(self.ticks_per_second).saturating_add(below)
    }

    /// The first microsecond at which a tick has come.
    const fn moment(self, tick: u64) -> u64 {
        let below = (tick % self.ticks_per_second * MICROS_PER_SECOND).div_ceil(self.ticks_per_second);
        (tick / self.ticks_per_second).saturating_mul(MICROS_PER_SECOND).saturating_add(below)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    a.checked_rem(b).map_or(a, |rest| greatest_common_divisor(b, rest))
}
