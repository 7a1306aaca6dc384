//! What an Envoy was assigned: requests that are paid for.

use std::time::Duration;

use limiter::QuotaLimit;

use crate::demand::{Demand, part};

/// How long a message may be on the way. A report that comes sooner after a grant may have been sent before it arrived.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// Envoys report every five seconds. A report that comes later was held up, and grants may have been too.
const PUNCTUAL: Duration = Duration::from_millis(6_500);

/// A token bucket that begins with these requests and gains none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) requests: u64,
    /// The most that can be left of it.
    most: u64,
    at: Duration,
    /// What was probably left at a time.
    left: u64,
    left_at: Duration,
}

impl Grant {
    pub(crate) fn new(requests: u64, now: Duration) -> Self {
        Self { requests, most: requests, at: now, left: requests, left_at: now }
    }

    /// Takes a report; `last` is the time of the one before. Returns the most that can be left if all that was used of
    /// earlier grants has been reported.
    pub(crate) fn report(&mut self, allowed: u64, last: Duration, now: Duration) -> Option<u64> {
        let is_later = |then: Duration| then.saturating_sub(self.at) > ON_THE_WAY;
        if is_later(last) {
            // All of it was used of this grant.
            self.most = self.most.saturating_sub(allowed);
        }
        let since = now.saturating_sub(self.at.max(last));
        let of = now.saturating_sub(last);
        let used = u128::from(allowed) * since.as_micros() / of.as_micros().max(1);
        self.left = self.left.saturating_sub(u64::try_from(used).unwrap_or(u64::MAX));
        self.left_at = now;
        (is_later(now) && now.saturating_sub(last) < PUNCTUAL).then_some(self.most)
    }

    /// What is probably left. Before the first sample of its demand, an Envoy may use all of the limit.
    pub(crate) fn left(&self, demand: &Demand, limit: QuotaLimit, now: Duration) -> u64 {
        let time = now.saturating_sub(self.left_at);
        let all = || part(limit.requests, time, Duration::from_secs(limit.seconds));
        self.left.saturating_sub(demand.rate(time).unwrap_or_else(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_may_have_been_sent_before_a_grant_says_nothing_of_it() {
        let time = Duration::from_millis;
        let mut grant = Grant::new(100, time(10_000));
        assert_eq!(grant.report(30, time(5_500), time(10_500)), None);
        assert_eq!(
            grant.report(40, time(10_500), time(15_500)),
            Some(100),
            "it may be used of an earlier one"
        );
        assert_eq!(grant.report(20, time(15_500), time(20_500)), Some(80));
    }
}
