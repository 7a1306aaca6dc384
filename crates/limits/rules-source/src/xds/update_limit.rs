//! Limits how often updates are applied, because some control planes send new rules on every ACK.
//!
//! Most control planes wait for an ACK before they send the next response, so a later ACK slows them down.

use std::time::Duration;

use tokio::time::Instant;

/// The time between updates in the long run.
const INTERVAL: Duration = Duration::from_millis(250);

/// Updates applied without a delay after a quiet time: a control plane may send a response for each of its first
/// resources.
const BURST: u32 = 20;

/// A token bucket, as the time at which it is full.
#[derive(Default)]
pub(super) struct UpdateLimit {
    full_at: Option<Instant>,
}

impl UpdateLimit {
    /// Counts an update that arrives `now`, and returns the delay before it may be applied.
    pub(super) fn delay(&mut self, now: Instant) -> Duration {
        let until_full = self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        self.full_at = now.checked_add(until_full.saturating_add(INTERVAL));
        until_full.saturating_sub(INTERVAL.saturating_mul(BURST.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_updates_after_a_burst() {
        let mut limit = UpdateLimit::default();
        let mut now = Instant::now();
        for number in 1..=BURST {
            assert_eq!(limit.delay(now), Duration::ZERO, "{number}");
        }
        for number in 1..=10 {
            assert_eq!(limit.delay(now), INTERVAL, "{number}");
            now += INTERVAL;
        }
        now += INTERVAL * 2;
        let delays = [limit.delay(now), limit.delay(now), limit.delay(now)];
        assert_eq!(delays, [Duration::ZERO, Duration::ZERO, INTERVAL]);
        now += INTERVAL * BURST * 2;
        let delayed = (0..=BURST).map(|_| limit.delay(now)).filter(|delay| !delay.is_zero());
        assert_eq!(delayed.collect::<Vec<_>>(), [INTERVAL], "a long pause allows one burst");
    }
}
