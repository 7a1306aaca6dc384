//! Exponential backoff with jitter, and intervals with jitter, so that replicas that failed or started together do not stay
//! in step.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    first: Duration,
    max: Duration,
    factor: f64,
    jitter: bool,
}

impl Backoff {
    /// Pauses from `first` that double up to `max`, each shortened at random by up to a half.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, first, max, factor: 2.0, jitter: true }
    }

    /// Sets the factor, of which 1 or less disables growth, and the jitter.
    pub const fn with(mut self, factor: f64, jitter: bool) -> Self {
        self.factor = factor;
        self.jitter = jitter;
        self
    }

    /// For a server that was connected: short enough to reconnect within half a second of its return.
    pub const fn reconnect() -> Self {
        Self::new(Duration::from_millis(25), Duration::from_millis(300))
    }

    pub fn next_pause(&mut self) -> Duration {
        self.pause(fastrand::f64())
    }

    /// The next pause, with randomness from 0 to 1.
    pub fn pause(&mut self, chance: f64) -> Duration {
        let pause = self.next.min(self.max);
        // An overflow is above the maximum.
        self.next = scaled(pause, self.factor).unwrap_or(self.max).max(self.first);
        let shortened = self.jitter.then(|| scaled(pause, f64::midpoint(1.0, chance)));
        shortened.flatten().unwrap_or(pause)
    }

    /// Restarts with the first pause, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// An interval that is lengthened or shortened at random by up to this fraction.
pub fn jittered(interval: Duration, share: f64) -> Duration {
    jittered_by(interval, share, fastrand::f64())
}

/// The same, with randomness from 0 to 1.
pub fn jittered_by(interval: Duration, share: f64, chance: f64) -> Duration {
    // An overflow is centuries, which need no jitter.
    scaled(interval, 1.0 + share * (2.0 * chance - 1.0)).unwrap_or(interval)
}

fn scaled(duration: Duration, factor: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(first: u64, max: u64, factor: f64, chance: Option<f64>) -> Vec<f64> {
        let backoff = Backoff::new(Duration::from_secs(first), Duration::from_secs(max));
        let mut backoff = backoff.with(factor, chance.is_some());
        (0..5).map(|_| backoff.pause(chance.unwrap_or_default()).as_secs_f64()).collect()
    }

    #[test]
    fn pauses_grow_by_the_factor_up_to_the_maximum() {
        assert_eq!(seconds(10, 60, 2.0, None), [10.0, 20.0, 40.0, 60.0, 60.0]);
        assert_eq!(seconds(10, 60, 0.5, None), [10.0; 5]);
        assert_eq!(seconds(10, 5, 2.0, None), [5.0; 5]);
        assert_eq!(seconds(10, 60, 2.0, Some(0.0)), [5.0, 10.0, 20.0, 30.0, 30.0]);
    }

    #[test]
    fn pauses_restart_after_a_success() {
        let mut backoff = Backoff::reconnect();
        for bound in [25, 50, 100, 200, 300, 300] {
            let bound = Duration::from_millis(bound);
            let pause = backoff.next_pause();
            assert!(pause <= bound && pause >= bound / 2, "{pause:?} {bound:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= Duration::from_millis(25));
    }

    proptest! {
        #[test]
        fn pauses_keep_their_bounds(first: u32, max: u32, factor in 1e-9..1e9, chance in 0.0..=1.0) {
            for pause in seconds(first.into(), max.into(), factor, Some(chance)) {
                prop_assert!(pause <= f64::from(max));
                prop_assert!(pause >= f64::from(first.min(max)) * 0.499);
            }
        }

        #[test]
        fn any_interval_has_jitter(seconds: u64, share in 0.0..=1.0) {
            for interval in [Duration::from_nanos(seconds), Duration::from_secs(seconds)] {
                let seconds = interval.as_secs_f64();
                let jittered = jittered(interval, share).as_secs_f64();
                prop_assert!((jittered - seconds).abs() <= seconds * (share + 1e-9) + 1e-9);
            }
        }
    }
}
