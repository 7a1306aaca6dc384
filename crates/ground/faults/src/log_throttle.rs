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
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
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
        let second = second.max(1);
        let last = self.last.load(Relaxed);
        if self.is_due(last, second) && self.last.compare_exchange(last, second, Relaxed, Relaxed).is_ok() {
            return Some(self.suppressed.swap(0, Relaxed));
        }
        self.suppressed.fetch_add(1, Relaxed);
        None
    }

    fn is_due(&self, last: u64, second: u64) -> bool {
        last == 0 || second.abs_diff(last) >= self.seconds
    }
}

/// A throttle for each kind of line. If more than `most` kinds are logged in an interval, the others share one.
pub struct LogThrottles<K> {
    seconds: u64,
    most: usize,
    known: Mutex<HashMap<K, LogThrottle>>,
    others: LogThrottle,
}

impl<K: Eq + Hash> LogThrottles<K> {
    /// Throttles that admit one line of a kind in `seconds`.
    pub fn new(seconds: u64, most: usize) -> Self {
        Self { seconds, most, known: Mutex::default(), others: LogThrottle::new(seconds) }
    }

    /// Admits a line of this kind, and returns the number of lines that were suppressed before it.
    pub fn admit_now(&self, kind: K) -> Option<u64> {
        self.admit_in(kind, START.elapsed().as_secs())
    }

    fn admit_in(&self, kind: K, second: u64) -> Option<u64> {
        let mut known = lock(&self.known);
        if known.len() >= self.most && !known.contains_key(&kind) {
            known.retain(|_, LogThrottle { last, suppressed, .. }| {
                let is_recent = !self.others.is_due(last.load(Relaxed), second);
                if !is_recent {
                    self.others.suppressed.fetch_add(suppressed.load(Relaxed), Relaxed);
                }
                is_recent
            });
            if known.len() >= self.most {
                return self.others.admit_in(second);
            }
        }
        known.entry(kind).or_insert_with(|| LogThrottle::new(self.seconds)).admit_in(second)
    }
}

/// Logs when something that is tried again and again begins to fail, and when it has recovered: each at most once in ten
/// seconds, because a server may fail and recover many times a second.
pub struct FailureLog {
    is_failing: AtomicBool,
    failures: LogThrottle,
    recoveries: LogThrottle,
}

impl Default for FailureLog {
    fn default() -> Self {
        let [failures, recoveries] = [10; 2].map(LogThrottle::new);
        Self { is_failing: AtomicBool::new(false), failures, recoveries }
    }
}

impl FailureLog {
    /// An attempt failed. `log` gets the number of earlier failures that were not logged, if there are any.
    pub fn failed(&self, log: impl FnOnce(Option<u64>)) {
        if !self.is_failing.swap(true, Relaxed) {
            self.failures.admit_now().map(above_zero).map(log);
        }
    }

    /// An attempt succeeded.
    pub fn succeeded(&self, log: impl FnOnce(Option<u64>)) {
        if self.is_failing.swap(false, Relaxed) {
            self.recoveries.admit_now().map(above_zero).map(log);
        }
    }
}

fn above_zero(suppressed: u64) -> Option<u64> {
    (suppressed > 0).then_some(suppressed)
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
    fn admits_each_kind_once_in_an_interval_and_all_beyond_the_most_together() {
        let throttles = LogThrottles::new(10, 2);
        let admit = |second, kinds: [&'static str; 4]| kinds.map(|kind| throttles.admit_in(kind, second));
        assert_eq!(admit(100, ["a", "a", "b", "a"]), [Some(0), None, Some(0), None]);
        // Others share a throttle, and forget nobody.
        assert_eq!(admit(105, ["c", "d", "a", "c"]), [Some(0), None, None, None]);
        // The kinds that were silent make room, and what they suppressed is counted with the others.
        assert_eq!(admit(120, ["c", "d", "e", "e"]), [Some(0), Some(0), Some(5), None]);
    }

    #[test]
    fn a_server_that_fails_and_recovers_at_once_fills_no_log() {
        let log = FailureLog::default();
        let lines = std::cell::RefCell::new(Vec::new());
        log.succeeded(|_| lines.borrow_mut().push(("recovered", None)));
        for _ in 0..5 {
            (0..3).for_each(|_| log.failed(|suppressed| lines.borrow_mut().push(("failed", suppressed))));
            log.succeeded(|suppressed| lines.borrow_mut().push(("recovered", suppressed)));
        }
        assert_eq!(*lines.borrow(), [("failed", None), ("recovered", None)]);
        // Later the lines say how many are missing.
        for throttle in [&log.failures, &log.recoveries] {
            throttle.last.store(u64::MAX / 2, Relaxed);
        }
        log.failed(|suppressed| lines.borrow_mut().push(("failed", suppressed)));
        log.succeeded(|suppressed| lines.borrow_mut().push(("recovered", suppressed)));
        assert_eq!(lines.borrow()[2..], [("failed", Some(4)), ("recovered", Some(4))]);
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
