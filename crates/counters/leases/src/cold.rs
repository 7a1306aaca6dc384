//! Keys without a lease: their requests, and the pace of those with several.
//!
//! Most requests on keys without a lease are the first ones in a while. For them [`Visits`] takes one access to a small
//! table, where measuring the pace takes a lock and two buckets of a large one. Keys may share a count: then the pace of a
//! key is measured although its requests are rare, which costs time and changes no decision.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
};

use clock::Time;
use counters::{CounterId, table::Table};
use limit::lease::{Cold, Pace};

/// How long a pace is remembered, in seconds: longer than any lease.
const PACE_SECONDS: u64 = 12;

/// The pace of a key is measured from this number of requests on: fewer than a hot key has in the duration of a lease.
const MEASURED: u32 = 3;

/// The same while there is no room for another lease, so that only a much hotter key may find some.
const MEASURED_WHEN_FULL: u32 = 8;

/// A sweep visits one of this many parts, so that each pause is short.
const SWEEP_PARTS: usize = 16;

pub(super) struct ColdKeys {
    visits: Visits,
    paces: Table<Cold>,
    swept: AtomicUsize,
}

impl ColdKeys {
    /// The paces of at most this many keys.
    pub(super) fn new(max_keys: usize) -> Self {
        Self { visits: Visits::new(max_keys), paces: Table::new(max_keys), swept: AtomicUsize::new(0) }
    }

    /// Adds a request. Returns the pace of the key if it is hot. `is_full` if there is no room for another lease, of this
    /// duration in seconds.
    pub(super) fn visit(
        &self,
        counter: CounterId,
        hits: u64,
        duration: f64,
        is_full: bool,
        now: Time,
    ) -> Option<Pace> {
        if self.visits.add(counter, now) < if is_full { MEASURED_WHEN_FULL } else { MEASURED } {
            return None;
        }
        let end = Time::from_seconds(now.seconds() + PACE_SECONDS);
        self.paces.update(counter, now, end, |cold| cold.visit(hits, now, duration))
    }

    /// Forgets the paces of keys that are no longer hit.
    pub(super) fn sweep(&self, now: Time) {
        let part = self.swept.fetch_add(1, Relaxed) % SWEEP_PARTS;
        self.paces.sweep(part, SWEEP_PARTS, now);
    }
}

/// Requests that are further apart than two of these do not make a key hot: as long as the longest lease.
const PANE_MICROS: u64 = 5_000_000;

/// Requests of the last pane that count, so that a key with few requests in each is seen as one that continues.
const REMEMBERED: u32 = 2;

/// Cells for each key that may have a lease, so that few keys share one.
const CELLS_FOR_A_KEY: usize = 8;

/// 4 MB.
const MAX_CELLS: usize = 1 << 20;

/// The bits of a cell that count requests; the others have the number of the pane.
const COUNT: u32 = 0xff;

/// The last requests of each key, by its hash.
struct Visits {
    /// Created at the first request on a leased limit.
    cells: OnceLock<Box<[AtomicU32]>>,
    wanted: usize,
}

impl Visits {
    fn new(max_keys: usize) -> Self {
        let wanted = max_keys.saturating_mul(CELLS_FOR_A_KEY).clamp(1, MAX_CELLS).next_power_of_two();
        Self { cells: OnceLock::new(), wanted }
    }

    /// Adds a request on a key. Returns the number of its requests in this pane, and up to two of the last one.
    fn add(&self, counter: CounterId, now: Time) -> u32 {
        let cells = self.cells.get_or_init(|| (0..self.wanted).map(|_| AtomicU32::new(0)).collect());
        // The number of cells is a power of two.
        let at = usize::try_from(counter.hash()).unwrap_or(usize::MAX) & (cells.len() - 1);
        let Some(cell) = cells.get(at) else { return 0 };
        let pane = u32::try_from((now.micros() / PANE_MICROS) & u64::from(u32::MAX >> 8)).unwrap_or_default();
        let before = cell.load(Relaxed);
        let last = before >> 8;
        let count = before & COUNT;
        let count = match pane.wrapping_sub(last) {
            0 => (count + 1).min(COUNT),
            1 => count.min(REMEMBERED) + 1,
            _ => 1,
        };
        // Another thread may have added a request in between, which is lost: the count is an estimate.
        cell.store(pane << 8 | count, Relaxed);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn counts_the_requests_of_a_pane_and_two_of_the_last() {
        let visits = Visits::new(1000);
        let (one, other) = (CounterId::of_name("one"), CounterId::of_name("other"));
        let add = |key, seconds| visits.add(key, Time::from_seconds(seconds));
        assert_eq!([1000, 1000, 1004].map(|second| add(one, second)), [1, 2, 3]);
        assert_eq!(add(other, 1004), 1);
        assert_eq!([1005, 1009].map(|second| add(one, second)), [3, 4], "after a pane with requests");
        assert_eq!(
            [1015, 1014].map(|second| add(one, second)),
            [1, 1],
            "after one without; the clock was set back"
        );
        assert!((0..1000).map(|_| add(one, 1020)).all(|count| count <= COUNT));
    }

    #[test]
    fn few_keys_share_a_cell() {
        let visits = Visits::new(100_000);
        let shared = (0..100_000)
            .filter(|n| visits.add(CounterId::of_name(&n.to_string()), Time::from_seconds(7)) > 1)
            .count();
        assert!(shared < 10_000, "{shared}");
    }
}
