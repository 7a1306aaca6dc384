//! The table against a map without eviction, at every capacity.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn id(name: &str) -> CounterId {
    CounterId::hashed_by([1, 2], name)
}

fn at(second: u64) -> Time {
    Time::from_seconds(second)
}

/// Counts a hit of a key whose state then expires at this second.
fn count(table: &Table<u64>, key: &str, now: u64, end: u64) -> u64 {
    table.update(id(key), at(now), at(end), |n| {
        *n += 1;
        *n
    })
}

/// Counts a hit of each of these keys.
fn fill(table: &Table<u64>, keys: std::ops::Range<u64>, now: u64, end: u64) {
    for n in keys {
        count(table, &n.to_string(), now, end);
    }
}

#[test]
fn an_expired_state_starts_again() {
    let table = Table::new(1000);
    assert_eq!((count(&table, "a", 10, 20), count(&table, "a", 19, 20)), (1, 2));
    assert_eq!(table.get(id("a"), at(20)), None);
    assert_eq!(count(&table, "a", 20, 30), 1);
    assert_eq!(table.usage().entries, 1, "its slot is reused");
}

#[test]
fn sweeping_releases_memory() {
    let table = Table::new(1_000_000);
    fill(&table, 0..50_000, 10, 20);
    assert_eq!(table.usage().entries, 50_000);
    table.sweep(0, 1, at(20));
    assert_eq!(table.usage(), TableUsage { entries: 0, bytes: 0, expired: 50_000, ..TableUsage::default() });
}

#[test]
fn every_capacity_is_filled_and_expires_and_is_filled_again() {
    for capacity in (1..150).chain([170, 171, 340, 341, 513, 4096]) {
        let table = Table::seeded(capacity);
        let keys = 3 * capacity as u64 + 1;
        for round in 0..3 {
            let now = 10 + round * 10;
            fill(&table, 0..keys, now, now + 10);
            let usage = table.usage();
            assert!(usage.entries <= capacity, "{capacity}: {usage:?}");
            assert!(usage.bytes <= capacity * Table::<u64>::BYTES_PER_ENTRY, "{capacity}: {usage:?}");
            assert!(usage.entries * 5 >= capacity * 4, "{capacity}: {usage:?}");
            assert_eq!(
                usage.entries as u64 + usage.expired + usage.evicted,
                keys * (round + 1),
                "{capacity}"
            );
            // Every other round begins with a sweep.
            if round == 1 {
                table.sweep(0, 1, at(now + 10));
                assert_eq!((table.usage().entries, table.usage().bytes), (0, 0), "{capacity}");
            }
        }
    }
}

#[test]
fn a_new_key_evicts_at_most_one_state_even_while_its_shard_grows() {
    for capacity in (1..130).chain((130..400).step_by(7)).chain([513, 1024, 4096]) {
        let table: Table<u64> = Table::new(capacity);
        for key in 0..3 * capacity as u64 {
            let before = table.usage().evicted;
            fill(&table, key..key + 1, 10, 20);
            let evicted = table.usage().evicted - before;
            assert!(evicted <= 1, "{evicted} states of {capacity} went for key {key}");
        }
    }
}

#[test]
fn few_states_are_evicted_before_four_fifths_of_the_slots_are_taken() {
    for capacity in [1, 10, 100, 1000, 16_384] {
        let table = Table::seeded(capacity);
        let keys = capacity as u64 * 4 / 5;
        fill(&table, 0..keys, 10, 20);
        let evicted = table.usage().evicted;
        // In a small table a shard may have more than its share of the keys.
        assert!(evicted * 100 <= keys, "{capacity}: {evicted}");
    }
}

#[test]
fn a_full_table_evicts_the_states_that_expire_first() {
    let table = Table::seeded(8192);
    let lasting: Vec<String> = (0..500).map(|n| format!("lasting {n}")).collect();
    for key in &lasting {
        table.update(id(key), at(1), at(1000), |n| *n = 7);
    }
    fill(&table, 0..50_000, 10, 20);
    let usage = table.usage();
    assert!(usage.entries <= 8192, "{usage:?}");
    assert_eq!(usage.entries as u64 + usage.evicted, 50_500);
    assert!(lasting.iter().all(|key| table.get(id(key), at(10)) == Some(7)));
}

/// Stores a state of a rule that has used this much.
fn mark(table: &Table<u64>, key: &str, rule: u16, used: Used, end: u64) {
    let kept = Kept { state: 7, end: at(end), mark: Mark::new(rule, used) };
    table.change(id(key), at(1), |_| (Some(kept), ()));
}

