//! A cache of keys that have an expiry, so that it need not be set again.
//!
//! A missing entry costs one command; a wrong one would leave a key without expiry. So a key is added when the server has
//! confirmed its expiry, until its window ends, and all keys are removed when a connection was lost, because the server
//! may have restarted without data.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::pipeline::{Expire, Expiry};
use clock::{Time, timer::Random};
use counters::{CounterId, table::Table};
use limit::Rate;

/// Maximum number of keys: 25 MB.
const MAX_KEYS: usize = 1 << 20;

const SWEEP_PARTS: usize = 16;

pub(super) struct TtlCache {
    /// For each key the generation of its entry, and the second before which it does not expire.
    keys: Table<u64>,
    /// Entries of earlier generations are invalid.
    generation: AtomicU64,
    jitter: u64,
    random: Arc<dyn Random>,
    swept: AtomicUsize,
}

impl TtlCache {
    pub(super) fn new(jitter: u64, random: Arc<dyn Random>) -> Self {
        Self::of(MAX_KEYS, jitter, random)
    }

    fn of(max_keys: usize, jitter: u64, random: Arc<dyn Random>) -> Self {
        Self {
            keys: Table::new(max_keys),
            generation: AtomicU64::new(1),
            jitter,
            random,
            swept: AtomicUsize::new(0),
        }
    }

    /// A counter's expiry, and whether the server has to set it.
    pub(super) fn expiry(&self, id: CounterId, limit: &Rate, now: Time) -> Expiry {
        let end = limit.period().end(now);
        let set = if self.is_known(id, end, now) { Expire::Known } else { Expire::Set };
        Expiry { seconds: self.seconds(limit, now), end, set }
    }

    /// The hash of a key and the end of its window, if the key may expire earlier: a shorter window may have begun at the
    /// same time and created it. Limits with a tag share no keys.
    pub(super) fn uncached(&self, key: &str, limit: &Rate, now: Time) -> Option<(CounterId, Time)> {
        if limit.is_tagged {
            return None;
        }
        let id = CounterId::of_name(key);
        let end = limit.period().end(now);
        (!self.is_known(id, end, now)).then_some((id, end))
    }

    /// True if an entry of this generation expires at `end` or later.
    fn is_known(&self, id: CounterId, end: Time, now: Time) -> bool {
        self.keys.get(id, now).is_some_and(|seen| {
            seen >> 32 == self.generation() && seen & u64::from(u32::MAX) >= end.seconds()
        })
    }

    /// 32 bits, which a process never exhausts.
    fn generation(&self) -> u64 {
        self.generation.load(Relaxed) & u64::from(u32::MAX)
    }

    /// How long a counter that is created now is kept, with random jitter.
    #[expect(clippy::expect_used, reason = "a window has at most ten years, and the jitter a century")]
    pub(super) fn seconds(&self, limit: &Rate, now: Time) -> u32 {
        let more = u64::from(limit.ahead) + u64::from(self.jitter());
        let seconds = limit.period().seconds_kept(now) + more;
        u32::try_from(seconds).expect("ten years and a century are less than 2³² seconds")
    }

    #[expect(clippy::expect_used, reason = "the jitter is at most a century")]
    pub(super) fn jitter(&self) -> u32 {
        u32::try_from(self.random.below(self.jitter.max(1))).expect("a century is less than 2³² seconds")
    }

    /// Adds a key whose expiry the server has confirmed.
    pub(super) fn learn(&self, id: CounterId, now: Time, end: Time) {
        // A second fits in 32 bits until 2106.
        let seen = self.generation() << 32 | end.seconds() & u64::from(u32::MAX);
        self.keys.update(id, now, end, |known| *known = seen);
    }

    pub(super) fn clear(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    pub(super) fn sweep(&self, now: Time) {
        let part = self.swept.fetch_add(1, Relaxed) % SWEEP_PARTS;
        self.keys.sweep(part, SWEEP_PARTS, now);
    }
}

#[cfg(test)]
mod tests {
    use net::edges::Edges;

    use super::*;
    use limit::{Limit, Unit};

    fn cache(jitter: u64) -> TtlCache {
        TtlCache::new(jitter, Edges::system().random)
    }

    #[test]
    fn a_key_is_known_until_its_window_ends_or_the_cache_is_cleared() {
        let seen = cache(0);
        let limit = Limit::plain(1, Unit::Minute);
        let (id, now) = (CounterId::of_name("a"), Time::from_seconds(130));
        let expiry = seen.expiry(id, &limit, now);
        assert_eq!(expiry, Expiry { seconds: 60, end: Time::from_seconds(180), set: Expire::Set });
        seen.learn(id, now, expiry.end);
        assert_eq!(seen.expiry(id, &limit, now).set, Expire::Known);
        assert_eq!(seen.expiry(id, &limit, expiry.end).set, Expire::Set);
        seen.clear();
        assert_eq!(seen.expiry(id, &limit, now).set, Expire::Set);
    }

    #[test]
    fn a_key_that_expires_before_a_longer_window_is_not_known() {
        let seen = cache(0);
        let (minute, hour) = (Limit::plain(1, Unit::Minute), Limit::plain(1, Unit::Hour));
        let (id, now) = (CounterId::of_name("a"), Time::from_seconds(7 * 3600));
        let set = |limit| seen.expiry(id, limit, now).set;
        assert_eq!(
            [set(&minute), set(&hour)],
            [Expire::Set, Expire::Set],
            "the hour begins as the minute does"
        );
        seen.learn(id, now, minute.period().end(now));
        assert_eq!([set(&minute), set(&hour)], [Expire::Known, Expire::Set]);
        seen.learn(id, now, hour.period().end(now));
        assert_eq!([set(&minute), set(&hour)], [Expire::Known, Expire::Known]);
    }

    #[test]
    fn keys_beyond_the_maximum_have_their_expiry_set_again() {
        let limit = Limit::plain(1, Unit::Second);
        for max_keys in [1, 2, 100, 5000] {
            let seen = TtlCache::of(max_keys, 0, Edges::system().random);
            for second in 1..4 {
                let now = Time::from_seconds(second);
                for n in 0..20_000 {
                    let id = CounterId::of_name(&n.to_string());
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
        let seen = cache(10);
        let limit = Limit::plain(1, Unit::Hour);
        let seconds: std::collections::BTreeSet<_> =
            (0..500).map(|_| seen.seconds(&limit, Time::default())).collect();
        assert_eq!(seconds, (3600..3610).collect());
    }
}
