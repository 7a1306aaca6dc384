//! The cache of keys that are over their limit: `LOCAL_CACHE_SIZE_IN_BYTES`.
//!
//! It remembers what a store has found about a counter, and answers a check if the answer follows from that. The count of
//! a fixed window never falls before the window ends, so it rejects whatever does not fit beside it. Leased hits may come
//! back to a counter, so one of a leased limit is read again as soon as leases do so. Of any other algorithm only the
//! rejected number of hits is known, and the time until which as many are rejected. Keys are stored as hashes, as many as
//! the size allows; a refund removes its key, and so does a reset of its counter. Replicas that share a store tell each
//! other of both.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use clock::Time;
use counters::{
    Check, CounterId, Member, Resets,
    table::{Kept, Mark, Table, Used},
};
use limit::{Algorithm, FixedWindow, Hits, Verdict, lease::over_for};
use metrics::TableUsage as Usage;

pub struct OverLimitCache {
    keys: Table<Rejection>,
    /// The microsecond of the last reset or refund, by a part of the key's hash: one key in so many waits for another's.
    forgotten: Box<[AtomicU64]>,
    hits: AtomicU64,
    lookups: AtomicU64,
    /// The number of the rules in force: what was known under others is not found.
    rules: AtomicU32,
    /// A generation: keys of earlier ones are not found.
    resets: AtomicU32,
}

const FORGOTTEN: usize = 1024;

/// The maximum duration of a request in microseconds.
const LONGEST_REQUEST: u64 = 60_000_000;

