//! Repeatable random input: a small generator with a seed, which a failed test prints.

/// A stream of pseudo-random numbers: `SplitMix64`.
pub struct Noise(u64);

impl Noise {
    /// The stream with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Up to `longest` bytes.
    pub fn bytes(&mut self, longest: usize) -> Vec<u8> {
        let length = self.below(longest + 1);
        (0..length).map(|_| self.byte()).collect()
    }
}
