//! Random steps through time, for property tests of the algorithms and of stores.
#![allow(clippy::expect_used, reason = "for tests only")]

use clock::Time;
use proptest::prelude::*;

use crate::{Hits, LEEWAY, MAX_LIMIT, Window};

/// The start of most histories: an odd moment of 2026.
pub const BEGIN: u64 = 1_795_276_800_123_457;

/// The end of histories, in 2079: some states overflow in 2106.
pub(crate) const LATEST: u64 = BEGIN + 53 * 365 * 86_400_000_000;

/// One step of a history: a kind and a number, to be interpreted with a limit.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub pause: (u64, u64),
    pub hits: (u64, u64),
}

pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = any::<(u64, u64)>()
        .prop_map(|(pause, hits)| Step { pause: (pause % 12, pause / 12), hits: (hits % 10, hits / 10) });
    prop::collection::vec(step, 1..most)
}

impl Step {
    /// The time of this step, after one at `now`.
    pub fn moment(self, now: u64, window: Window, most: u64) -> u64 {
        let (long, micros) = (self.pause.1, window.micros());
        let up_to = |most: u64| long % most.max(1);
        let then = match self.pause.0 {
            0 | 1 => now,
            2 => now + up_to(1000),
            3..=5 => now + up_to(2 * micros / most.max(1)),
            6 => now + up_to(micros),
            7 => now + up_to(3 * micros),
            8 => window.end(Time::from_micros(now)).micros() - 1 + up_to(3),
            9 => now + micros - 1 + up_to(3),
            10 => now.saturating_sub(up_to(LEEWAY)),
            _ => now.saturating_sub(up_to(3 * micros)),
        };
        if then > LATEST { BEGIN } else { then }
    }

    /// The same with a clock that is set back by at most half the leeway.
    #[cfg(test)]
    pub(crate) fn moment_of_a_good_clock(self, latest: u64, window: Window, most: u64) -> (u64, u64) {
        match self.pause {
            (10.., long) => (latest, latest - long % (LEEWAY / 2)),
            _ => [self.moment(latest, window, most).max(latest); 2].into(),
        }
    }

    pub fn hits(self, most: u64) -> Hits {
        let many = self.hits.1;
        match self.hits.0 {
            0..=3 => Hits::Take(1),
            4 => Hits::Take(0),
            5 => Hits::Take(many % 4),
            6 | 7 => Hits::Take(many % most.saturating_add(2)),
            8 => Hits::Refund(many % most.max(1)),
            _ if many.is_multiple_of(2) => Hits::Take(many),
            _ => Hits::Refund(many % 3),
        }
    }
}

pub fn windows() -> impl Strategy<Value = Window> {
    let usual = prop::sample::select(vec![1, 7, 60, 900, 3600, 86_400, 315_360_000]);
    prop_oneof![3 => usual, 1 => 1..=315_360_000_u64]
        .prop_map(|seconds| Window::of_seconds(seconds).expect("at least a second"))
}

/// Limits that every algorithm has, except that logs are shorter.
pub fn requests() -> impl Strategy<Value = u64> {
    let usual =
        prop::sample::select(vec![0, 1, 2, 3, 7, 10, 100, 1000, 1_000_000, 4_294_967_291, u32::MAX.into()]);
    prop_oneof![3 => usual, 1 => 1..200_u64, 1 => 0..1_u64 << 32]
}

/// Limits of fixed windows.
pub fn large_requests() -> impl Strategy<Value = u64> {
    let large =
        prop::sample::select(vec![1 << 32, 30_000_000_000, 1 << 40, 1 << 52, MAX_LIMIT - 1, MAX_LIMIT]);
    prop_oneof![4 => requests(), 1 => large, 1 => 0..=MAX_LIMIT]
}