/// Stores states of a rule, and returns how many of these victims are left.
fn left_after_flood(table: &Table<u64>, victims: &[String], rule: u16, used: Used, keys: usize) -> usize {
    (0..keys).for_each(|n| mark(table, &format!("invented {n}"), rule, used, 1000));
    victims.iter().filter(|key| table.get(id(key), at(1)).is_some()).count()
}

/// A table of this capacity, of which rule 1 has filled one part in `part` with states over their limit that end soon.
fn table_with_victims(capacity: usize, part: usize) -> (Table<u64>, Vec<String>) {
    let table = Table::seeded(capacity);
    let victims: Vec<String> = (0..capacity / part).map(|n| format!("victim {n}")).collect();
    for key in &victims {
        mark(&table, key, 1, Used::Over, 10);
    }
    (table, victims)
}

#[test]
fn a_flood_of_little_used_states_evicts_none_that_is_over_its_limit() {
    for capacity in [100, 1000, 5000] {
        for (rule, used, part) in [(2, Used::Little, 2), (1, Used::Little, 2), (1, Used::All, 4)] {
            let (table, victims) = table_with_victims(capacity, part);
            let left = left_after_flood(&table, &victims, rule, used, 4 * capacity);
            assert_eq!(left, victims.len(), "{capacity}, rule {rule}, {used:?}");
            let usage = table.usage();
            assert!(usage.evicted > capacity as u64 && usage.evicted_over == 0, "{usage:?}");
        }
    }
}

#[test]
fn a_flood_of_states_over_their_limit_evicts_its_own_rule() {
    for capacity in [1000, 5000] {
        let (table, victims) = table_with_victims(capacity, 10);
        assert_eq!(left_after_flood(&table, &victims, 2, Used::Over, 4 * capacity), victims.len());
        let usage = table.usage();
        assert_eq!(usage.evicted, usage.evicted_over);
        // In one rule, older ones stay.
        let (table, victims) = table_with_victims(capacity, 10);
        let left = left_after_flood(&table, &victims, 1, Used::Over, 4 * capacity);
        assert!(left * 20 >= victims.len() * 19, "{left} of {}", victims.len());
    }
}

#[test]
fn two_rules_over_their_limits_share_the_table() {
    let (table, first) = table_with_victims(20_000, 1);
    let held = |keys: &[String]| keys.iter().filter(|key| table.get(id(key), at(1)).is_some()).count();
    let before = held(&first);
    let little = left_after_flood(&table, &first, 2, Used::Little, 60_000);
    assert!(little * 17 >= before * 15, "a slot of each bucket may go: {little} of {before}");
    let over = left_after_flood(&table, &first, 2, Used::Over, 60_000);
    // A sample of 34 is not exact: the rule that adds no more states is left with slightly less.
    assert!((7500..10_000).contains(&over), "{over} of {before}");
    let invented: Vec<String> = (0..60_000).map(|n| format!("invented {n}")).collect();
    assert!((10_000..12_000).contains(&held(&invented)), "{}", held(&invented));
}

#[test]
fn a_new_state_lasts_as_long_as_others_of_equal_use() {
    let table = Table::seeded(10_000);
    left_after_flood(&table, &[], 1, Used::Little, 20_000);
    let new: Vec<String> = (0..1000).map(|n| format!("new {n}")).collect();
    for key in &new {
        mark(&table, key, 1, Used::Little, 1000);
    }
    let before = table.usage().evicted;
    let left = left_after_flood(&table, &new, 1, Used::Little, 22_000);
    let (evictions, held) = (table.usage().evicted - before, table.usage().entries);
    assert!((17_500..18_500).contains(&evictions) && (9600..9900).contains(&held), "{evictions} of {held}");
    // Each eviction selects one of 9,800 states with equal odds, so 16 % are left: of 1,000 on average 160, with a
    // standard deviation of 12. If the newest or the oldest were evicted first, none or all would be.
    assert!((100..220).contains(&left), "{left}");
}

#[test]
fn tables_and_shards_of_any_size_stay_within_their_bounds() {
    for max in (0..200_000).step_by(37).chain([10_000_000, 100_000_000, usize::MAX]) {
        let shards = shards_for(max.max(1));
        assert!(shards.is_power_of_two() && shards <= MOST_SHARDS, "{max}: {shards}");
        let each = max / shards;
        assert!(each <= MOST_IN_A_SHARD || shards == MOST_SHARDS, "{max}: {shards}");
        assert!(shards == 1 || each >= LEAST_IN_A_SHARD, "{max}: {shards}");
    }
    assert_eq!([20_000, 1_000_000, 10_000_000].map(shards_for), [32, 1024, 1024]);
}

