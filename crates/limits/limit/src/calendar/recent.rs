//! The two windows of a calendar that were looked up last, so that a boundary is computed once a window.
//!
//! Around a boundary both windows are in use: threads read the clock at different moments, and leases of the earlier
//! window are returned. A clock that is set back or forward replaces the window that is further away.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Each word has the start of a window and its length in the lower bits, in seconds: no thread sees half a window.
/// A word of 0 contains no second.
pub(super) struct Recent([AtomicU64; 2]);

/// Two years.
const LENGTH_BITS: u32 = 26;

const LENGTH: u64 = (1 << LENGTH_BITS) - 1;

impl Recent {
    pub(super) const fn new() -> Self {
        Self([AtomicU64::new(0), AtomicU64::new(0)])
    }

    /// Start and end of the window that contains this second. `compute` is called if it is neither of the two.
    #[inline]
    pub(super) fn get(&self, now: u64, compute: impl FnOnce() -> (u64, u64)) -> (u64, u64) {
        for word in &self.0 {
            let (start, length) = unpacked(word.load(Relaxed));
            if now.wrapping_sub(start) < length {
                return (start, start.wrapping_add(length));
            }
        }
        self.put(now, compute())
    }

    #[cold]
    fn put(&self, now: u64, (start, end): (u64, u64)) -> (u64, u64) {
        assert!(start <= now && now < end, "a window contains its second: {start} <= {now} < {end}");
        let length = end.wrapping_sub(start);
        assert!(length <= LENGTH && start < 1 << (u64::BITS - LENGTH_BITS), "a window fits in a word");
        let [one, other] = self.0.each_ref().map(|word| unpacked(word.load(Relaxed)).0.abs_diff(start));
        let [first, second] = &self.0;
        (if one >= other { first } else { second }).store(start << LENGTH_BITS | length, Relaxed);
        (start, end)
    }
}

const fn unpacked(word: u64) -> (u64, u64) {
    (word >> LENGTH_BITS, word & LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window of a hundred seconds, and whether it was computed.
    fn get(recent: &Recent, now: u64) -> ((u64, u64), bool) {
        let mut is_computed = false;
        let window = recent.get(now, || {
            is_computed = true;
            (now - now % 100, now - now % 100 + 100)
        });
        (window, is_computed)
    }

    #[test]
    fn a_boundary_is_computed_once_a_window() {
        let recent = Recent::new();
        for now in 1000..5000 {
            assert_eq!(get(&recent, now).1, now % 100 == 0, "{now}");
        }
    }

    #[test]
    fn both_windows_at_a_boundary_are_kept() {
        let recent = Recent::new();
        for (now, is_computed) in [
            (199, true),
            (200, true),
            (199, false),
            (200, false),
            (300, true),
            (299, false),
            (5, true),
            (250, false),
        ] {
            assert_eq!(get(&recent, now), ((now - now % 100, now - now % 100 + 100), is_computed), "{now}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_or_forward_gets_its_window() {
        let recent = Recent::new();
        for now in [10_000, 20, 10_000, 4_000_000_000, 0, 99, 100] {
            let window = (now - now % 100, now - now % 100 + 100);
            assert_eq!(get(&recent, now).0, window);
            assert_eq!(get(&recent, now), (window, false), "{now}");
        }
    }

    #[test]
    fn threads_agree() {
        let recent = &Recent::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for step in 0..20_000_u64 {
                        let now = 1_000 + (step * 7 + thread * 31) % 700;
                        assert_eq!(get(recent, now).0, (now - now % 100, now - now % 100 + 100));
                    }
                });
            }
        });
    }
}
