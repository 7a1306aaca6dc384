//! Limits the rate of log lines that callers and other servers cause, so that they cannot fill the log, and counts the
//! suppressed lines.
//!
//! Code that takes the time as an argument passes it to [`LogThrottle::admit`]; network tasks use
//! [`LogThrottle::admit_now`].

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use crate::mutex::lock;
use clock::Time;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Admits one line in an interval.
pub struct LogThrottle {
    seconds: u64,
    /// The second of the last line; 0 before the first.
    last: AtomicU64,
    suppressed: AtomicU64,
}

impl LogThrottle {
    pub const fn new(seconds: u64) -> Self {
        Self { seconds, last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Admits a line, and returns the number of lines that were suppressed before it. Of several concurrent calls, one is
    /// admitted. A clock that is set back does not silence the log.
    pub fn admit(&self, now: Time) -> Option<u64> {
        self.admit_in(now.seconds())
    }

    /// As [`admit`](Self::admit), by the monotonic clock.
    pub fn admit_now(&self) -> Option<u64> {
        self.admit_in(START.elapsed().as_secs())
    }

    fn admit_in(&self, second: u64) -> Option<u64> {
        let (last, second) = (self.last.load(Relaxed), second.max(1));
        let is_due = last == 0 || second.abs_diff(last) >= self.seconds;
        if is_due && self.last.compare_exchange(last, second, Relaxed, Relaxed).is_ok() {
            return Some(self.suppressed.swap(0, Relaxed));
        }
        self.suppressed.fetch_add(1, Relaxed);
        None
    }
}

/// A throttle for each kind of line. Beyond `most` kinds, all are removed and may be logged again.
pub struct LogThrottles<K> {
    seconds: u64,
    most: usize,
    known: Mutex<HashMap<K, LogThrottle>>,
}

impl<K: Eq + Hash> LogThrottles<K> {
    /// Throttles that admit one line of a kind in `seconds`.
    pub fn new(seconds: u64, most: usize) -> Self {
        Self { seconds, most, known: Mutex::default() }
    }

    /// Admits a line of this kind, and returns the number of its lines that were suppressed before it.
    pub fn admit_now(&self, kind: K) -> Option<u64> {
        let mut known = lock(&self.known);
        if known.len() >= self.most && !known.contains_key(&kind) {
            known.clear();
        }
        known.entry(kind).or_insert_with(|| LogThrottle::new(self.seconds)).admit_now()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn admits_one_line_in_an_interval_and_counts_the_others() {
        let throttle = LogThrottle::new(10);
        let admitted: Vec<_> = [100, 100, 109, 110, 110, 119, 200]
            .map(|second| throttle.admit(Time::from_seconds(second)))
            .into_iter()
            .collect();
        assert_eq!(admitted, [Some(0), None, None, Some(2), None, None, Some(2)]);
    }

    #[test]
    fn admits_lines_at_time_0_and_after_the_clock_was_set_back() {
        let throttle = LogThrottle::new(10);
        assert_eq!(throttle.admit(Time::from_seconds(0)), Some(0));
        assert_eq!(throttle.admit(Time::from_seconds(5)), None);
        assert_eq!(throttle.admit(Time::from_seconds(1_000)), Some(1));
        assert_eq!(throttle.admit(Time::from_seconds(500)), Some(0));
    }

    #[test]
    fn admits_each_kind_and_bounds_the_kinds() {
        let throttles = LogThrottles::new(3_600, 2);
        assert_eq!(
            ["a", "a", "b", "a"].map(|kind| throttles.admit_now(kind)),
            [Some(0), None, Some(0), None]
        );
        // A third kind makes room for itself, and the others are logged again.
        assert_eq!(["c", "a", "c"].map(|kind| throttles.admit_now(kind)), [Some(0), Some(0), None]);
    }

    #[test]
    fn admits_one_of_several_threads() {
        let throttle = LogThrottle::new(1);
        let admitted: usize = thread::scope(|scope| {
            let admit = || (0..1_000).filter(|_| throttle.admit(Time::from_seconds(7)).is_some()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(admit)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((admitted, throttle.suppressed.load(Relaxed)), (1, 3_999));
    }
}