#[test]
fn a_lock_on_several_keys_holds_each_and_no_other() {
    let table: Table<u64> = Table::new(100_000);
    let keys = ["a", "b", "c"].map(id);
    let mut locked = table.lock(keys);
    for key in keys {
        let after = locked.change(key, at(1), |before| {
            let state = before.state + 5;
            (Some(Kept { state, end: at(9), ..before }), state)
        });
        assert_eq!(after, 5);
    }
    drop(locked);
    assert!(keys.iter().all(|key| table.get(*key, at(1)) == Some(5)));
}

#[test]
fn every_hit_of_many_threads_is_counted_once() {
    for capacity in [1000, 2] {
        let table: Table<u64> = Table::new(capacity);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for n in 0..20_000 {
                        count(&table, if n % 2 == 0 { "even" } else { "odd" }, 1, 9);
                    }
                });
            }
        });
        for key in ["even", "odd"] {
            assert_eq!(table.get(id(key), at(1)), Some(40_000));
        }
    }
}

/// An operation on a table.
#[derive(Clone, Debug)]
enum Step {
    Count { key: u16, life: u64 },
    Look { key: u16 },
    Remove { key: u16 },
    Wait { seconds: u64 },
    Sweep { part: usize },
}

fn steps(keys: u16) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..keys, prop_oneof![1..4_u64, 1..200_u64]).prop_map(|(key, life)| Step::Count { key, life }),
        2 => (0..keys).prop_map(|key| Step::Look { key }),
        1 => (0..keys).prop_map(|key| Step::Remove { key }),
        2 => (0..5_u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => (0..3_usize).prop_map(|part| Step::Sweep { part }),
    ];
    prop::collection::vec(step, 1..600)
}

/// The count and the end of each key, without eviction.
#[derive(Default)]
struct Model {
    states: HashMap<u16, (u64, u64)>,
    begun: u64,
    removed: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn behaves_as_a_map_that_evicts_only_when_full(
        capacity in prop_oneof![1..40_usize, 1..700_usize],
        steps in (1..900_u16).prop_flat_map(steps),
    ) {
        let table: Table<u64> = Table::new(capacity);
        let mut model = Model::default();
        let mut now = 1;
        for step in steps {
            let usage = table.usage();
            match step {
                Step::Count { key, life } => {
                    let end = now + life;
                    let n = count(&table, &key.to_string(), now, end);
                    let live = model.states.get(&key).filter(|(_, end)| *end > now).map(|(n, _)| *n);
                    model.begun += u64::from(n == 1);
                    let known = live.unwrap_or(0);
                    prop_assert!(n == known + 1 || (n == 1 && usage.evicted > 0), "{n} after {known}");
                    prop_assert_eq!(table.get(id(&key.to_string()), at(now)), Some(n));
                    model.states.insert(key, (n, end));
                    let evicted = table.usage().evicted - usage.evicted;
                    // An eviction needs two full buckets, and a new shard has one.
                    prop_assert!(evicted <= u64::from(usage.entries + 1 >= capacity.min(2)), "{evicted}");
                }
                Step::Look { key } => {
                    let live = model.states.get(&key).filter(|(_, end)| *end > now).map(|(n, _)| *n);
                    let seen = table.get(id(&key.to_string()), at(now));
                    prop_assert!(seen == live || (seen.is_none() && usage.evicted > 0), "{seen:?} for {live:?}");
                }
                Step::Remove { key } => {
                    table.remove(id(&key.to_string()), at(now));
                    prop_assert_eq!(table.get(id(&key.to_string()), at(now)), None);
                    model.states.remove(&key);
                    let after = table.usage();
                    model.removed +=
                        (usage.entries - after.entries) as u64 - (after.expired - usage.expired);
                }
                Step::Wait { seconds } => now += seconds,
                Step::Sweep { part } => table.sweep(part, 3, at(now)),
            }
            let usage = table.usage();
            prop_assert!(usage.entries <= capacity, "{usage:?}");
            prop_assert_eq!(usage.entries as u64 + usage.expired + usage.evicted + model.removed, model.begun);
        }
        table.sweep(0, 1, at(now));
        let live = model.states.values().filter(|(_, end)| *end > now).count();
        let usage = table.usage();
        prop_assert!(usage.entries <= live);
        prop_assert!(usage.entries == live || usage.evicted > 0, "{live} live, {usage:?}");
        table.sweep(0, 1, at(now + 1000));
        prop_assert_eq!((table.usage().entries, table.usage().bytes), (0, 0));
    }
}

impl<S: Copy + Default> Table<S> {
    /// A table whose hash key is known: evictions are the same in every run.
    pub fn seeded(max_entries: usize) -> Self {
        Self::new(max_entries)
    }
}
