//! What a counter's value means for a limit: a plain function of numbers.

use crate::limiter::algorithm::{Hits, fixed_window::MOST_HITS};

/// What is held against one counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Beyond this it is over.
    pub limit: u64,
    /// From here on it is near.
    pub near: u64,
}

/// What one counter says of one request, and what the statistics make of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// The limit is exceeded.
    pub over: bool,
    /// What is left of it.
    pub remaining: u32,
    /// The part of the hits that went beyond the limit.
    pub over_hits: u64,
    /// The part of the hits that fell between near and the limit.
    pub near_hits: u64,
    /// The hits of a request within the limit.
    pub within_hits: u64,
}

impl Thresholds {
    /// The thresholds of a limit, with `NEAR_LIMIT_RATIO`. The product is taken in 32 bits, because the
    /// Go service does so and its counts are compared with ours during a migration.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the loss is the behaviour that is asked for; a cast saturates"
    )]
    pub fn new(requests_per_unit: u32, near_ratio: f32) -> Self {
        let near = (requests_per_unit as f32 * near_ratio).floor() as u64;
        Self { limit: u64::from(requests_per_unit), near }
    }
}

/// Judges a counter that stands at `after` once these hits are counted.
#[must_use]
pub fn decide(thresholds: Thresholds, hits: Hits, after: u64) -> Decision {
    let Thresholds { limit, near } = thresholds;
    let over = after > limit;
    let remaining = u32::try_from(limit.saturating_sub(after)).unwrap_or(u32::MAX);
    let Hits::Take(hits) = hits else { return Decision { over, remaining, ..Decision::default() } };
    // Where STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT kept the hits from the counter this wraps round, as
    // it does in the Go service: then all of them lie beyond every threshold that is passed.
    let counted = hits.min(MOST_HITS);
    let before = after.wrapping_sub(counted);
    if over && before >= limit {
        Decision { over, remaining, over_hits: hits, ..Decision::default() }
    } else if over {
        let near_hits = limit.saturating_sub(near.max(before));
        let over_hits = after.saturating_sub(limit).saturating_add(hits.saturating_sub(counted));
        Decision { over, remaining, over_hits, near_hits, within_hits: 0 }
    } else {
        let near_hits = match after > near {
            true if before >= near => hits,
            true => after.saturating_sub(near),
            false => 0,
        };
        Decision { over, remaining, over_hits: 0, near_hits, within_hits: hits }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limiter::algorithm::fixed_window;

    /// Counts hit by hit, each asked for itself.
    fn slow(thresholds: Thresholds, hits: u64, after: u64) -> Decision {
        let over = after > thresholds.limit;
        let mut model = Decision { over, ..Decision::default() };
        model.remaining = if over { 0 } else { u32::try_from(thresholds.limit - after).unwrap() };
        for hit in after - hits..after {
            if hit >= thresholds.limit {
                model.over_hits += 1;
            } else if hit >= thresholds.near {
                model.near_hits += 1;
            }
        }
        model.within_hits = if over { 0 } else { hits };
        model
    }

    proptest! {
        #[test]
        fn counts_each_hit_as_if_it_came_alone(
            limit in 0..60_u32, ratio in 0.0..=1.0_f32, before in 0..100_u64, hits in 0..50_u64,
        ) {
            let thresholds = Thresholds::new(limit, ratio);
            let after = before + hits;
            prop_assert_eq!(decide(thresholds, Hits::Take(hits), after), slow(thresholds, hits, after));
        }

        #[test]
        fn takes_any_numbers(limit: u32, ratio in 0.0..=1.0_f32, hits: u64, after: u64, back: bool) {
            let hits = if back { Hits::Refund(hits) } else { Hits::Take(hits) };
            let decision = decide(Thresholds::new(limit, ratio), hits, after);
            prop_assert_eq!(decision.over, after > u64::from(limit));
            prop_assert!(decision.remaining <= limit);
        }
    }

    #[test]
    fn of_hits_near_the_largest_number_each_counts_once() {
        for hits in [1 << 32, 1 << 63, u64::MAX] {
            let thresholds = Thresholds::new(10, 0.8);
            let (mut counter, mut near) = (3, 0);
            for n in 0..4 {
                counter = fixed_window::count(counter, Hits::Take(hits));
                let decision = decide(thresholds, Hits::Take(hits), counter);
                near += decision.near_hits;
                // Three hits were there before: seven more fit, of which two are near the limit.
                let over = if n == 0 { hits - 7 } else { hits };
                assert_eq!((decision.over, decision.over_hits), (true, over), "{hits} {n}");
            }
            assert_eq!(near, 2, "{hits}");
        }
    }

    #[test]
    fn the_near_threshold_is_taken_in_32_bits() {
        assert_eq!(Thresholds::new(10, 0.8).near, 8);
        assert_eq!(Thresholds::new(16_777_217, 1.0).near, 16_777_216);
    }

    #[test]
    fn hits_that_are_given_back_count_nowhere() {
        let decision = decide(Thresholds::new(5, 0.8), Hits::Refund(3), 2);
        assert_eq!(decision, Decision { remaining: 3, ..Decision::default() });
    }
}
