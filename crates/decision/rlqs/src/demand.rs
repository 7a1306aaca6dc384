//! What an Envoy will use, by what it reports, and the division of what there is by max-min fairness.

use std::time::Duration;

/// A sample of a shorter time says little, and is added to the next one.
const SAMPLE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// Requests that wanted to pass, and the time in which they came; `None` before the first sample.
    sample: Option<(u64, Duration)>,
    /// Some were denied, so it would use more than it did.
    is_short: bool,
    pub(crate) reported_at: Duration,
    sampled_at: Duration,
    /// Since the last sample.
    requests: u64,
    denied: u64,
    /// The last report of any request.
    busy_at: Duration,
    /// The last report says that fewer requests come than before, by more than noise.
    pub(crate) has_dropped: bool,
}

impl Demand {
    pub(crate) fn unknown(now: Duration) -> Self {
        Self { reported_at: now, sampled_at: now, busy_at: now, ..Self::default() }
    }

    pub(crate) fn report(&mut self, allowed: u64, denied: u64, now: Duration) {
        self.reported_at = now;
        self.has_dropped = false;
        self.requests = self.requests.saturating_add(allowed).saturating_add(denied);
        self.denied = self.denied.saturating_add(denied);
        if self.requests > 0 {
            self.busy_at = now;
        }
        let time = now.saturating_sub(self.sampled_at);
        if time < SAMPLE {
            return;
        }
        let new = self.requests;
        let old = self.rate(time);
        self.has_dropped = old.is_some_and(|old| old.saturating_sub(new) > old / 8 + 2 * old.isqrt());
        let rate = match old {
            // Half of a small change: noise moves little. A large one at once.
            Some(old) if new / 2 <= old && old / 2 <= new => old.midpoint(new),
            // It came within the time, so the mean of that is too low.
            Some(old) if new > old && self.denied > 0 => new.saturating_add((new - old) / 2),
            _ => new,
        };
        self.sample = Some((rate, time));
        self.is_short = self.denied > 0;
        self.requests = 0;
        self.denied = 0;
        self.sampled_at = now;
    }

    pub(crate) fn is_known(&self) -> bool {
        self.sample.is_some()
    }

    /// The requests that come in a time; `None` if that is not known.
    pub(crate) fn rate(&self, time: Duration) -> Option<u64> {
        self.sample.map(|(requests, sampled)| part(requests, time, sampled))
    }

    /// The hits for the requests of a time, with room for more: less of it while others lack them.
    pub(crate) fn of(&self, time: Duration, is_scarce: bool) -> u64 {
        let Some(rate) = self.rate(time) else { return u64::MAX };
        // Requests that come at random vary by the root of their number.
        let (part, noise) = if is_scarce || self.is_short { (20, 0) } else { (4, 2) };
        rate.saturating_add(rate.div_ceil(part).max(noise * rate.isqrt()))
    }

    /// The last report says that no requests come.
    pub(crate) fn is_idle(&self) -> bool {
        self.sampled_at == self.reported_at && self.sample.is_some_and(|(requests, _)| requests == 0)
    }

    pub(crate) fn idle_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.busy_at)
    }
}

/// The requests that come in a time, if so many come in another.
pub(crate) fn part(requests: u64, time: Duration, of: Duration) -> u64 {
    let requests = u128::from(requests) * time.as_micros();
    u64::try_from(requests.div_ceil(of.as_micros().max(1))).unwrap_or(u64::MAX)
}

/// Divides hits by need: nobody gets more than it needs, and who gets less gets as much as any. `turn` decides who gets
/// the hits that cannot be divided.
pub(crate) fn max_min(mut hits: u64, needs: &[u64], turn: usize) -> Vec<u64> {
    let mut shares = vec![0; needs.len()];
    let mut by_need: Vec<usize> = (0..needs.len()).collect();
    by_need.rotate_left(turn.checked_rem(needs.len()).unwrap_or(0));
    by_need.retain(|index| needs.get(*index).is_some_and(|need| *need > 0));
    by_need.sort_by_key(|index| needs.get(*index).copied());
    let mut left = u64::try_from(by_need.len()).unwrap_or(u64::MAX);
    for index in by_need {
        // What is left over of a division goes to the first of equal needs.
        let share = needs.get(index).copied().unwrap_or(0).min(hits.div_ceil(left.max(1)));
        if let Some(assigned) = shares.get_mut(index) {
            *assigned = share;
        }
        hits -= share;
        left -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_less_gets_all_and_the_others_get_the_same() {
        assert_eq!(max_min(100, &[10, 80, 80], 0), [10, 45, 45]);
        assert_eq!(max_min(100, &[10, 20, 30], 0), [10, 20, 30]);
        assert_eq!(max_min(2, &[5, 5, 5], 0).iter().sum::<u64>(), 2);
        assert_eq!(max_min(7, &[], 3), Vec::<u64>::new());
    }

    #[test]
    fn nobody_is_left_out_for_ever() {
        let mut all = [0; 3];
        for turn in 0..3 {
            for (sum, share) in all.iter_mut().zip(max_min(1, &[4, 4, 4], turn)) {
                *sum += share;
            }
        }
        assert_eq!(all, [1, 1, 1]);
    }

    #[test]
    fn a_small_change_moves_half_and_a_large_one_all() {
        let second = Duration::from_secs;
        let mut demand = Demand::unknown(second(0));
        assert_eq!(demand.of(second(1), false), u64::MAX);
        demand.report(500, 0, second(5));
        assert_eq!((demand.rate(second(1)), demand.of(second(1), false)), (Some(100), 125));
        demand.report(600, 0, second(10));
        assert_eq!(demand.rate(second(1)), Some(110));
        demand.report(0, 0, second(15));
        assert!(demand.has_dropped);
        assert!(demand.is_idle() && demand.idle_for(second(20)) == second(10));
    }

    #[test]
    fn what_comes_within_the_time_of_a_sample_is_more_than_its_mean() {
        let second = Duration::from_secs;
        let mut demand = Demand::unknown(second(0));
        demand.report(100, 0, second(5));
        demand.report(100, 300, second(10));
        assert_eq!(demand.rate(second(5)), Some(550));
        demand.report(600, 0, second(15));
        assert_eq!(demand.rate(second(5)), Some(575));
    }

    #[test]
    fn a_report_that_follows_another_at_once_is_no_sample() {
        let mut demand = Demand::unknown(Duration::ZERO);
        demand.report(90, 10, Duration::from_millis(10));
        assert_eq!(demand.rate(Duration::from_secs(1)), None);
        demand.report(100, 0, Duration::from_secs(2));
        assert_eq!(demand.rate(Duration::from_secs(1)), Some(100));
        assert_eq!(demand.of(Duration::from_secs(1), false), 105);
    }
}
