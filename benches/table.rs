//! The cost of a counter in memory, compared with `hashbrown::HashTable`: `cargo bench --bench table`.
//!
//! Both have the same 24 bytes per key and the same locks. Memory is the growth of the resident memory. Times are
//! nanoseconds per key, in alternating rounds: compare them within one run.

use std::{
    env, fs,
    hint::black_box,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use clock::Time;
use counters::{CounterId, table::Table};
use hashbrown::HashTable;

const SHARDS: usize = 1024;
const ROUNDS: usize = 7;

/// The operations of both tables.
trait Counts {
    fn empty(max: usize) -> Self;
    fn count(&self, key: CounterId, now: u64, end: u64) -> u64;
}

struct Ours(Table<u64>);

impl Counts for Ours {
    fn empty(max: usize) -> Self {
        Self(Table::new(max))
    }

    fn count(&self, key: CounterId, now: u64, end: u64) -> u64 {
        self.0.update(key, Time::from_seconds(now), Time::from_seconds(end), |n| {
            *n += 1;
            *n
        })
    }
}

/// A key, its count, and the second at which it expires.
#[repr(C, packed(4))]
struct Slot {
    hash: u64,
    more: u32,
    count: u64,
    end: u32,
}

struct Theirs {
    shards: Vec<Mutex<HashTable<Slot>>>,
    max_in_a_shard: usize,
}

impl Counts for Theirs {
    fn empty(max: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, max_in_a_shard: (max / SHARDS).max(1) }
    }

    fn count(&self, key: CounterId, now: u64, end: u64) -> u64 {
        let shard = &self.shards[key.shard() % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = key.hash();
        if let Some(slot) = shard.find_mut(hash, |slot| { slot.hash } == hash) {
            let live = u64::from(slot.end) > now;
            slot.count = if live { slot.count + 1 } else { 1 };
            slot.end = u32::try_from(end).unwrap_or_default();
            return slot.count;
        }
        if shard.len() >= self.max_in_a_shard {
            // Iterators begin at the front, so all victims are there.
            let soonest = shard.iter().take(16).min_by_key(|slot| slot.end).map(|slot| slot.hash);
            let victim = soonest.and_then(|hash| shard.find_entry(hash, |slot| { slot.hash } == hash).ok());
            victim.map(hashbrown::hash_table::OccupiedEntry::remove);
        }
        let new = Slot { hash, more: 0, count: 1, end: u32::try_from(end).unwrap_or_default() };
        shard.insert_unique(hash, new, |slot| slot.hash).get().more.into()
    }
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, kind, count] = &arguments[..]
        && let Ok(count) = count.parse()
    {
        let bytes =
            if kind == "ours" { bytes_of::<Ours>(&keys(count)) } else { bytes_of::<Theirs>(&keys(count)) };
        println!("{:.1}", bytes / f64::from(u32::try_from(count).unwrap_or(1)));
        return;
    }
    println!("{:10}{:>16}{:>16}", "keys", "ours, bytes", "hashbrown");
    for count in ["250000", "500000", "700000", "1000000", "1400000", "2000000"] {
        println!(
            "{count:<10}{:>16}{:>16}",
            in_a_process_of_its_own("ours", count),
            in_a_process_of_its_own("theirs", count)
        );
    }
    let keys = keys(2_100_000);
    println!("\n{:44}{:>10}{:>12}", "", "ours, ns", "hashbrown");
    let cases: [(&str, usize, usize, usize); 4] = [
        ("known, 10,000 keys", 10_000_000, 10_000, 10_000),
        ("known, 1,000,000 keys", 10_000_000, 1_000_000, 1_000_000),
        ("new, into an empty table", 10_000_000, 0, 1_000_000),
        ("new, into a full table of 1,000,000", 1_000_000, 1_050_000, 1_000_000),
    ];
    for (name, max, before, counted) in cases {
        let (first, rest) = keys.split_at(before);
        let counted = if name.starts_with("known") { &first[..counted] } else { &rest[..counted] };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(nanos::<Ours>(max, first, counted));
            theirs.push(nanos::<Theirs>(max, first, counted));
        }
        println!("{name:44}{:>10.1}{:>12.1}", median(&mut ours), median(&mut theirs));
    }
}

/// Memory returned to the allocator would hide that of the next table.
fn in_a_process_of_its_own(kind: &str, count: &str) -> String {
    let output = env::current_exe().and_then(|program| Command::new(program).args([kind, count]).output());
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn keys(count: usize) -> Vec<CounterId> {
    (0..count).map(|n| CounterId::of_name(&format!("bench_user_u{n}_0"))).collect()
}

fn bytes_of<T: Counts>(keys: &[CounterId]) -> f64 {
    let before = resident_kib();
    let table = T::empty(10_000_000);
    for key in keys {
        table.count(*key, 1, 3600);
    }
    let after = resident_kib();
    black_box(&table);
    f64::from(after.saturating_sub(before)) * 1024.0
}

fn nanos<T: Counts>(max: usize, before: &[CounterId], counted: &[CounterId]) -> f64 {
    let table = T::empty(max);
    for key in before {
        table.count(*key, 1, 3600);
    }
    let begun = Instant::now();
    for key in counted {
        black_box(table.count(*key, 2, 3601));
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(counted.len()).unwrap_or(1))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn resident_kib() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
