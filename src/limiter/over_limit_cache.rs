//! Keys that are known to be over their limit: `LOCAL_CACHE_SIZE_IN_BYTES`.
//!
//! A counter that has gone over its limit stays over it until its window ends, so it need not be asked
//! again. Keys are remembered by their hash, at most as many as the bytes allow, and not beyond the
//! window's end; hits that are given back make their key forgotten.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    clock::Time,
    table::{Table, Usage},
};

/// What a remembered key costs: a slot without a state, in a table that is at most 85 % full.
const BYTES_PER_KEY: usize = 24;

/// Remembers the keys that are over their limit.
pub struct OverLimitCache {
    keys: Table<()>,
    hits: AtomicU64,
    lookups: AtomicU64,
}

/// What the cache tells of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheUsage {
    /// Keys that are remembered, and what became of others.
    pub keys: Usage,
    /// Keys that were asked for.
    pub lookups: u64,
    /// Keys that were asked for and known to be over.
    pub hits: u64,
}

impl OverLimitCache {
    /// A cache of at most about so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let keys = Table::new(bytes / BYTES_PER_KEY);
        Self { keys, hits: AtomicU64::new(0), lookups: AtomicU64::new(0) }
    }

    /// True when the key is known to be over its limit.
    #[must_use]
    pub fn is_over(&self, key: &str, now: Time) -> bool {
        let known = self.keys.get(self.keys.key(key), now).is_some();
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.hits.fetch_add(u64::from(known), Ordering::Relaxed);
        known
    }

    /// Remembers that the key is over its limit until `end`.
    pub fn remember(&self, key: &str, now: Time, end: Time) {
        self.keys.update(self.keys.key(key), now, end, |()| ());
    }

    /// Forgets the key: hits were given back.
    pub fn forget(&self, key: &str, now: Time) {
        self.keys.remove(self.keys.key(key), now);
    }

    /// Gives back what has ended.
    pub fn maintain(&self, now: Time) {
        self.keys.sweep(0, 1, now);
    }

    /// How full the cache is, and how often it was asked.
    #[must_use]
    pub fn usage(&self) -> CacheUsage {
        CacheUsage {
            keys: self.keys.usage(),
            lookups: self.lookups.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_until_the_window_ends_or_hits_come_back() {
        let cache = OverLimitCache::new(100_000);
        let [now, end] = [10, 20].map(Time::from_seconds);
        for key in ["a", "b"] {
            cache.remember(key, now, end);
        }
        cache.forget("b", now);
        assert!(cache.is_over("a", now) && !cache.is_over("b", now) && !cache.is_over("a", end));
        let usage = cache.usage();
        assert_eq!((usage.lookups, usage.hits), (3, 1));
    }

    #[test]
    fn keeps_within_its_bytes() {
        let cache = OverLimitCache::new(1_000_000);
        for n in 0..200_000 {
            cache.remember(&n.to_string(), Time::from_seconds(1), Time::from_seconds(9));
        }
        assert!(cache.usage().keys.bytes <= 1_000_000, "{:?}", cache.usage());
    }
}
