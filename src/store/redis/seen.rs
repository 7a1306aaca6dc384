//! The keys that exist with an expiry, as far as this process knows: they need not be told it again.
//!
//! Knowing too little costs a command; knowing what is not so would leave a key for ever. So a key is
//! known from the answer on, until its window ends, and all are forgotten when a connection was lost:
//! the server may have come back empty.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{bundle::Expiry, random};
use crate::{
    clock::Time,
    rules::Limit,
    table::{Key, Table},
};

/// Keys that are known at one time, at most: 25 MB of them.
const MAX_KEYS: usize = 1 << 20;

/// A sweep visits this part of the keys at a time.
const SWEEP_PARTS: usize = 16;

/// Known keys.
pub(super) struct Seen {
    /// With each key, the era in which it was seen.
    keys: Table<u64>,
    /// Forgetting begins a new one.
    era: AtomicU64,
    /// `EXPIRATION_JITTER_MAX_SECONDS`.
    jitter: u64,
    swept: AtomicU64,
}

impl Seen {
    pub(super) fn new(jitter: u64) -> Self {
        Self::of(MAX_KEYS, jitter)
    }

    fn of(max_keys: usize, jitter: u64) -> Self {
        Self { keys: Table::new(max_keys), era: AtomicU64::new(1), jitter, swept: AtomicU64::new(0) }
    }

    /// What stands for a key.
    pub(super) fn id(&self, key: &str) -> Key {
        self.keys.key(key)
    }

    /// How long a counter lives, and whether the server is to be told.
    pub(super) fn expiry(&self, id: Key, limit: &Limit, now: Time) -> Expiry {
        let known = self.keys.get(id, now) == Some(self.era.load(Relaxed));
        Expiry { seconds: self.seconds(limit), end: limit.window().end(now), told: !known }
    }

    /// The window's length, and a part of the jitter.
    pub(super) fn seconds(&self, limit: &Limit) -> u32 {
        u32::try_from(limit.window().seconds()).unwrap_or(u32::MAX).saturating_add(self.slack())
    }

    /// A part of the jitter.
    pub(super) fn slack(&self) -> u32 {
        u32::try_from(random::below(self.jitter)).unwrap_or(u32::MAX)
    }

    /// The server has answered that the key exists and expires.
    pub(super) fn learn(&self, id: Key, now: Time, end: Time) {
        let era = self.era.load(Relaxed);
        self.keys.update(id, now, end, |seen| *seen = era);
    }

    /// Nothing is known any more.
    pub(super) fn forget_all(&self) {
        self.era.fetch_add(1, Relaxed);
    }

    /// Gives back what has ended.
    pub(super) fn sweep(&self, now: Time) {
        let part = usize::try_from(self.swept.fetch_add(1, Relaxed)).unwrap_or_default() % SWEEP_PARTS;
        self.keys.sweep(part, SWEEP_PARTS, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Unit;

    #[test]
    fn a_key_is_known_until_its_window_ends_or_all_are_forgotten() {
        let seen = Seen::new(0);
        let limit = Limit::plain(1, Unit::Minute);
        let (id, now) = (seen.id("a"), Time::from_seconds(130));
        let expiry = seen.expiry(id, &limit, now);
        assert_eq!(expiry, Expiry { seconds: 60, end: Time::from_seconds(180), told: true });
        seen.learn(id, now, expiry.end);
        assert!(!seen.expiry(id, &limit, now).told);
        assert!(seen.expiry(id, &limit, expiry.end).told);
        seen.forget_all();
        assert!(seen.expiry(id, &limit, now).told);
    }

    #[test]
    fn more_keys_than_there_is_room_for_are_told_their_expiry_again() {
        let limit = Limit::plain(1, Unit::Second);
        for max_keys in [1, 2, 100, 5000] {
            let seen = Seen::of(max_keys, 0);
            for second in 1..4 {
                let now = Time::from_seconds(second);
                for n in 0..20_000 {
                    let id = seen.id(&n.to_string());
                    let expiry = seen.expiry(id, &limit, now);
                    assert!(expiry.told, "{max_keys}: key {n} is new in this second");
                    seen.learn(id, now, expiry.end);
                    assert!(!seen.expiry(id, &limit, now).told);
                }
                assert!(seen.keys.usage().entries <= max_keys);
            }
        }
    }

    #[test]
    fn expiries_differ_within_the_jitter() {
        let seen = Seen::new(10);
        let limit = Limit::plain(1, Unit::Hour);
        let seconds: std::collections::BTreeSet<_> = (0..500).map(|_| seen.seconds(&limit)).collect();
        assert_eq!(seconds, (3600..3610).collect());
    }
}
