//! The store against the algorithms, and with many threads at once.

use std::{
    collections::HashMap,
    num::{NonZeroU32, NonZeroU64},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use proptest::prelude::*;

use super::*;
use limit::{Kind, Limit, Unit, sliding_log::Log, steps::requests};
use metrics::TableUsage;

const RULE: u16 = 9;

fn limit(kind: Kind, requests: u64, unit: Unit, burst: u64) -> Limit {
    let burst = NonZeroU64::new(burst).filter(|_| kind.has_burst());
    Limit::new(requests, unit, NonZeroU32::MIN, kind, burst).unwrap()
}

/// The key of a limit, as the limiter writes it.
fn key(name: &str, limit: &Limit, now: Time) -> String {
    let start = match limit.algorithm {
        Algorithm::FixedWindow(fixed) => fixed.period.start(now).seconds().to_string(),
        _ => String::new(),
    };
    format!("{name}_{start}{}", limit.tag)
}

/// Applies all checks in one batch.
fn apply_checks(
    store: &MemoryStore,
    counting: Counting,
    checks: &[(&str, &Limit, Hits)],
    now: Time,
) -> Vec<(Verdict, bool)> {
    let mut batch = Batch::default();
    batch.counting = counting;
    for (name, limit, hits) in checks {
        let id = CounterId::of_name(&key(name, limit, now));
        batch.push([id, id], 0..0, limit, RULE, *hits);
    }
    apply(store, &mut batch, now)
}

fn apply(store: &MemoryStore, batch: &mut Batch, now: Time) -> Vec<(Verdict, bool)> {
    assert_eq!(store.try_apply(batch, now), Applied::Done);
    batch.checks().iter().map(|check| (check.verdict, check.is_over())).collect()
}

/// Applies all checks in one batch, each list as a group.
fn apply_groups(
    store: &MemoryStore,
    counting: Counting,
    groups: &[Vec<(&str, &Limit, Hits)>],
    now: Time,
) -> Vec<(Verdict, bool)> {
    let mut batch = Batch::default();
    batch.counting = counting;
    for group in groups {
        let first = batch.checks().len();
        for (name, limit, hits) in group {
            let id = CounterId::of_name(&key(name, limit, now));
            batch.push([id, id], 0..0, limit, RULE, *hits);
        }
        batch.group(first);
    }
    apply(store, &mut batch, now)
}

/// How much a counter has used, as an eviction sees it.
fn used_of(store: &MemoryStore, name: &str, limit: &Limit, now: Time) -> Option<Used> {
    let mark = store.states.mark(CounterId::of_name(&key(name, limit, now)), now)?;
    assert_eq!(mark, Mark::new(RULE, mark.used()));
    Some(mark.used())
}

#[test]
fn a_counter_of_a_rejected_group_is_marked_as_over_its_limit() {
    let now = Time::from_seconds(600);
    for kind in [Kind::FixedWindow, Kind::SlidingWindow, Kind::TokenBucket] {
        let store = MemoryStore::new(1000);
        let (few, many) = (limit(kind, 5, Unit::Minute, 0), limit(kind, 100, Unit::Hour, 0).tagged());
        let used = || [used_of(&store, "k", &few, now), used_of(&store, "k", &many, now)];
        let group = vec![("k", &few, Hits::Take(3)), ("k", &many, Hits::Take(3))];
        apply_groups(&store, Counting::Always, std::slice::from_ref(&group), now);
        assert_eq!(used(), [Some(Used::Much), Some(Used::Little)], "{kind:?}");
        apply_groups(&store, Counting::Always, &[group], now);
        assert_eq!(used(), [Some(Used::Over), Some(Used::Little)], "{kind:?}");
    }
}

proptest! {
    #[test]
    fn a_counter_is_marked_by_what_it_has_used(
        kind in prop::sample::select(vec![Kind::FixedWindow, Kind::SlidingWindow, Kind::TokenBucket, Kind::LeakyBucket]),
        requests in 0..8_u64, burst in 0..5_u64,
        steps in prop::collection::vec((0..5_u64, 0..8_u8), 1..20),
    ) {
        let (store, limit, now) = (MemoryStore::new(1000), limit(kind, requests, Unit::Hour, burst), Time::from_seconds(600));
        let capacity = limit.algorithm.capacity();
        let mut expected = None;
        for (hits, action) in steps {
            let hits = if action == 0 { Hits::Refund(hits) } else { Hits::Take(hits) };
            let (verdict, is_over) = apply_checks(&store, Counting::Always, &[("k", &limit, hits)], now)[0];
            let hits_used = if is_over && kind != Kind::FixedWindow { u64::MAX } else { verdict.count };
            let before = expected;
            if hits != Hits::Take(0) {
                expected = Some(Used::of(hits_used, capacity));
            }
            // An unused counter has no state, and a refund that changes nothing leaves the mark.
            let used = used_of(&store, "k", &limit, now);
            let is_left = matches!(hits, Hits::Refund(_)) && used == before;
            prop_assert!(used.is_none() || used == expected || is_left, "{used:?}, {expected:?} after {verdict:?}");
            prop_assert!(used.is_some() || expected.is_none_or(|used| used == Used::Little) || is_over);
            expected = used;
        }
    }
}

/// States by key, without eviction.
#[derive(Default)]
struct Model {
    states: HashMap<String, State>,
    logs: HashMap<String, Log>,
}

impl Model {
    /// Counts `hits` of those that were asked for.
    fn apply(&mut self, key: String, limit: &Limit, [hits, asked]: [Hits; 2], now: Time) -> Verdict {
        let state = self.states.entry(key.clone()).or_default();
        let verdict = match limit.algorithm {
            Algorithm::FixedWindow(fixed) => {
                *state = fixed.apply(*state, hits, now).0;
                return fixed.verdict(state.number, asked, now);
            }
            Algorithm::SlidingWindow(limit) => limit.apply(*state, hits, now),
            Algorithm::Bucket(limit) => limit.apply(*state, hits, now),
            Algorithm::SlidingLog(limit) => {
                return limit.apply(self.logs.entry(key).or_default(), hits, now);
            }
            Algorithm::Concurrency(_) => panic!("nothing holds"),
        };
        *state = verdict.0;
        verdict.1
    }

    /// A refund never is.
    fn is_over(&self, key: &str, limit: &Limit, hits: Hits, now: Time) -> bool {
        if matches!(hits, Hits::Refund(_)) {
            return false;
        }
        let state = self.states.get(key).copied().unwrap_or_default();
        let admitted = match limit.algorithm {
            Algorithm::Concurrency(_) => panic!("nothing holds"),
            Algorithm::FixedWindow(fixed) => fixed.apply(state, hits, now).1 <= fixed.limit,
            Algorithm::SlidingWindow(limit) => limit.apply(state, hits, now).1.admitted,
            Algorithm::Bucket(limit) => limit.apply(state, hits, now).1.admitted,
            Algorithm::SlidingLog(limit) => {
                limit.apply(&mut self.logs.get(key).cloned().unwrap_or_default(), hits, now).admitted
            }
        };
        !admitted
    }

    /// The verdict of a read, or of rejected hits.
    fn refuse(&mut self, key: String, limit: &Limit, hits: Hits, is_over: bool, now: Time) -> Verdict {
        match limit.algorithm {
            Algorithm::FixedWindow(fixed) if is_over => {
                fixed.rejected(self.states.get(&key).copied().unwrap_or_default().number, hits, now)
            }
            _ => self.apply(key, limit, [if is_over { hits } else { Hits::Take(0) }, hits], now),
        }
    }

    /// The verdict where nothing is counted: hits that would not fit are rejected.
    fn look(&mut self, key: String, limit: &Limit, hits: Hits, now: Time) -> Verdict {
        let is_over = self.is_over(&key, limit, hits, now);
        let read = self.apply(key, limit, [Hits::Take(0), hits], now);
        if !is_over || hits.taken() == 0 {
            return read;
        }
        let retry_after = limit.algorithm.wait_after(Verdict { remaining: 0, ..read }, hits.taken());
        Verdict { admitted: false, consumed: false, retry_after, ..read }
    }

    /// Applies groups, each all or nothing, by `counting`.
    fn apply_groups(
        &mut self,
        counting: Counting,
        groups: &[Vec<(&str, &Limit, Hits)>],
        now: Time,
    ) -> Vec<Verdict> {
        let is_over = |model: &Self, (name, limit, hits): &(&str, &Limit, Hits)| {
            model.is_over(&key(name, limit, now), limit, *hits, now)
        };
        let stops = counting == Counting::StopWhenOver
            && groups
                .iter()
                .flatten()
                .any(|(name, limit, hits)| self.is_over(&key(name, limit, now), limit, *hits, now));
        let mut verdicts = Vec::new();
        for group in groups {
            let over: Vec<bool> = group.iter().map(|check| is_over(self, check)).collect();
            let refused = stops || over.contains(&true);
            for ((name, limit, hits), over) in group.iter().zip(over) {
                let key = key(name, limit, now);
                verdicts.push(match hits {
                    Hits::Take(_) if counting == Counting::ReadOnly => self.look(key, limit, *hits, now),
                    Hits::Take(_) if refused => self.refuse(key, limit, *hits, over, now),
                    hits => self.apply(key, limit, [*hits, *hits], now),
                });
            }
        }
        verdicts
    }

    fn apply_all(&mut self, counting: Counting, checks: &[(&str, &Limit, Hits)], now: Time) -> Vec<Verdict> {
        let over: Vec<bool> = checks
            .iter()
            .map(|(name, limit, hits)| self.is_over(&key(name, limit, now), limit, *hits, now))
            .collect();
        let stops = counting == Counting::StopWhenOver && over.contains(&true);
        let one = |((name, limit, asked), over): (&(&str, &Limit, Hits), bool)| {
            let key = key(name, limit, now);
            let hits = match asked {
                Hits::Take(_) if counting == Counting::ReadOnly => {
                    return self.look(key, limit, *asked, now);
                }
                Hits::Take(_) if stops && !over => Hits::Take(0),
                hits => *hits,
            };
            self.apply(key, limit, [hits, *asked], now)
        };
        checks.iter().zip(over).map(one).collect()
    }
}

fn hits() -> impl Strategy<Value = Hits> {
    prop_oneof![
        4 => Just(Hits::Take(1)),
        1 => Just(Hits::Take(0)),
        2 => (2..9_u64).prop_map(Hits::Take),
        1 => any::<u64>().prop_map(Hits::Take),
        1 => (0..5_u64).prop_map(Hits::Refund),
    ]
}

/// A request: the hits by name, the counting mode, and the microseconds since the previous one.
type Step = (Vec<(usize, Hits)>, Counting, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let counting = vec![Counting::Always, Counting::StopWhenOver, Counting::ReadOnly];
    let step = (
        prop::collection::vec((0..3_usize, hits()), 1..4),
        prop::sample::select(counting),
        prop_oneof![0..3_u64, 0..3_000_000_u64, 0..100_000_000_u64],
    );
    prop::collection::vec(step, 1..60)
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let kinds = prop::sample::select(&COUNTED[..]);
    let units = prop::sample::select(vec![Unit::Second, Unit::Minute, Unit::Hour]);
    let requests = prop_oneof![3 => 0..12_u64, 1 => requests()];
    let one = (kinds, requests, units, 1..12_u64).prop_map(|(kind, requests, unit, burst)| {
        // Longer logs are refused.
        let requests = if kind == Kind::SlidingLog { requests.min(100_000) } else { requests };
        limit(kind, requests, unit, burst).tagged()
    });
    let distinct = |mut limits: Vec<Limit>| {
        // As in a rule, where duplicates are rejected.
        limits.sort_by(|one, other| one.tag.cmp(&other.tag));
        limits.dedup_by(|one, other| one.tag == other.tag);
        limits
    };
    prop::collection::vec(one, 1..6).prop_map(distinct)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn counts_as_the_algorithms_do(
        limits in limits(),
        steps in steps(),
    ) {
        let (store, mut model) = (MemoryStore::new(100_000), Model::default());
        let mut now = 1_795_276_800_123_457;
        for (asked, counting, pause) in steps {
            now += pause;
            let at = Time::from_micros(now);
            // Every limit of each name, as in a rule with several limits.
            let checks: Vec<(&str, &Limit, Hits)> = asked
                .iter()
                .flat_map(|(name, hits)| limits.iter().map(|limit| (["a", "b", "c"][*name], limit, *hits)))
                .collect();
            let verdicts: Vec<Verdict> =
                apply_checks(&store, counting, &checks, at).into_iter().map(|(verdict, _)| verdict).collect();
            prop_assert_eq!(verdicts, model.apply_all(counting, &checks, at));
            if pause % 7 == 0 {
                store.maintain(at);
            }
        }
    }

    #[test]
    fn a_group_counts_all_or_nothing(
        limits in limits(),
        steps in steps(),
    ) {
        let (store, mut model) = (MemoryStore::new(100_000), Model::default());
        let mut now = 1_795_276_800_123_457;
        for (asked, counting, pause) in steps {
            now += pause;
            let at = Time::from_micros(now);
            let group = |(name, hits): &(usize, Hits)| {
                limits.iter().map(|limit| (["a", "b", "c"][*name], limit, *hits)).collect()
            };
            let groups: Vec<Vec<(&str, &Limit, Hits)>> = asked.iter().map(group).collect();
            let verdicts: Vec<Verdict> =
                apply_groups(&store, counting, &groups, at).into_iter().map(|(verdict, _)| verdict).collect();
            prop_assert_eq!(verdicts, model.apply_groups(counting, &groups, at));
        }
    }
}

/// Each limit of a group has counted all admitted hits, and none of the others.
#[test]
fn many_threads_count_in_all_limits_of_a_group_or_in_none() {
    for kind in COUNTED {
        let store = MemoryStore::new(1000);
        let (large, small) = (limit(kind, 5000, Unit::Hour, 5000), limit(kind, 3000, Unit::Day, 3000));
        let admitted = AtomicU64::new(0);
        thread::scope(|threads| {
            for hits in [1, 3, 7, 20] {
                let (store, large, small, admitted) = (&store, &large, &small, &admitted);
                threads.spawn(move || {
                    for _ in 0..1500 {
                        let group = vec![("k", large, Hits::Take(hits)), ("k", small, Hits::Take(hits))];
                        let outcomes = apply_groups(store, Counting::Always, &[group], NOON);
                        if outcomes.iter().all(|(_, over)| !over) {
                            admitted.fetch_add(hits, Relaxed);
                        }
                    }
                });
            }
        });
        // The rest is too little for the others: single hits of any thread take it.
        let single = || {
            apply_groups(
                &store,
                Counting::Always,
                &[vec![("k", &large, Hits::Take(1)), ("k", &small, Hits::Take(1))]],
                NOON,
            )
        };
        while single().iter().all(|(_, over)| !over) {
            admitted.fetch_add(1, Relaxed);
        }
        assert_eq!(admitted.load(Relaxed), 3000, "{kind:?}");
        let looks = [("k", &large, Hits::Take(0)), ("k", &small, Hits::Take(0))];
        let left = apply_checks(&store, Counting::ReadOnly, &looks, NOON).into_iter().map(|(verdict, _)| {
            if kind == Kind::FixedWindow { 3000 - verdict.count } else { verdict.remaining }
        });
        let expected = if kind == Kind::FixedWindow { [0, 0] } else { [2000, 0] };
        assert_eq!(left.collect::<Vec<_>>(), expected, "{kind:?}");
    }
}

/// The algorithms that count.
const COUNTED: [Kind; 5] =
    [Kind::FixedWindow, Kind::SlidingWindow, Kind::SlidingLog, Kind::TokenBucket, Kind::LeakyBucket];

const NOON: Time = Time::from_seconds(1_795_262_400);

#[test]
fn many_threads_are_admitted_exactly_up_to_the_limit() {
    for kind in COUNTED {
        for counting in [Counting::Always, Counting::StopWhenOver] {
            let store = MemoryStore::new(1000);
            // The first one rejects last: only if both are counted atomically, none of its hits are lost.
            let (large, small) = (limit(kind, 5000, Unit::Hour, 5000), limit(kind, 3000, Unit::Day, 3000));
            let admitted = AtomicU64::new(0);
            thread::scope(|threads| {
                for _ in 0..4 {
                    threads.spawn(|| {
                        for _ in 0..1500 {
                            let checks = [("k", &large, Hits::Take(1)), ("j", &small, Hits::Take(1))];
                            let outcomes = apply_checks(&store, counting, &checks, NOON);
                            admitted.fetch_add(u64::from(outcomes.iter().all(|(_, over)| !over)), Relaxed);
                        }
                    });
                }
            });
            assert_eq!(admitted.load(Relaxed), 3000, "{kind:?} {counting:?}");
            let read = apply_checks(&store, Counting::ReadOnly, &[("k", &large, Hits::Take(0))], NOON);
            let left = read[0].0.remaining;
            let expected = if counting == Counting::Always { 0 } else { 2000 };
            assert_eq!(left, expected, "{kind:?} {counting:?}: a refusal by one consumes from none");
        }
    }
}

#[test]
fn a_state_costs_as_much_as_a_window() {
    for kind in [Kind::FixedWindow, Kind::SlidingWindow, Kind::TokenBucket, Kind::LeakyBucket] {
        let (store, limit) = (MemoryStore::new(200_000), limit(kind, 100, Unit::Day, 100));
        for n in 0..20_000 {
            apply_checks(&store, Counting::Always, &[(&n.to_string(), &limit, Hits::Take(1))], NOON);
        }
        let held = store.usage().unwrap().held;
        assert_eq!((held.entries, held.evicted), (20_000, 0), "{kind:?}");
        assert!(held.bytes <= 960_000, "{kind:?}: {held:?}");
    }
}

#[test]
fn reads_store_nothing() {
    let store = MemoryStore::new(1000);
    for kind in COUNTED {
        let limit = limit(kind, 3, Unit::Day, 3);
        for hits in [Hits::Take(0), Hits::Refund(2)] {
            apply_checks(&store, Counting::Always, &[("k", &limit, hits)], NOON);
        }
        apply_checks(&store, Counting::ReadOnly, &[("k", &limit, Hits::Take(1))], NOON);
    }
    assert_eq!(store.usage().unwrap().held.entries, 0);
}

#[test]
fn logs_are_removed_when_their_last_hit_has_left_the_window() {
    let (store, limit) = (MemoryStore::new(100_000), limit(Kind::SlidingLog, 10, Unit::Minute, 0));
    for n in 0..1000 {
        apply_checks(&store, Counting::Always, &[(&n.to_string(), &limit, Hits::Take(3))], NOON);
    }
    let held = store.usage().unwrap().held;
    assert!(held.entries == 1000 && held.bytes > 1000, "{held:?}");
    let sweep = |second| {
        for _ in 0..SWEEP_PARTS {
            store.maintain(Time::from_seconds(NOON.seconds() + second));
        }
        store.usage().unwrap().held
    };
    assert_eq!(sweep(59), held);
    assert_eq!(sweep(60), TableUsage { expired: 1000, ..TableUsage::default() });
}

#[test]
fn logs_stay_within_their_bound_and_those_that_end_first_are_evicted() {
    let store = MemoryStore::new(80_000);
    let [minute, day] = [Unit::Minute, Unit::Day].map(|unit| limit(Kind::SlidingLog, 100, unit, 0));
    for (limit, count) in [(&day, 300), (&minute, 50_000)] {
        for n in 0..count {
            apply_checks(&store, Counting::Always, &[(&n.to_string(), limit, Hits::Take(1))], NOON);
        }
    }
    let held = store.usage().unwrap().held;
    assert!((1_900_000..=1_921_000).contains(&held.bytes), "{held:?}");
    assert_eq!(held.entries as u64 + held.evicted, 50_300);
    let left = (0..300).filter(|n| {
        let (verdict, _) =
            apply_checks(&store, Counting::ReadOnly, &[(&n.to_string(), &day, Hits::Take(0))], NOON)[0];
        verdict.remaining == 99
    });
    assert_eq!(left.count(), 300);
}

#[test]
fn hits_of_a_window_that_begins_soon_take_no_place_of_one_that_lasts() {
    let minute = Limit::plain(1, Unit::Minute);
    let admitted = |taken_at: u64, ahead: u8| {
        let store = MemoryStore::new(256);
        let take = |name: String, now: u64, ahead: u8| {
            let now = Time::from_seconds(now);
            let mut batch = Batch::default();
            let id = CounterId::of_name(&key(&name, &minute, now));
            batch.push([id, id], 0..0, &minute, RULE, Hits::Take(1));
            batch.set_ahead(ahead);
            apply(&store, &mut batch, now)[0].0.admitted
        };
        for user in 0..100 {
            assert!(take(format!("user {user}"), 59, 0));
        }
        for other in 0..100 {
            take(format!("other {other}"), taken_at, ahead);
        }
        (0..100).filter(|user| take(format!("user {user}"), 59, 0)).count()
    };
    // As many as others of the window that lasts would evict.
    assert_eq!(admitted(60, 1), admitted(59, 0));
}
