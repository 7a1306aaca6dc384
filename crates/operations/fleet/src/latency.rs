//! Latencies as counts in buckets, which add up over replicas. Percentiles do not.

use serde::{Deserialize, Serialize};

use metrics::Distribution;

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct Buckets {
    /// Upper bounds in seconds in ascending order, each with the number of values in its bucket.
    within: Vec<(f64, u64)>,
    /// The number of values above the last bound.
    beyond: u64,
}

impl Buckets {
    /// The values that came between two readings of a distribution.
    pub fn between(before: &Distribution, after: &Distribution) -> Self {
        let counted = |index: usize, count: u64| {
            count.saturating_sub(before.buckets.get(index).map_or(0, |(_, before)| *before))
        };
        // The readings count all values up to a bound.
        let mut below = 0_u64;
        let buckets = after.buckets.iter().enumerate().map(|(index, (bound, count))| {
            let up_to = counted(index, *count);
            let within = up_to.saturating_sub(below);
            below = below.max(up_to);
            (*bound, within)
        });
        let within = buckets.collect();
        Self { within, beyond: after.count.saturating_sub(before.count).saturating_sub(below) }
    }

    /// Adds the values of another replica, whose version may have other bounds.
    pub fn add(&mut self, other: &Self) {
        for (bound, count) in &other.within {
            match self.within.binary_search_by(|(known, _)| known.total_cmp(bound)) {
                Ok(at) => {
                    if let Some((_, known)) = self.within.get_mut(at) {
                        *known = known.saturating_add(*count);
                    }
                }
                Err(at) => self.within.insert(at, (*bound, *count)),
            }
        }
        self.beyond = self.beyond.saturating_add(other.beyond);
    }

    /// A quantile, interpolated within its bucket as Prometheus does; at most the last bound. `None` without values.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let counts = self.within.iter().map(|(_, count)| *count);
        let all = counts.fold(self.beyond, u64::saturating_add);
        if all == 0 {
            return None;
        }
        let rank = part * all as f64;
        let mut lower = 0.0;
        let mut below = 0.0;
        for (bound, count) in &self.within {
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                return Some(lower + (bound - lower) * (rank - below).max(0.0) / count);
            }
            (lower, below) = (*bound, below + count);
        }
        Some(lower)
    }
}
