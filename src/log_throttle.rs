//! At most one log line in a while from many threads, with a count of those left out: for lines that callers and
//! other servers cause, so that they cannot fill the log.
//!
//! What takes the time as an argument gives it to [`LogThrottle::admit`]; tasks that talk to the network use
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

use crate::{clock::Time, mutex::lock};

/// The monotonic clock begins here.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Lets one line through in so many seconds.
#[derive(Debug)]
pub struct LogThrottle {
    seconds: u64,
    /// The second in which a line was logged last; 0 before the first.
    last: AtomicU64,
    suppressed: AtomicU64,
}

impl LogThrottle {
    /// A throttle that lets one line through in `seconds`.
    #[must_use]
    pub const fn new(seconds: u64) -> Self {
        Self { seconds, last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// How many lines were suppressed since the last one, when this one may be logged. Of several threads that
    /// call in one moment one gets an answer. A clock that was set back does not silence the log.
    pub fn admit(&self, now: Time) -> Option<u64> {
        self.admit_in(now.seconds())
    }

    /// The same by the monotonic clock.
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

/// A throttle for each kind of line. Of `most` kinds it remembers when they were logged; one more, and all are
/// forgotten and may be logged again.
#[derive(Debug)]
pub struct LogThrottles<K> {
    seconds: u64,
    most: usize,
    known: Mutex<HashMap<K, LogThrottle>>,
}

impl<K: Eq + Hash> LogThrottles<K> {
    /// Throttles that let one line of a kind through in `seconds`.
    #[must_use]
    pub fn new(seconds: u64, most: usize) -> Self {
        Self { seconds, most, known: Mutex::default() }
    }

    /// How many lines of this kind were suppressed since the last one, when this one may be logged.
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
    fn lets_one_line_through_in_a_while_and_counts_the_rest() {
        let throttle = LogThrottle::new(10);
        let admitted: Vec<_> = [100, 100, 109, 110, 110, 119, 200]
            .map(|second| throttle.admit(Time::from_seconds(second)))
            .into_iter()
            .collect();
        assert_eq!(admitted, [Some(0), None, None, Some(2), None, None, Some(2)]);
    }

    #[test]
    fn logs_in_the_first_second_of_1970_and_after_the_clock_was_set_back() {
        let throttle = LogThrottle::new(10);
        assert_eq!(throttle.admit(Time::from_seconds(0)), Some(0));
        assert_eq!(throttle.admit(Time::from_seconds(5)), None);
        assert_eq!(throttle.admit(Time::from_seconds(1_000)), Some(1));
        assert_eq!(throttle.admit(Time::from_seconds(500)), Some(0));
    }

    #[test]
    fn each_kind_is_logged_and_the_kinds_are_bounded() {
        let throttles = LogThrottles::new(3_600, 2);
        assert_eq!(
            ["a", "a", "b", "a"].map(|kind| throttles.admit_now(kind)),
            [Some(0), None, Some(0), None]
        );
        // A third kind makes room for itself, and the others are logged again.
        assert_eq!(["c", "a", "c"].map(|kind| throttles.admit_now(kind)), [Some(0), Some(0), None]);
    }

    #[test]
    fn one_of_several_threads_logs() {
        let throttle = LogThrottle::new(1);
        let admitted: usize = thread::scope(|scope| {
            let admit = || (0..1_000).filter(|_| throttle.admit(Time::from_seconds(7)).is_some()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(admit)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((admitted, throttle.suppressed.load(Relaxed)), (1, 3_999));
    }
}
