//! At most one log line in a while from many threads, with a count of those left out.
//!
//! For lines that callers cause, so that callers cannot fill the log. The time is an argument, as everywhere.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Time;

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
        let (last, seconds) = (self.last.load(Relaxed), now.seconds().max(1));
        let is_due = last == 0 || seconds.abs_diff(last) >= self.seconds;
        if is_due && self.last.compare_exchange(last, seconds, Relaxed, Relaxed).is_ok() {
            return Some(self.suppressed.swap(0, Relaxed));
        }
        self.suppressed.fetch_add(1, Relaxed);
        None
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
