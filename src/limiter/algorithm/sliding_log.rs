//! Sliding logs: when each hit was admitted, so that no window, wherever it is laid, ever holds more than
//! the limit. Exact, at the price of eight bytes a hit, and of as many again to grow into.
//!
//! The log stands beside the table, which has room for one number a key. Hits of one microsecond are one
//! entry, so a log has at most as many entries as its limit has requests; those that have left the window
//! are dropped by the next one who asks.

use std::collections::VecDeque;

use super::{Hits, LEEWAY, Verdict, Window, micros_until};
use crate::clock::Time;

/// So many requests in any window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingLog {
    /// How many are admitted.
    pub limit: u32,
    /// In what time.
    pub window: Window,
}

/// The hits that were admitted, from old to new. A log that is empty is as one that was never begun.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    total: u64,
}

/// Hits of one microsecond, in one number: 52 bits tell when (until 2112), 12 how many beyond the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry(u64);

/// What a log tells of the hits in its window; times in microseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// How many there are.
    pub total: u64,
    /// When the newest was taken.
    pub newest: Option<u64>,
    /// When the last of those was taken that have to leave before the hits that were refused fit; none
    /// where they never do.
    pub in_the_way: Option<u64>,
}

impl SlidingLog {
    /// Notes these hits if they are admitted.
    pub fn ask(self, log: &mut Log, hits: Hits, now: Time) -> Verdict {
        log.forget_future(now);
        log.forget_past(now, self.window);
        let room = u64::from(self.limit).checked_sub(hits.taken());
        let admitted = match hits {
            Hits::Take(0) | Hits::Refund(_) => true,
            Hits::Take(_) => room.is_some_and(|room| log.total <= room),
        };
        match hits {
            Hits::Take(0) => {}
            Hits::Take(hits) if admitted => log.note(now, hits),
            Hits::Take(_) => {}
            Hits::Refund(hits) => log.refund(hits),
        }
        let in_the_way = room.filter(|_| !admitted).map(|room| log.total.saturating_sub(room));
        let told = Told {
            total: log.total,
            newest: log.entries.back().map(|newest| newest.at()),
            in_the_way: in_the_way.and_then(|hits| log.newest_of_oldest(hits)),
        };
        self.verdict(told, admitted, hits, now)
    }

    /// What a log says after these hits were admitted or not.
    #[must_use]
    pub fn verdict(self, told: Told, admitted: bool, hits: Hits, now: Time) -> Verdict {
        let leaves = |at: u64| micros_until(now, at.saturating_add(self.window.micros()));
        Verdict {
            admitted,
            consumed: admitted && hits.taken() > 0,
            remaining: u32::try_from(u64::from(self.limit).saturating_sub(told.total)).unwrap_or(self.limit),
            reset: told.newest.map_or(0, leaves),
            retry_after: if admitted { Some(0) } else { told.in_the_way.map(leaves) },
        }
    }

    /// The moment from which on the log says nothing any more; none where it is empty.
    #[must_use]
    pub fn end(self, log: &Log) -> Option<Time> {
        log.entries.back().map(|last| Time::from_micros(last.at().saturating_add(self.window.micros())))
    }
}

impl Log {
    /// What the log occupies, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let entries = self.entries.capacity().saturating_mul(size_of::<Entry>());
        size_of::<Self>().saturating_add(entries)
    }

    /// Entries that lie further ahead than time may stand still are as if they were of now.
    fn forget_future(&mut self, now: Time) {
        if self.entries.back().is_none_or(|last| last.at() <= now.micros().saturating_add(LEEWAY)) {
            return;
        }
        let mut ahead = 0_u64;
        while let Some(entry) = self.entries.back().filter(|entry| entry.at() > now.micros()) {
            ahead = ahead.saturating_add(entry.hits());
            self.entries.pop_back();
        }
        self.total = self.total.saturating_sub(ahead);
        self.note(now, ahead);
    }

    fn forget_past(&mut self, now: Time, window: Window) {
        let Some(past) = now.micros().checked_sub(window.micros()) else { return };
        while let Some(entry) = self.entries.front().filter(|entry| entry.at() <= past) {
            self.total = self.total.saturating_sub(entry.hits());
            self.entries.pop_front();
        }
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len().saturating_mul(2));
        }
    }

    fn note(&mut self, now: Time, hits: u64) {
        self.total = self.total.saturating_add(hits);
        let newest = self.entries.pop_back();
        let at = newest.map_or(0, Entry::at).max(now.micros().min(Entry::LATEST));
        let mut left = hits;
        match newest {
            Some(newest) if newest.at() == at => left = left.saturating_add(newest.hits()),
            Some(newest) => self.entries.push_back(newest),
            None => {}
        }
        while left > 0 {
            let hits = left.min(Entry::MOST);
            self.entries.push_back(Entry::new(at, hits));
            left = left.saturating_sub(hits);
        }
    }

    /// The newest are given back first: they were taken by the same request, or by one like it.
    fn refund(&mut self, hits: u64) {
        let mut left = hits.min(self.total);
        self.total = self.total.saturating_sub(left);
        while left > 0
            && let Some(newest) = self.entries.pop_back()
        {
            let kept = newest.hits().saturating_sub(left);
            if kept > 0 {
                self.entries.push_back(Entry::new(newest.at(), kept));
            }
            left = left.saturating_sub(newest.hits());
        }
    }

    /// When the newest of the `hits` oldest was taken.
    fn newest_of_oldest(&self, hits: u64) -> Option<u64> {
        let mut seen = 0_u64;
        let reaches = |entry: &&Entry| {
            seen = seen.saturating_add(entry.hits());
            seen >= hits
        };
        self.entries.iter().find(reaches).map(|entry| entry.at())
    }
}

impl Entry {
    const MOST: u64 = 1 << 12;
    const LATEST: u64 = (1 << 52) - 1;

    /// `hits` are 1 to [`MOST`](Self::MOST), `at` is at most [`LATEST`](Self::LATEST).
    const fn new(at: u64, hits: u64) -> Self {
        Self(at << 12 | hits.saturating_sub(1))
    }

    const fn at(self) -> u64 {
        self.0 >> 12
    }

    const fn hits(self) -> u64 {
        (self.0 % Self::MOST).saturating_add(1)
    }
}
