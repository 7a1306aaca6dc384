//! Sliding logs: the time of every admitted hit, so that no window at any position exceeds the limit. Exact, at
//! the cost of eight bytes a hit and up to as many again of unused capacity.
//!
//! The log is kept beside the memory store's table, whose slots hold one number per key. Hits in the same
//! microsecond share an entry, so a log has at most as many entries as its limit has requests. Entries that have
//! left the window are dropped by the next request.

use std::collections::VecDeque;

use super::{Hits, LEEWAY, Verdict, Window, micros_until};
use clock::Time;

/// A number of requests in any window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingLog {
    pub limit: u64,
    pub window: Window,
}

/// The admitted hits, oldest first. An empty log equals an unused one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    entries: VecDeque<Logged>,
    total: u64,
}

/// The hits of one microsecond: 52 bits of time (until 2112) and 12 bits for the number of hits minus one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Logged(u64);

/// A summary of the hits in a log's window; times are microseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogSummary {
    pub total: u64,
    pub newest: Option<u64>,
    /// The time of the last hit that must leave the window before the rejected hits fit; `None` if they never fit.
    pub blocking: Option<u64>,
}

impl SlidingLog {
    pub fn apply(self, log: &mut Log, hits: Hits, now: Time) -> Verdict {
        log.forget_future(now);
        log.forget_past(now, self.window);
        let room = self.limit.checked_sub(hits.taken());
        let admitted = match hits {
            Hits::Take(0) => true,
            Hits::Take(hits) if room.is_some_and(|room| log.total <= room) => {
                log.add(now, hits);
                true
            }
            Hits::Take(_) => false,
            Hits::Refund(hits) => {
                log.refund(hits);
                true
            }
        };
        let blocking = room.filter(|_| !admitted).map(|room| log.total.saturating_sub(room));
        let summary = LogSummary {
            total: log.total,
            newest: log.entries.back().map(|newest| newest.time()),
            blocking: blocking.and_then(|hits| log.newest_of_oldest(hits)),
        };
        self.verdict(summary, admitted, hits, now)
    }

    /// The verdict of a log after these hits were admitted or not.
    pub fn verdict(self, summary: LogSummary, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let leaves_window = |at: u64| micros_until(now, at.saturating_add(self.window.micros()));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            count: summary.total.min(self.limit),
            remaining: self.limit.saturating_sub(summary.total),
            reset: summary.newest.map_or(0, leaves_window),
            retry_after: if admitted { Some(0) } else { summary.blocking.map(leaves_window) },
        }
    }

    /// The time at which the last entry leaves the window; `None` for an empty log.
    pub fn end(self, log: &Log) -> Option<Time> {
        log.entries.back().map(|last| Time::from_micros(last.time().saturating_add(self.window.micros())))
    }
}

impl Log {
    /// The memory that the log occupies, in bytes.
    pub fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Logged>();
        size_of::<Self>() + entries
    }

    /// Moves entries that are further in the future than [`LEEWAY`] to now.
    fn forget_future(&mut self, now: Time) {
        if self.entries.back().is_none_or(|last| last.time() <= now.micros().saturating_add(LEEWAY)) {
            return;
        }
        let mut ahead = 0_u64;
        while let Some(entry) = self.entries.back().filter(|entry| entry.time() > now.micros()) {
            ahead += entry.hits();
            self.entries.pop_back();
        }
        self.total -= ahead;
        self.add(now, ahead);
    }

    fn forget_past(&mut self, now: Time, window: Window) {
        let Some(past) = now.micros().checked_sub(window.micros()) else { return };
        while let Some(entry) = self.entries.front().filter(|entry| entry.time() <= past) {
            self.total -= entry.hits();
            self.entries.pop_front();
        }
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    fn add(&mut self, now: Time, hits: u64) {
        self.total += hits;
        let newest = self.entries.pop_back();
        let at = newest.map_or(0, Logged::time).max(now.micros().min(Logged::MAX_TIME));
        let mut left = hits;
        match newest {
            Some(newest) if newest.time() == at => left += newest.hits(),
            Some(newest) => self.entries.push_back(newest),
            None => {}
        }
        while left > 0 {
            let hits = left.min(Logged::MAX_HITS);
            self.entries.push_back(Logged::new(at, hits));
            left -= hits;
        }
    }

    /// Removes the newest hits first: they were added by the same request, or by a similar one.
    fn refund(&mut self, hits: u64) {
        let mut left = hits.min(self.total);
        self.total -= left;
        while left > 0
            && let Some(newest) = self.entries.pop_back()
        {
            let rest = newest.hits().saturating_sub(left);
            if rest > 0 {
                self.entries.push_back(Logged::new(newest.time(), rest));
            }
            left = left.saturating_sub(newest.hits());
        }
    }

    /// The time of the newest of the `hits` oldest hits.
    fn newest_of_oldest(&self, hits: u64) -> Option<u64> {
        let mut seen = 0_u64;
        let reaches = |entry: &&Logged| {
            seen += entry.hits();
            seen >= hits
        };
        self.entries.iter().find(reaches).map(|entry| entry.time())
    }
}

impl Logged {
    const MAX_HITS: u64 = 1 << 12;
    const MAX_TIME: u64 = (1 << 52) - 1;

    /// `hits` is 1 to [`MAX_HITS`](Self::MAX_HITS), `at` at most [`MAX_TIME`](Self::MAX_TIME).
    const fn new(at: u64, hits: u64) -> Self {
        Self(at << 12 | (hits - 1))
    }

    const fn time(self) -> u64 {
        self.0 >> 12
    }

    const fn hits(self) -> u64 {
        (self.0 % Self::MAX_HITS) + 1
    }
}
