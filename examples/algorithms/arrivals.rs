//! Arrival times of requests in microseconds, the same in every run.

use std::f64::consts::TAU;

/// Pseudorandom numbers: `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// More than 0, at most 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Microseconds until the next of independent requests, at this average rate.
    fn wait(&mut self, a_second: f64) -> u64 {
        micros(-self.share().ln() / a_second)
    }
}

/// Independent requests at this average rate per second.
pub(crate) fn steady(a_second: f64, requests: u32) -> Vec<u64> {
    let mut random = Random(1);
    let mut now = 0;
    let next = || {
        now += random.wait(a_second);
        now
    };
    std::iter::repeat_with(next).take(requests as usize).collect()
}

/// Bursts of 1 to 79 requests, 10 ms apart within a burst, at this average rate per second.
pub(crate) fn bursty(a_second: f64, requests: u32) -> Vec<u64> {
    let mut random = Random(2);
    let (mut now, mut left) = (0, 0);
    let next = || {
        if left == 0 {
            now += random.wait(a_second / 40.0);
            left = 1 + random.below(79);
        }
        left -= 1;
        now += 10_000;
        now
    };
    std::iter::repeat_with(next).take(requests as usize).collect()
}

/// Evenly spaced requests at this rate per second at noon, and nearly none at midnight.
pub(crate) fn smooth(at_noon: f64, requests: u32) -> Vec<u64> {
    let mut now = 0;
    let next = || {
        now += micros(1.0 / (at_noon * light(now).max(0.01)));
        now
    };
    std::iter::repeat_with(next).take(requests as usize).collect()
}

/// Independent requests at this average rate per second at noon, and none at midnight.
pub(crate) fn day_and_night(at_noon: f64, requests: u32) -> Vec<u64> {
    let mut random = Random(3);
    let mut now = 0;
    let next = || {
        loop {
            now += random.wait(at_noon);
            if random.share() < light(now) {
                return now;
            }
        }
    };
    std::iter::repeat_with(next).take(requests as usize).collect()
}

/// 0 at midnight, 1 at noon.
#[expect(clippy::cast_precision_loss, reason = "a day has 37 bits")]
fn light(now: u64) -> f64 {
    const DAY: u64 = 86_400_000_000;
    (1.0 - ((now % DAY) as f64 / DAY as f64 * TAU).cos()) / 2.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of hours")]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}
