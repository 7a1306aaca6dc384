//! How long to wait before a server that failed is tried again: longer each time, and never in step with
//! the other replicas.

use std::time::Duration;

use super::random;
use crate::settings::redis::Startup;

/// The pauses between attempts.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Between attempts to reach a server that was there before: soon enough that it is found within
    /// half a second of its return.
    pub(crate) const fn again() -> Self {
        let first = Duration::from_millis(25);
        Self { next: first, first, longest: Duration::from_millis(300) }
    }

    /// Between attempts to reach a server that was never reached.
    pub(crate) const fn at_start(startup: &Startup) -> Self {
        let (first, longest) = (startup.initial_interval, startup.max_interval);
        Self { next: first, first, longest }
    }

    /// The next pause, of which up to half is left out at random.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(micros.saturating_sub(random::below((micros / 2).saturating_add(1))))
    }

    /// It went well: the next pause is short again.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut pace = Backoff::again();
        for bound in [25, 50, 100, 200, 300, 300] {
            let bound = Duration::from_millis(bound);
            let pause = pace.pause();
            assert!(pause <= bound && pause >= bound / 2, "{pause:?} {bound:?}");
        }
        pace.reset();
        assert!(pace.pause() <= Duration::from_millis(25));
    }
}
