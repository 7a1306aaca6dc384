//! Sampling of decisions: all up to a number per second, and beyond it one in 64 with a weight of 64. So numbers are
//! exact at low traffic. At high traffic the cost is a 64th, and sums are correct on average. The sampled one of 64 is
//! random: if it were every 64th, it could always be the same one of clients whose requests alternate.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use clock::Time;

/// Beyond the exact number, one in this many decisions is recorded.
pub(super) const ONE_IN: u32 = 64;

/// One thread writes, so loads and stores are enough. Threads that share a worker index may record a few more
/// decisions.
pub(super) struct Sampler {
    /// Up to this many decisions in a second are all recorded.
    exact: u32,
    second: AtomicU64,
    left: AtomicU32,
    skip: AtomicU32,
}

impl Sampler {
    pub(super) const fn new(exact: u32) -> Self {
        Self { exact, second: AtomicU64::new(0), left: AtomicU32::new(0), skip: AtomicU32::new(0) }
    }

    /// The weight of this decision, if it is recorded.
    pub(super) fn admit(&self, now: Time) -> Option<u32> {
        let second = now.seconds();
        if self.second.load(Relaxed) != second {
            self.second.store(second, Relaxed);
            self.left.store(self.exact, Relaxed);
        }
        if let Some(left) = self.left.load(Relaxed).checked_sub(1) {
            self.left.store(left, Relaxed);
            return Some(1);
        }
        if let Some(skip) = self.skip.load(Relaxed).checked_sub(1) {
            self.skip.store(skip, Relaxed);
            return None;
        }
        // Skips 0 to 126 decisions, 63 on average.
        self.skip.store(fastrand::u32(0..=2 * (ONE_IN - 1)), Relaxed);
        Some(ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_every_decision_up_to_the_exact_number() {
        let sampler = Sampler::new(10);
        for second in [100, 101, 99] {
            let now = Time::from_seconds(second);
            assert!((0..10).all(|_| sampler.admit(now) == Some(1)), "{second}");
        }
    }

    #[test]
    fn weights_beyond_it_add_up_to_the_number_of_decisions() {
        let sampler = Sampler::new(10);
        let now = Time::from_seconds(100);
        let many = 1_000_000;
        let sum: u64 = (0..many).filter_map(|_| sampler.admit(now)).map(u64::from).sum();
        assert!(sum.abs_diff(many) < many / 30, "{sum}");
    }

    #[test]
    fn alternating_requests_are_sampled_equally() {
        let sampler = Sampler::new(0);
        let now = Time::from_seconds(100);
        let mut noted = [0_u64; 8];
        for request in 0..6_400_000 {
            noted[request % 8] += u64::from(sampler.admit(now).is_some());
        }
        assert!(noted.iter().all(|n| n.abs_diff(12_500) < 1_250), "{noted:?}");
    }
}
