//! Pauses before reconnecting to a control plane.
//!
//! Two kinds, as in the Go service: a constant one while it cannot be reached, and a growing one after broken
//! streams. Randomness is an argument from 0 to 1.

use std::time::Duration;

use crate::settings::groups::XdsBackoff;

/// The backoff after broken streams.
pub(super) struct Backoff {
    settings: XdsBackoff,
    broken: i32,
}

impl Backoff {
    pub(super) fn new(settings: XdsBackoff) -> Self {
        Self { settings, broken: 0 }
    }

    /// A stream was useful: the next pause is the first again.
    pub(super) fn reset(&mut self) {
        self.broken = 0;
    }

    /// The pause after another broken stream.
    pub(super) fn next(&mut self, chance: f64) -> Duration {
        let XdsBackoff { initial, max, factor, jitter } = self.settings;
        let grown = Duration::try_from_secs_f64(initial.as_secs_f64() * factor.powi(self.broken));
        self.broken = self.broken.saturating_add(1);
        // An overflow is above the maximum.
        let pause = grown.unwrap_or(max).max(initial).min(max);
        if jitter { pause.mul_f64(f64::midpoint(1.0, chance)) } else { pause }
    }
}

/// The pause before connecting again: half to one and a half of `interval`.
pub(super) fn spread(interval: Duration, chance: f64) -> Duration {
    // Centuries, which overflow, need no jitter.
    Duration::try_from_secs_f64(interval.as_secs_f64() * (0.5 + chance)).unwrap_or(interval)
}

/// A number from 0 to 1.
pub(super) fn chance() -> f64 {
    fastrand::f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(settings: (u64, u64, f64), jitter: bool, chance: f64) -> Vec<f64> {
        let (initial, max, factor) = settings;
        let (initial, max) = (Duration::from_secs(initial), Duration::from_secs(max));
        let mut backoff = Backoff::new(XdsBackoff { initial, max, factor, jitter });
        (0..5).map(|_| backoff.next(chance).as_secs_f64()).collect()
    }

    #[test]
    fn pauses_grow_by_the_factor_up_to_the_longest() {
        assert_eq!(seconds((10, 60, 2.0), false, 0.3), [10.0, 20.0, 40.0, 60.0, 60.0]);
        assert_eq!(seconds((10, 60, 0.5), false, 0.3), [10.0; 5]);
        assert_eq!(seconds((10, 5, 2.0), false, 0.3), [5.0; 5]);
        assert_eq!(seconds((10, 60, 2.0), true, 0.0), [5.0, 10.0, 20.0, 30.0, 30.0]);
    }

    #[test]
    fn a_useful_stream_resets_the_backoff() {
        let (initial, max) = (Duration::from_secs(1), Duration::from_secs(9));
        let mut backoff = Backoff::new(XdsBackoff { initial, max, factor: 3.0, jitter: false });
        assert_eq!([backoff.next(0.0), backoff.next(0.0)], [initial, 3 * initial]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), initial);
    }

    proptest! {
        #[test]
        fn pauses_keep_their_bounds(initial: u32, max: u32, factor in 1e-9..1e9, chance in 0.0..=1.0) {
            let settings = (u64::from(initial), u64::from(max), factor);
            for pause in seconds(settings, true, chance) {
                prop_assert!(pause <= f64::from(max));
                prop_assert!(pause >= f64::from(initial.min(max)) * 0.499);
            }
        }

        #[test]
        fn any_interval_is_spread(interval: u64, chance in 0.0..=1.0) {
            spread(Duration::from_nanos(interval), chance);
            spread(Duration::from_secs(interval), chance);
        }
    }

    #[test]
    fn chance_varies() {
        let seen: Vec<f64> = (0..100).map(|_| chance()).collect();
        assert!(seen.iter().all(|chance| (0.0..=1.0).contains(chance)), "{seen:?}");
        assert!(
            seen.iter().any(|chance| *chance < 0.4) && seen.iter().any(|chance| *chance > 0.6),
            "{seen:?}"
        );
    }
}