#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
struct Rejection {
    /// The microsecond at which it expires.
    until: u64,
    since: u32,
    /// The second at which the full limit is available.
    reset: u32,
    /// The rejected hits.
    hits: u32,
    /// What was left then, except of a fixed window.
    remaining: u32,
    /// The count of a fixed window; of another algorithm the capacity of the limit that rejected the hits.
    number: u64,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Lookups {
    pub(super) all: usize,
    pub(super) found: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheUsage {
    pub keys: Usage,
    pub lookups: u64,
    /// Lookups that found a rejection.
    pub hits: u64,
}

impl OverLimitCache {
    /// A cache of at most about this many bytes.
    pub fn new(bytes: usize) -> Self {
        let keys = Table::new(bytes / Table::<Rejection>::BYTES_PER_ENTRY);
        let forgotten = (0..FORGOTTEN).map(|_| AtomicU64::new(0)).collect();
        Self {
            keys,
            forgotten,
            hits: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            rules: AtomicU32::new(0),
            resets: AtomicU32::new(0),
        }
    }

    /// From now on a request has these rules. Another limit of a rule may reject what one is known to reject, for longer.
    pub(super) fn follow(&self, rules: u32) {
        if self.rules.load(Ordering::Relaxed) != rules {
            self.rules.fetch_max(rules, Ordering::Relaxed);
        }
    }

    fn key(&self, counter: CounterId) -> CounterId {
        let [rules, resets] = [&self.rules, &self.resets].map(|number| number.load(Ordering::Relaxed));
        counter.mixed_with(u64::from(rules) << 32 | u64::from(resets))
    }

    /// The verdict on a check, if it follows from what is known of its counter. The caller counts the lookup.
    pub fn get(&self, check: &Check, now: Time) -> Option<Verdict> {
        if !check.takes() {
            return None;
        }
        self.keys.get(self.key(check.id), now)?.verdict(check, now)
    }

    /// Counts the lookups of a request, once it is decided.
    pub(super) fn count(&self, lookups: Lookups) {
        self.lookups.fetch_add(lookups.all as u64, Ordering::Relaxed);
        self.hits.fetch_add(lookups.found as u64, Ordering::Relaxed);
    }

    /// True if the verdict of a check that is over its limit can be stored.
    pub fn can_know(check: &Check, now: Time) -> bool {
        Rejection::of(check, now).is_some()
    }

    /// Stores the verdict of a check that is over its limit until it expires. `now` is the start of the request.
    pub fn insert(&self, check: &Check, now: Time) {
        let Some(rejection) = Rejection::of(check, now) else { return };
        let end = Time::from_micros({ rejection.until }.saturating_add(999_999));
        // All are over their limit: of the largest rule, the one that expires first is evicted.
        let kept = Kept { state: rejection, end, mark: Mark::new(check.rule_hash, Used::Little) };
        let key = self.key(check.id);
        // Called under the lock of the shard: either `forget` removes the rejection, or its time is visible here.
        let store = |_| ((!self.is_older_than_a_reset(key, now)).then_some(kept), ());
        self.keys.change(key, now, store);
    }

    /// Removes the key of a refund that was counted.
    pub(super) fn refunded(&self, counter: CounterId, now: Time) {
        let key = self.key(counter);
        self.forgotten(key).store(now.micros(), Ordering::Relaxed);
        self.keys.remove(key, now);
    }

    /// Removes keys whose counters were reset or refunded. Requests that began before do not add them again.
    pub fn forget(&self, resets: &Resets, now: Time) {
        match resets {
            Resets::Of(keys) => {
                let ids = keys.iter().filter_map(|key| CounterId::of_key_in_window(key));
                ids.for_each(|id| self.refunded(id, now));
            }
            Resets::Unknown => {
                self.forgotten.iter().for_each(|part| part.store(now.micros(), Ordering::Relaxed));
                // A sweep of the table would take milliseconds, and repeated settles may ask for it often.
                self.resets.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// True for a request that may have been counted before a reset or refund, unless the clock was set back.
    fn is_older_than_a_reset(&self, key: CounterId, begun: Time) -> bool {
        self.forgotten(key).load(Ordering::Relaxed).wrapping_sub(begun.micros()) < LONGEST_REQUEST
    }

    #[expect(clippy::indexing_slicing, reason = "masked by the number of parts, a power of two")]
    fn forgotten(&self, key: CounterId) -> &AtomicU64 {
        &self.forgotten[key.shard() & (FORGOTTEN - 1)]
    }

    pub fn maintain(&self, now: Time) {
        self.keys.sweep(0, 1, now);
    }

    pub fn usage(&self) -> CacheUsage {
        CacheUsage {
            keys: self.keys.usage(),
            lookups: self.lookups.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
        }
    }
}

impl Rejection {
    fn of(check: &Check, now: Time) -> Option<Self> {
        let since = u32::try_from(now.seconds()).unwrap_or(u32::MAX);
        let hits = u32::try_from(check.hits.taken()).unwrap_or(u32::MAX);
        let known = Self { since, hits, ..Self::default() };
        let of_window = |number| {
            let end = check.limit.period().end(now).micros();
            let until = match check.limit.algorithm {
                Algorithm::FixedWindow(window) if check.limit.is_leased() => {
                    end.min(now.micros().saturating_add(over_for(window)))
                }
                _ => end,
            };
            Some(Self { until, number, ..known })
        };
        let verdict = check.verdict;
        match (check.limit.algorithm, check.held()) {
            // Holds end at any time; only what is spent stays.
            (Algorithm::FixedWindow(window), Some(held)) if held.spent >= window.limit => {
                of_window(held.spent)
            }
            (_, Some(_)) => None,
            (Algorithm::FixedWindow(_), None) => of_window(verdict.count),
            _ => {
                let wait = verdict.retry_after.filter(|wait| *wait > 0)?;
                let after = |micros| now.micros().saturating_add(micros);
                Some(Self {
                    until: after(wait),
                    reset: seconds(after(verdict.reset)),
                    remaining: u32::try_from(verdict.remaining).ok()?,
                    number: check.limit.algorithm.capacity(),
                    ..known
                })
            }
        }
    }

    fn verdict(self, check: &Check, now: Time) -> Option<Verdict> {
        if !self.holds_at(now) {
            return None;
        }
        let hits = check.hits.taken();
        if let Algorithm::FixedWindow(fixed) = check.limit.algorithm {
            return self.rejects(fixed, check).then(|| {
                // An estimate is cut to the limit.
                let hits = if check.hold.is_some() { hits.min(fixed.limit) } else { hits };
                fixed.rejected(self.number, Hits::Take(hits), now)
            });
        }
        // Fewer may fit, and more may wait for longer. States of these algorithms are valid for their limit only.
        let is_same = hits == u64::from(self.hits) && check.limit.algorithm.capacity() == self.number;
        is_same.then(|| Verdict {
            admitted: false,
            consumed: false,
            count: self.number.saturating_sub(self.remaining.into()),
            remaining: self.remaining.into(),
            reset: Time::from_seconds(self.reset.into()).micros().saturating_sub(now.micros()),
            retry_after: Some(self.until.saturating_sub(now.micros())),
        })
    }

    /// True if a fixed window whose count is at least the known one rejects the check, for as long as the verdict says.
    fn rejects(self, fixed: FixedWindow, check: &Check) -> bool {
        let hits = check.hits.taken();
        match check.member {
            _ if check.hold.is_some() => self.number >= fixed.limit,
            // It counts what it rejects, so only a count above the limit rejects every number of hits.
            Member::Alone => self.number > fixed.limit,
            // Other hits may wait for other limits of the rule.
            Member::First | Member::Next => {
                hits == u64::from(self.hits) && self.number.saturating_add(hits) > fixed.limit
            }
        }
    }

    /// Not before the rejection: then the clock was set back, and callers must not wait until it has caught up. The times
    /// of threads may differ by a second.
    fn holds_at(self, now: Time) -> bool {
        now.micros() < self.until && u64::from(self.since) <= now.seconds().saturating_add(1)
    }
}

/// The first second at or after a microsecond.
fn seconds(micros: u64) -> u32 {
    u32::try_from(micros.div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use counters::Batch;
    use limit::{CountingMode, Kind, Limit, Unit};

    fn full_key(value: &str) -> String {
        format!("d_k_{value}_600#0.1.1.{}/60", value.len())
    }

    fn id(value: &str) -> CounterId {
        CounterId::of_key_in_window(&full_key(value)).unwrap()
    }

    /// The only check of the batch, of another counter.
    fn named(value: &str, batch: &Batch) -> Check {
        let mut check = batch.check(0).clone();
        check.id = id(value);
        check
    }

    fn get(cache: &OverLimitCache, key: &str, limit: &Limit, hits: Hits, now: Time) -> Option<Verdict> {
        let mut batch = Batch::default();
        batch.push([id(""); 2], 0..0, limit, 0, hits);
        cache.get(&named(key, &batch), now)
    }

    /// A cache that contains the verdict of a check of these keys with these hits at this second.
    fn cache_with(
        keys: &[&str],
        limit: &Limit,
        hits: u64,
        verdict: impl Fn(&Check) -> Verdict,
    ) -> OverLimitCache {
        let cache = OverLimitCache::new(100_000);
        let mut batch = Batch::default();
        batch.push([id(""); 2], 0..0, limit, 0, Hits::Take(hits));
        let verdict = verdict(batch.check(0));
        batch.found(0, verdict);
        for key in keys {
            cache.insert(&named(key, &batch), Time::from_seconds(610));
        }
        cache
    }

    fn counted(count: u64) -> impl Fn(&Check) -> Verdict {
        move |check| check.counted(count, Time::from_seconds(610))
    }

    #[test]
    fn a_window_is_over_until_it_ends_or_a_refund() {
        let limit = Limit::plain(5, Unit::Minute);
        let cache = cache_with(&["a", "b"], &limit, 3, counted(7));
        let wait = |key, hits, second| {
            get(&cache, key, &limit, hits, Time::from_seconds(second)).map(|verdict| verdict.retry_after)
        };
        assert_eq!(wait("b", Hits::Refund(1), 610), None, "the store counts it");
        cache.refunded(id("b"), Time::from_seconds(610));
        assert_eq!(wait("b", Hits::Take(1), 610), None);
        assert_eq!(wait("a", Hits::Take(0), 615), Some(Some(45_000_000)));
        assert_eq!(wait("a", Hits::Take(5), 615), Some(Some(45_000_000)));
        assert_eq!(wait("a", Hits::Take(6), 615), Some(None), "they never fit");
        assert_eq!(wait("a", Hits::Take(9), 660), None);
    }

    #[test]
    fn the_same_hits_are_rejected_until_the_retry_time() {
        let limit = Limit::new(5, Unit::Minute, 1.try_into().unwrap(), Kind::SlidingLog, None).unwrap();
        let refused = Verdict {
            admitted: false,
            consumed: false,
            count: 3,
            remaining: 2,
            reset: 50_300_000,
            retry_after: Some(1_500_000),
        };
        let cache = cache_with(&["a"], &limit, 3, |_| refused);
        let recall = |hits, micros| get(&cache, "a", &limit, Hits::Take(hits), Time::from_micros(micros));
        assert_eq!(recall(2, 610_000_000), None, "fewer may fit");
        let later = Verdict { reset: 50_100_000, remaining: 2, retry_after: Some(600_000), ..refused };
        assert_eq!(recall(3, 610_900_000), Some(later), "in whole seconds");
        assert_eq!(recall(4, 610_900_000), None, "more may wait for longer");
        assert_eq!(recall(3, 611_499_999).and_then(|verdict| verdict.retry_after), Some(1));
        assert_eq!(recall(3, 611_500_000), None);
        assert!(recall(3, 609_000_000).is_some());
        assert_eq!(recall(3, 608_999_999), None, "the clock was set back");
    }

    #[test]
    fn hits_that_never_fit_are_not_cached() {
        let limit = Limit::new(5, Unit::Minute, 1.try_into().unwrap(), Kind::TokenBucket, None).unwrap();
        let verdict = limit.algorithm.assumed(true, Hits::Take(6), Time::from_seconds(610));
        let cache = cache_with(&["a"], &limit, 6, |_| verdict);
        assert_eq!(cache.usage().keys.entries, 0);
    }

    #[test]
    fn a_counter_that_hits_can_come_back_to_is_read_again() {
        let leased = Limit::plain(5, Unit::Hour).counted(CountingMode::Leased);
        let cache = cache_with(&["a"], &leased, 1, counted(6));
        let wait = |second| {
            let known = get(&cache, "a", &leased, Hits::Take(1), Time::from_seconds(second));
            known.map(|verdict| verdict.retry_after)
        };
        assert_eq!(wait(614), Some(Some(2_986_000_000)), "until the window ends");
        assert_eq!(wait(615), None);
    }

    #[test]
    fn a_larger_limit_misses_the_cache() {
        let [five, ten] = [5, 10].map(|requests| Limit::plain(requests, Unit::Minute));
        let now = Time::from_seconds(615);
        let over_ten = cache_with(&["a"], &ten, 1, counted(11));
        assert!(get(&over_ten, "a", &ten, Hits::Take(1), now).is_some());
        assert!(get(&over_ten, "a", &five, Hits::Take(1), now).is_some(), "it is over the smaller one too");
        let over_five = cache_with(&["a"], &five, 1, counted(6));
        assert_eq!(get(&over_five, "a", &ten, Hits::Take(1), now), None);
        assert_eq!(get(&over_five, "a", &ten, Hits::Refund(1), now), None);
        assert!(get(&over_five, "a", &five, Hits::Take(1), now).is_some(), "until a refund is counted");
    }

    #[test]
    fn a_reset_is_not_undone_by_a_request_that_began_before() {
        let limit = Limit::plain(5, Unit::Minute);
        let cache = cache_with(&["a", "b", "c"], &limit, 1, counted(6));
        let is_known =
            |key, micros| get(&cache, key, &limit, Hits::Take(1), Time::from_micros(micros)).is_some();
        let mut batch = Batch::default();
        batch.push([id(""); 2], 0..0, &limit, 0, Hits::Take(1));
        let over = counted(6)(batch.check(0));
        batch.found(0, over);
        let insert = |key, micros| cache.insert(&named(key, &batch), Time::from_micros(micros));
        cache.forget(&Resets::Of(vec![full_key("a")]), Time::from_micros(615_000_000));
        assert_eq!(["a", "b"].map(|key| is_known(key, 615_000_000)), [false, true]);
        insert("a", 614_999_999);
        insert("a", 615_000_000);
        assert!(!is_known("a", 615_000_001));
        insert("a", 615_000_001);
        assert!(is_known("a", 615_000_001), "it began after the reset");
        cache.forget(&Resets::Unknown, Time::from_micros(616_000_000));
        assert_eq!(["a", "b", "c"].map(|key| is_known(key, 616_000_000)), [false; 3]);
        insert("a", 556_000_000);
        assert!(is_known("a", 556_000_000), "the clock was set back");
    }

    #[test]
    fn a_refund_stops_no_insertion_of_other_keys() {
        let limit = Limit::plain(5, Unit::Minute);
        let cache = OverLimitCache::new(1_000_000);
        let mut batch = Batch::default();
        batch.push([id(""); 2], 0..0, &limit, 0, Hits::Take(1));
        let over = counted(6)(batch.check(0));
        batch.found(0, over);
        let (begun, refunded) = (Time::from_micros(610_000_000), Time::from_micros(610_000_200));
        cache.forget(&Resets::Of(vec![full_key("refunded")]), refunded);
        for n in 0..10_000 {
            cache.insert(&named(&n.to_string(), &batch), begun);
        }
        cache.insert(&named("refunded", &batch), begun);
        assert_eq!(get(&cache, "refunded", &limit, Hits::Take(1), refunded), None);
        let entries = cache.usage().keys.entries;
        assert!(entries > 9_900, "{entries} of 10000");
    }

    #[test]
    fn stays_within_any_size() {
        let limit = Limit::plain(0, Unit::Second);
        let mut batch = Batch::default();
        batch.push([id(""); 2], 0..0, &limit, 0, Hits::Take(1));
        let over = counted(1)(batch.check(0));
        batch.found(0, over);
        for bytes in [1, 47, 48, 49, 95, 96, 1000, 65_536] {
            let cache = OverLimitCache::new(bytes);
            for second in 1..4 {
                let now = Time::from_seconds(second);
                for n in 0..4000 {
                    cache.insert(&named(&n.to_string(), &batch), now);
                    assert!(get(&cache, &n.to_string(), &limit, Hits::Take(1), now).is_some());
                }
                // Even the smallest cache holds one key.
                assert!(cache.usage().keys.bytes <= bytes.max(48), "{bytes}: {:?}", cache.usage());
            }
        }
    }
}
