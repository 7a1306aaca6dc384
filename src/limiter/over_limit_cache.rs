//! Keys that are known to be over their limit: `LOCAL_CACHE_SIZE_IN_BYTES`.
//!
//! A counter that has gone over its limit stays over it until its window ends, and an algorithm that has
//! refused hits refuses as many until the moment it named, so neither need be asked again. What is remembered
//! holds for that limit: one that allows more, which a request brings or a reload makes, is held against the
//! counter itself. Full keys are remembered by their hash, at most as many as the bytes allow, and not beyond
//! that moment; hits that are given back make their key forgotten.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    clock::Time,
    limiter::algorithm::{Algorithm, Hits, Verdict},
    rules::Limit,
    store::{
        Check, Outcome,
        table::{Table, Usage},
    },
};

/// Remembers the keys that are over their limit.
pub struct OverLimitCache {
    keys: Table<Refused>,
    hits: AtomicU64,
    lookups: AtomicU64,
}

/// What was refused, and until when it will be.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
struct Refused {
    /// From this microsecond on the key is to be asked again.
    until: u64,
    /// The second in which it was refused.
    since: u32,
    /// The second at which the limit is whole again.
    whole: u32,
    /// So many hits are refused, and more.
    hits: u32,
    /// By a limit of so many at once.
    limit: u32,
    remaining: u32,
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
        let keys = Table::new(bytes / Table::<Refused>::BYTES_PER_ENTRY);
        Self { keys, hits: AtomicU64::new(0), lookups: AtomicU64::new(0) }
    }

    /// What is known of a key whose counter refuses these hits by this limit. Hits that are given back make it
    /// forgotten.
    #[must_use]
    pub fn recall(&self, key: &str, limit: &Limit, hits: Hits, now: Time) -> Option<Verdict> {
        let key = self.keys.key(key);
        let Hits::Take(hits) = hits else {
            self.keys.remove(key, now);
            return None;
        };
        let known = self.keys.get(key, now);
        let holds = |known: &Refused| known.holds_for(limit, hits) && known.holds_at(now);
        let refused = known.filter(holds);
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.hits.fetch_add(u64::from(refused.is_some()), Ordering::Relaxed);
        refused.map(|refused| refused.verdict(now))
    }

    /// Remembers what a check that is over its limit says, as long as it will say so.
    pub fn remember(&self, key: &str, check: &Check<'_>, now: Time) {
        let Some(refused) = Refused::by(check, now) else { return };
        let end = Time::from_micros({ refused.until }.saturating_add(999_999));
        self.keys.update(self.keys.key(key), now, end, |known| *known = refused);
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

impl Refused {
    fn by(check: &Check<'_>, now: Time) -> Option<Self> {
        let since = u32::try_from(now.seconds()).unwrap_or(u32::MAX);
        let limit = check.limit.algorithm.whole();
        match check.outcome {
            // Whatever is asked of a window that is over, it is refused.
            Outcome::Counted(_) => {
                let until = check.limit.window().end(now).micros();
                Some(Self { until, since, whole: seconds(until), hits: 0, limit, remaining: 0 })
            }
            // As many do not fit before the window ends; fewer may.
            Outcome::Refused(count) => {
                let end = check.limit.window().end(now).micros();
                let left = u64::from(check.limit.requests_per_unit).saturating_sub(count);
                Some(Self {
                    until: end,
                    since,
                    whole: seconds(end),
                    hits: u32::try_from(check.hits.taken()).ok()?,
                    limit,
                    remaining: u32::try_from(left).unwrap_or(u32::MAX),
                })
            }
            Outcome::Judged(verdict) => {
                let wait = verdict.retry_after.filter(|wait| *wait > 0)?;
                Some(Self {
                    until: now.micros().saturating_add(wait),
                    since,
                    whole: seconds(now.micros().saturating_add(verdict.reset)),
                    // What fits some day has 32 bits.
                    hits: u32::try_from(check.hits.taken()).ok()?,
                    limit,
                    remaining: verdict.remaining,
                })
            }
        }
    }

    /// A count that is over a limit is over every smaller one; what another algorithm keeps says nothing of
    /// another limit.
    fn holds_for(self, limit: &Limit, hits: u64) -> bool {
        let by = limit.algorithm.whole();
        let is_count = matches!(limit.algorithm, Algorithm::FixedWindow(_));
        hits >= u64::from(self.hits) && if is_count { by <= self.limit } else { by == self.limit }
    }

    /// Not before it was refused: then the clock has been set back, and nobody is to wait until it has
    /// caught up. Threads that read it one after another may differ by a second.
    fn holds_at(self, now: Time) -> bool {
        now.micros() < self.until && u64::from(self.since) <= now.seconds().saturating_add(1)
    }

    fn verdict(self, now: Time) -> Verdict {
        let whole = Time::from_seconds(self.whole.into());
        Verdict {
            admitted: false,
            consumed: false,
            remaining: self.remaining,
            reset: whole.micros().saturating_sub(now.micros()),
            retry_after: Some(self.until.saturating_sub(now.micros())),
        }
    }
}

/// The first whole second from a microsecond on.
fn seconds(micros: u64) -> u32 {
    u32::try_from(micros.div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        limiter::algorithm::{Kind, Window},
        rules::{Limit, Unit},
        store::Batch,
    };

    /// A cache that remembers of some keys what such a check with these hits has said at this second.
    fn remembering(keys: &[&str], limit: &Limit, hits: u64, outcome: Outcome) -> OverLimitCache {
        let cache = OverLimitCache::new(100_000);
        let mut batch = Batch::default();
        batch.push(0, limit, Hits::Take(hits));
        batch.set(0, outcome);
        for key in keys {
            cache.remember(key, &batch.checks()[0], Time::from_seconds(610));
        }
        cache
    }

    #[test]
    fn a_window_is_over_until_it_ends_or_hits_come_back() {
        let limit = Limit::plain(5, Unit::Minute);
        let cache = remembering(&["a", "b"], &limit, 3, Outcome::Counted(7));
        let wait = |key, hits, second| {
            cache.recall(key, &limit, hits, Time::from_seconds(second)).map(|verdict| verdict.retry_after)
        };
        assert_eq!(wait("b", Hits::Refund(1), 610), None);
        assert_eq!(wait("b", Hits::Take(1), 610), None);
        assert_eq!(wait("a", Hits::Take(0), 615), Some(Some(45_000_000)));
        assert_eq!(wait("a", Hits::Take(9), 660), None);
        let usage = cache.usage();
        assert_eq!((usage.lookups, usage.hits), (3, 1));
    }

    #[test]
    fn as_many_hits_are_refused_until_the_moment_that_was_named() {
        let limit = Limit::new(5, Unit::Minute, 1.try_into().unwrap(), Kind::SlidingLog, None).unwrap();
        let refused = Verdict {
            admitted: false,
            consumed: false,
            remaining: 2,
            reset: 50_300_000,
            retry_after: Some(1_500_000),
        };
        let cache = remembering(&["a"], &limit, 3, Outcome::Judged(refused));
        let recall = |hits, micros| cache.recall("a", &limit, Hits::Take(hits), Time::from_micros(micros));
        assert_eq!(recall(2, 610_000_000), None, "fewer may fit");
        let later = Verdict { reset: 50_100_000, remaining: 2, retry_after: Some(600_000), ..refused };
        assert_eq!(recall(4, 610_900_000), Some(later), "told in whole seconds");
        assert_eq!(recall(3, 611_499_999).and_then(|verdict| verdict.retry_after), Some(1));
        assert_eq!(recall(3, 611_500_000), None);
        assert!(recall(3, 609_000_000).is_some());
        assert_eq!(recall(3, 608_999_999), None, "the clock was set back");
    }

    #[test]
    fn what_never_fits_is_not_remembered() {
        let limit = Limit::plain(5, Unit::Minute);
        let verdict = Kind::TokenBucket.at(5, Window::from(Unit::Minute), None).supposed(
            true,
            Hits::Take(6),
            Time::from_seconds(610),
        );
        let cache = remembering(&["a"], &limit, 6, Outcome::Judged(verdict));
        assert_eq!(cache.usage().keys.entries, 0);
    }

    #[test]
    fn a_limit_that_allows_more_is_held_against_the_counter_itself() {
        let [five, ten] = [5, 10].map(|requests| Limit::plain(requests, Unit::Minute));
        let now = Time::from_seconds(615);
        let over_ten = remembering(&["a"], &ten, 1, Outcome::Counted(11));
        assert!(over_ten.recall("a", &ten, Hits::Take(1), now).is_some());
        assert!(over_ten.recall("a", &five, Hits::Take(1), now).is_some(), "it is over the smaller one too");
        let over_five = remembering(&["a"], &five, 1, Outcome::Counted(6));
        assert_eq!(over_five.recall("a", &ten, Hits::Take(1), now), None);
        assert_eq!(over_five.recall("a", &ten, Hits::Refund(1), now), None);
        assert_eq!(over_five.recall("a", &five, Hits::Take(1), now), None, "whoever gives back is heard");
    }

    #[test]
    fn keeps_within_its_bytes_whatever_they_are() {
        let limit = Limit::plain(0, Unit::Second);
        let mut batch = Batch::default();
        batch.push(0, &limit, Hits::Take(1));
        for bytes in [1, 43, 44, 45, 87, 88, 1000, 65_536, 1_000_000] {
            let cache = OverLimitCache::new(bytes);
            for second in 1..4 {
                let now = Time::from_seconds(second);
                for n in 0..20_000 {
                    cache.remember(&n.to_string(), &batch.checks()[0], now);
                    assert!(cache.recall(&n.to_string(), &limit, Hits::Take(1), now).is_some());
                }
                // One key is remembered however little there is.
                assert!(cache.usage().keys.bytes <= bytes.max(44), "{bytes}: {:?}", cache.usage());
            }
        }
    }
}
