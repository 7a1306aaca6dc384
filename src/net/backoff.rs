//! Exponential backoff with jitter: each pause is twice as long as the one before, up to a maximum, and up to half of
//! it is left out at random, so that replicas do not retry together.

use std::time::Duration;

use crate::settings::redis::Startup;

/// The pauses between attempts.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses from `first` to `max`.
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, first, max }
    }

    /// For a server that was reached before: short enough to find it within half a second of its return.
    pub(crate) const fn reconnect() -> Self {
        Self::new(Duration::from_millis(25), Duration::from_millis(300))
    }

    /// For a server that was never reached.
    pub(crate) const fn at_start(startup: &Startup) -> Self {
        Self::new(startup.initial_interval, startup.max_interval)
    }

    /// The next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = pause.saturating_mul(2);
        let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(micros.saturating_sub(fastrand::u64(..=micros / 2)))
    }

    /// Starts again with the first pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_maximum_and_restart() {
        let mut backoff = Backoff::reconnect();
        for bound in [25, 50, 100, 200, 300, 300] {
            let bound = Duration::from_millis(bound);
            let pause = backoff.next_pause();
            assert!(pause <= bound && pause >= bound / 2, "{pause:?} {bound:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= Duration::from_millis(25));
    }
}
