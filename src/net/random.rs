//! Random numbers for what must not happen everywhere at the same moment: expiries and reconnects.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A number below `bound`; 0 when that is 0. Not for secrets.
pub(crate) fn below(bound: u64) -> u64 {
    static STATE: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0)));
    // SplitMix64: a Weyl sequence, mixed.
    let mut mixed = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).checked_rem(bound).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_lie_below_their_bound_and_differ() {
        let numbers: std::collections::BTreeSet<_> = (0..1000).map(|_| super::below(50)).collect();
        assert_eq!(numbers, (0..50).collect());
        assert_eq!(super::below(0), 0);
    }
}
