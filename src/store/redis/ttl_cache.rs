//! The keys that exist with an expiry, as far as this process knows: they need not be told it again.
//!
//! Knowing too little costs a command; knowing what is not so would leave a key for ever. So a key is
//! known from the answer on, until its window ends, and all are forgotten when a connection was lost:
//! the server may have come back empty.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{
    pipeline::{Expire, Expiry},
    random,
};
use crate::{
    clock::Time,
    rules::{Limit, Unit},
    store::table::{Key, Table},
};

/// Keys that are known at one time, at most: 25 MB of them.
const MAX_KEYS: usize = 1 << 20;

/// A sweep visits this part of the keys at a time.
const SWEEP_PARTS: usize = 16;

/// Known keys.
pub(super) struct TtlCache {
    /// With each key, the era in which it was seen, and the second until which it lives at least.
    keys: Table<u64>,
    /// Forgetting begins a new one.
    era: AtomicU64,
    /// `EXPIRATION_JITTER_MAX_SECONDS`.
    jitter: u64,
    swept: AtomicU64,
}

impl TtlCache {
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

    /// How long a counter lives, and whether the server has to set that.
    pub(super) fn expiry(&self, id: Key, limit: &Limit, now: Time) -> Expiry {
        let end = limit.window().end(now);
        let known = self.keys.get(id, now).is_some_and(|seen| self.lasts(seen, end));
        let set = match known {
            true => Expire::Known,
            false if Self::may_be_shared(limit, now) => Expire::Extend,
            false => Expire::Set,
        };
        Expiry { seconds: self.seconds(limit), end, set }
    }

    /// What stands for a key, and when its window ends, where the key may live shorter: another window may have begun
    /// at the same moment and made it. A tag keeps others apart.
    pub(super) fn unsure(&self, key: &str, limit: &Limit, now: Time) -> Option<(Key, Time)> {
        if !limit.tag.is_empty() {
            return None;
        }
        let (id, end) = (self.id(key), limit.window().end(now));
        let known = self.keys.get(id, now).is_some_and(|seen| self.lasts(seen, end));
        (!known).then_some((id, end))
    }

    /// True for a key that was seen in this era and lives until `end`.
    fn lasts(&self, seen: u64, end: Time) -> bool {
        seen >> 32 == self.era() && seen & u64::from(u32::MAX) >= end.seconds()
    }

    /// So many eras come and go in no service's life.
    fn era(&self) -> u64 {
        self.era.load(Relaxed) & u64::from(u32::MAX)
    }

    /// The window's length, and a part of the jitter.
    pub(super) fn seconds(&self, limit: &Limit) -> u32 {
        u32::try_from(limit.window().seconds()).unwrap_or(u32::MAX).saturating_add(self.slack())
    }

    /// True when a longer window may have begun at the same moment. Under the names of the Go service both have one
    /// counter then; a tag keeps others apart.
    fn may_be_shared(limit: &Limit, now: Time) -> bool {
        let start = limit.window().start(now).seconds();
        let begins_too =
            |unit: &Unit| unit.seconds() > limit.unit.seconds() && start.is_multiple_of(unit.seconds());
        limit.tag.is_empty() && Unit::ALL.iter().any(begins_too)
    }

    /// A part of the jitter.
    pub(super) fn slack(&self) -> u32 {
        u32::try_from(random::below(self.jitter)).unwrap_or(u32::MAX)
    }

    /// The server has answered that the key exists and expires.
    pub(super) fn learn(&self, id: Key, now: Time, end: Time) {
        // A second of 32 bits, until 2106.
        let seen = self.era() << 32 | end.seconds() & u64::from(u32::MAX);
        self.keys.update(id, now, end, |known| *known = seen);
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

    #[test]
    fn a_key_is_known_until_its_window_ends_or_all_are_forgotten() {
        let seen = TtlCache::new(0);
        let limit = Limit::plain(1, Unit::Minute);
        let (id, now) = (seen.id("a"), Time::from_seconds(130));
        let expiry = seen.expiry(id, &limit, now);
        assert_eq!(expiry, Expiry { seconds: 60, end: Time::from_seconds(180), set: Expire::Set });
        seen.learn(id, now, expiry.end);
        assert_eq!(seen.expiry(id, &limit, now).set, Expire::Known);
        assert_eq!(seen.expiry(id, &limit, expiry.end).set, Expire::Set);
        seen.forget_all();
        assert_eq!(seen.expiry(id, &limit, now).set, Expire::Set);
    }

    #[test]
    fn a_key_that_ends_too_soon_for_a_longer_window_is_not_known() {
        let seen = TtlCache::new(0);
        let (minute, hour) = (Limit::plain(1, Unit::Minute), Limit::plain(1, Unit::Hour));
        let (id, now) = (seen.id("a"), Time::from_seconds(7 * 3600));
        let set = |limit| seen.expiry(id, limit, now).set;
        assert_eq!(
            [set(&minute), set(&hour)],
            [Expire::Extend, Expire::Set],
            "the hour begins as the minute does"
        );
        seen.learn(id, now, minute.window().end(now));
        assert_eq!([set(&minute), set(&hour)], [Expire::Known, Expire::Set]);
        seen.learn(id, now, hour.window().end(now));
        assert_eq!([set(&minute), set(&hour)], [Expire::Known, Expire::Known]);
    }

    #[test]
    fn windows_share_a_key_only_where_a_longer_one_begins_with_them() {
        let day = 86_400;
        for (unit, second, expected) in [
            (Unit::Second, 60, true),
            (Unit::Second, 61, false),
            (Unit::Minute, 3600 + 59, true),
            (Unit::Minute, 3660, false),
            (Unit::Hour, day, true),
            (Unit::Hour, 2 * day + 3600, false),
            (Unit::Day, 7 * day, true),
            (Unit::Day, 8 * day, false),
            (Unit::Day, 30 * day, true),
            (Unit::Year, 365 * day, false),
        ] {
            let shared = TtlCache::may_be_shared(&Limit::plain(1, unit), Time::from_seconds(second));
            assert_eq!(shared, expected, "{unit} {second}");
        }
        let tagged = Limit::plain(1, Unit::Minute).tagged();
        assert!(!TtlCache::may_be_shared(&tagged, Time::from_seconds(3600)), "its key says how long it is");
    }

    #[test]
    fn more_keys_than_there_is_room_for_are_told_their_expiry_again() {
        let limit = Limit::plain(1, Unit::Second);
        for max_keys in [1, 2, 100, 5000] {
            let seen = TtlCache::of(max_keys, 0);
            for second in 1..4 {
                let now = Time::from_seconds(second);
                for n in 0..20_000 {
                    let id = seen.id(&n.to_string());
                    let expiry = seen.expiry(id, &limit, now);
                    assert_eq!(expiry.set, Expire::Set, "{max_keys}: key {n} is new in this second");
                    seen.learn(id, now, expiry.end);
                    assert_eq!(seen.expiry(id, &limit, now).set, Expire::Known);
                }
                assert!(seen.keys.usage().entries <= max_keys);
            }
        }
    }

    #[test]
    fn expiries_differ_within_the_jitter() {
        let seen = TtlCache::new(10);
        let limit = Limit::plain(1, Unit::Hour);
        let seconds: std::collections::BTreeSet<_> = (0..500).map(|_| seen.seconds(&limit)).collect();
        assert_eq!(seconds, (3600..3610).collect());
    }
}
