//! What the leases' metrics and the debug page show.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Leases;
use crate::{
    clock::Time,
    store::{LeaseState, LeaseUsage},
};

/// What happened, for metrics.
#[derive(Default)]
pub(in crate::store::lease) struct Counts {
    pub(in crate::store::lease) grants: AtomicU64,
    pub(in crate::store::lease) granted: AtomicU64,
    pub(in crate::store::lease) ungranted: AtomicU64,
    pub(in crate::store::lease) returned: AtomicU64,
    pub(in crate::store::lease) expired: AtomicU64,
    pub(in crate::store::lease) waits: AtomicU64,
    pub(in crate::store::lease) evicted: AtomicU64,
}

impl Leases {
    /// The metrics.
    pub(in crate::store::lease) fn usage(&self) -> LeaseUsage {
        let (mut held, mut hits) = (0_u64, 0_u64);
        for shard in &self.shards {
            let shard = shard.lock();
            hits = hits.wrapping_add(shard.hits);
            held = shard.leases.iter().fold(held, |sum, entry| sum.saturating_add(entry.lease.left()));
        }
        let Counts { grants, granted, ungranted, returned, expired, waits, evicted } = &self.counts;
        LeaseUsage {
            keys: self.len() as u64,
            max_keys: self.max_keys as u64,
            held,
            hits,
            grants: grants.load(Relaxed),
            granted: granted.load(Relaxed),
            ungranted: ungranted.load(Relaxed),
            returned: returned.load(Relaxed),
            expired: expired.load(Relaxed),
            waits: waits.load(Relaxed),
            evicted: evicted.load(Relaxed),
        }
    }

    /// The leases with most hits left, and then those that are hit most: at most so many.
    pub(in crate::store::lease) fn top(&self, count: usize, now: Time) -> Vec<LeaseState> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().leases.iter().map(|entry| LeaseState {
                key: entry.counter.name.clone(),
                limit: entry.counter.limit.requests_per_unit,
                left: entry.lease.left(),
                counter: entry.lease.counter(),
                requests_per_second: entry.lease.requests(&self.terms(&entry.counter.limit), now),
            }));
        }
        all.sort_by(|one, other| {
            other.left.cmp(&one.left).then(other.requests_per_second.total_cmp(&one.requests_per_second))
        });
        all.truncate(count);
        all
    }
}
