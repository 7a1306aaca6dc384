//! Response times for a sink: one line per bucket, with the number of times in it.
//!
//! The Go service sends a line for each request. The number and the sum are the same here, as far as times may move
//! within their bucket.

use std::time::Duration;

use super::line::Amount;
use metrics::histogram::{BOUNDS_MICROS, Snapshot};

/// The buckets of [`BOUNDS_MICROS`], and one beyond the last bound.
const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// The response times of one method, counted and sent.
#[derive(Debug, Default)]
pub(super) struct Times {
    counted: [u64; BUCKETS],
    sent: [u64; BUCKETS],
    sum: Duration,
    sent_sum: Duration,
}

impl Times {
    pub(super) fn enter(&mut self, now: &Snapshot) {
        // Everything was sent, so the sum was sent too.
        if self.sent == self.counted {
            self.sent_sum = self.sum;
        }
        let mut below = 0;
        for (counted, within) in self.counted.iter_mut().zip(now.within.into_iter().chain([now.count])) {
            *counted = within - below;
            below = within;
        }
        self.sum = now.sum;
    }

    /// The unsent lines, each with the count to settle.
    pub(super) fn owed(&mut self) -> impl Iterator<Item = (Amount, &mut u64, u64)> {
        let owed: [u64; BUCKETS] = std::array::from_fn(|bucket| self.counted[bucket] - self.sent[bucket]);
        let sum = self.sum.saturating_sub(self.sent_sum);
        let millis = spread(&owed, sum.as_secs_f64() * 1e3);
        let lines = self.sent.iter_mut().zip(self.counted).zip(owed).zip(millis);
        lines
            .filter(|(((_, _), times), _)| *times > 0)
            .map(|(((sent, counted), times), millis)| (Amount::Times { millis, times }, sent, counted))
    }
}

/// A time for each bucket, at the same fraction of each, so that their sum is `sum` milliseconds. Times beyond the last
/// bound take the rest.
fn spread(counts: &[u64; BUCKETS], sum: f64) -> [f64; BUCKETS] {
    let counts = counts.map(|n| n as f64);
    let bounds = BOUNDS_MICROS.map(|micros| f64::from(micros) / 1e3);
    let lower = |bucket: usize| if bucket == 0 { 0.0 } else { bounds[bucket - 1] };
    let upper = |bucket: usize| bounds.get(bucket).copied();
    let width = |bucket: usize| upper(bucket).map_or(0.0, |upper| upper - lower(bucket));
    let total = |value_of: &dyn Fn(usize) -> f64| {
        (0..BUCKETS).map(|bucket| counts[bucket] * value_of(bucket)).sum::<f64>()
    };
    let least = total(&lower);
    let room = total(&width);
    let share = if room > 0.0 { ((sum - least) / room).clamp(0.0, 1.0) } else { 0.0 };
    let beyond = counts[BUCKETS - 1];
    let left = sum - least - share * room;
    std::array::from_fn(|bucket| {
        let extra = if bucket == BUCKETS - 1 && beyond > 0.0 { (left / beyond).max(0.0) } else { 0.0 };
        lower(bucket) + share * width(bucket) + extra
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use metrics::Histogram;

    proptest! {
        #[test]
        fn keeps_the_number_and_the_sum(
            rounds in prop::collection::vec(prop::collection::vec(0_u64..4_000_000_000, 0..20), 1..4)
        ) {
            let histogram = Histogram::default();
            let mut times = Times::default();
            for round in rounds {
                for nanos in &round {
                    histogram.observe(Duration::from_nanos(*nanos));
                }
                times.enter(&histogram.snapshot());
                let (mut number, mut sum) = (0, 0.0);
                for (amount, sent, counted) in times.owed() {
                    let Amount::Times { millis, times } = amount else { panic!("{amount:?}") };
                    *sent = counted;
                    number += times;
                    { sum += millis * times as f64; }
                }
                let expected = Duration::from_nanos(round.iter().sum()).as_secs_f64() * 1e3;
                prop_assert_eq!(number, round.len() as u64);
                prop_assert!((sum - expected).abs() < 1e-6 * expected.max(1.0), "{} for {}", sum, expected);
            }
        }
    }

    #[test]
    fn unsent_times_are_sent_the_next_time() {
        let histogram = Histogram::default();
        let mut times = Times::default();
        for _ in 0..2 {
            histogram.observe(Duration::from_millis(3));
            times.enter(&histogram.snapshot());
        }
        let owed: Vec<Amount> = times.owed().map(|(amount, _, _)| amount).collect();
        assert_eq!(owed, [Amount::Times { millis: 3.0, times: 2 }]);
    }
}
