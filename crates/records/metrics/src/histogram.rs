//! Response times: a histogram with buckets for a service that answers in microseconds.
//!
//! The Go service's buckets begin at 5 ms, so that nearly all responses are in the first one.

use std::time::Duration;

use super::shard::Cells;
use crate::Distribution;

/// The upper bounds of the buckets, in microseconds. 20 ms is Envoy's default timeout: responses in later buckets were
/// too late.
pub const BOUNDS_MICROS: [u32; 18] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000,
];

/// The bucket beyond the last bound.
const BEYOND: usize = BOUNDS_MICROS.len();
/// The cell with the sum of all durations in nanoseconds, up to 584 years.
const SUM: usize = BEYOND + 1;
const CELLS: usize = SUM + 1;

#[derive(Default)]
pub struct Histogram(Cells<CELLS>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Durations within each bound of [`BOUNDS_MICROS`].
    pub within: [u64; BEYOND],
    pub count: u64,
    pub sum: Duration,
}

impl Histogram {
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    pub fn observe_many(&self, duration: Duration, times: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "no response takes 584 years")]
        let nanos = duration.as_nanos() as u64;
        self.0.add(BOUNDS_MICROS.partition_point(|bound| u64::from(*bound) * 1_000 < nanos), times);
        self.0.add(SUM, nanos * times);
    }

    pub fn distribution(&self) -> Distribution {
        self.snapshot().in_units(1.0)
    }

    /// The count is computed from the buckets, so that both agree.
    pub fn snapshot(&self) -> Snapshot {
        let [within @ .., beyond, sum] = self.0.all();
        let mut count = 0;
        let within = within.map(|in_bucket| {
            count += in_bucket;
            count
        });
        Snapshot { within, count: count + beyond, sum: Duration::from_nanos(sum) }
    }
}

impl Snapshot {
    /// The values in a unit of which a second has `units`.
    pub fn in_units(&self, units: f64) -> Distribution {
        // A thousandth is not a binary fraction: a product with it would have a long tail of digits.
        let bounds = BOUNDS_MICROS.map(|bound| f64::from(bound) / (1e6 / units));
        Distribution {
            buckets: bounds.into_iter().zip(self.within).collect(),
            count: self.count,
            sum: self.sum.as_secs_f64() * units,
        }
    }

    pub fn with(&self, other: &Self) -> Self {
        let mut within = self.within;
        for (sum, other) in within.iter_mut().zip(other.within) {
            *sum += other;
        }
        Self { within, count: self.count + other.count, sum: self.sum + other.sum }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buckets_count_durations_within_their_bound(nanos in prop::collection::vec(0_u64..2_000_000_000, 0..50)) {
            let histogram = Histogram::default();
            for nanos in &nanos {
                histogram.observe(Duration::from_nanos(*nanos));
            }
            let snapshot = histogram.snapshot();
            for (bound, within) in BOUNDS_MICROS.iter().zip(snapshot.within) {
                let bound = Duration::from_micros(u64::from(*bound));
                let expected = nanos.iter().filter(|nanos| Duration::from_nanos(**nanos) <= bound).count();
                prop_assert_eq!(within, expected as u64);
            }
            prop_assert_eq!(snapshot.count, nanos.len() as u64);
            prop_assert_eq!(snapshot.sum, Duration::from_nanos(nanos.iter().sum()));
        }
    }

    #[test]
    fn a_duration_of_exactly_a_bound_is_within_it() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_millis(20));
        let at = BOUNDS_MICROS.iter().position(|bound| *bound == 20_000).unwrap();
        assert_eq!(histogram.snapshot().within[at - 1..=at], [0, 1]);
    }

    #[test]
    fn a_duration_of_zero_counts() {
        let histogram = Histogram::default();
        histogram.observe(Duration::ZERO);
        assert_eq!((histogram.snapshot().count, histogram.snapshot().within[0]), (1, 1));
    }
}
