//! Random numbers of a seed: `SplitMix64`, the same on every platform.

use std::sync::Mutex;

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(end)) >> 64) as u64
    }

    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// The pause before the next event of a Poisson process with this mean, in the unit of the mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        let fraction = (self.number() >> 11) as f64 / (1_u64 << 53) as f64;
        -mean * libm::log(1.0 - fraction)
    }
}

/// The chance of one process.
pub struct Shared(pub Mutex<Random>);

impl clock::timer::Random for Shared {
    fn number(&self) -> u64 {
        self.0.lock().expect("nothing panics with it").number()
    }
}
