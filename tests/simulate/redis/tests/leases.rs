//! The scripts of leases against what docs/reference/leases.md promises of them, whatever Redis loses: a lease that is granted
//! hits has none that were lost before, and lost hits are never returned. Each hit has a number for life, so the test
//! knows which of them the counter still has.
#![expect(clippy::expect_used, reason = "tests fail by it")]

use std::collections::BTreeSet;

use fastrand::Rng;
use simulated_redis::{Config, ConnectionId, Server, Snapshot};

const LEASE: &str = include_str!("../../../../crates/counters/redis-store/src/scripts/lease.lua");
const RETURN_HITS: &str = include_str!("../../../../crates/counters/redis-store/src/scripts/return_hits.lua");

const NOW: u64 = 1_800_000_000_000_000;
const LIMIT: usize = 60;

type Hits = BTreeSet<u64>;

/// What a replica knows of its lease.
#[derive(Default)]
struct Lease {
    left: Hits,
    /// The hits in the counter that it added.
    own: usize,
    /// The last grants that were confirmed and requested; 0 for none.
    confirmed: u64,
    requested: u64,
}

struct World {
    server: Server,
    connection: ConnectionId,
    /// The hits that the counter has, and those of the snapshot.
    counter: Hits,
    saved: Option<(Snapshot, Hits)>,
    next: u64,
    rng: Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut server = Server::new(Config { seed, ..Config::default() });
        let connection = server.connect();
        Self { server, connection, counter: Hits::new(), saved: None, next: 0, rng: Rng::with_seed(seed) }
    }

    /// The numbers of the reply.
    fn ask(&mut self, words: &[&str]) -> Vec<i64> {
        let texts = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let command = format!("*{}\r\n{}", words.len(), texts.collect::<String>());
        let mut out = Vec::new();
        self.server.receive(NOW, self.connection, command.as_bytes(), &mut out);
        let reply = String::from_utf8(out).expect("the reply is a text");
        let numbers = reply.lines().filter_map(|line| line.strip_prefix(':'));
        let numbers: Vec<i64> = numbers.map(|number| number.parse().expect("a number")).collect();
        assert!(!numbers.is_empty(), "{words:?}: {reply}");
        numbers
    }

    fn new_hits(&mut self, count: usize) -> Hits {
        let first = self.next;
        self.next += count as u64;
        (first..self.next).collect()
    }

    fn renew(&mut self, name: &str, lease: &mut Lease) {
        lease.requested = match lease.requested {
            0 => self.rng.u64(1..1 << 52),
            last => last + 1,
        };
        let hits = self.rng.usize(1..12);
        let numbers = [lease.confirmed, lease.requested].map(|number| number.to_string());
        let [hits_text, limit] = [hits, LIMIT].map(|number| number.to_string());
        let fixed = ["EVAL", LEASE, "2", "c", "{c}:leases", &hits_text, &limit, "1000", "0", name];
        let reply = self.ask(&[&fixed[..], &[&*numbers[0], &*numbers[1]]].concat());
        let added = if reply[1] == 1 { self.new_hits(hits) } else { Hits::new() };
        self.counter.extend(&added);
        assert_eq!(self.count(), self.counter.len());
        if self.rng.u8(..4) == 0 {
            // The reply is lost.
            return;
        }
        match reply[1] {
            1 => {
                assert!(lease.left.is_subset(&self.counter), "granted beside hits that were lost");
                lease.left.extend(&added);
                lease.own += hits;
                lease.confirmed = lease.requested;
            }
            0 => {}
            _ => *lease = Lease::default(),
        }
    }

    fn give_back(&mut self, name: &str, lease: &mut Lease) {
        let left = std::mem::take(&mut lease.left);
        let numbers = [left.len(), lease.own].map(|number| number.to_string());
        let confirmed = lease.confirmed.to_string();
        let fixed = ["EVAL", RETURN_HITS, "2", "c", "{c}:leases", &numbers[0], &numbers[1], name, &confirmed];
        self.ask(&fixed);
        lease.own = lease.own.saturating_sub(left.len());
        if self.count() < self.counter.len() {
            assert!(left.is_subset(&self.counter), "hits that were lost are returned");
            self.counter.retain(|hit| !left.contains(hit));
        }
        assert_eq!(self.count(), self.counter.len());
    }

    fn count(&self) -> usize {
        let text = self.server.text(NOW, b"c").unwrap_or_else(|| b"0".to_vec());
        String::from_utf8(text).expect("digits").parse().expect("no counter is negative")
    }

    fn lose(&mut self) {
        match self.saved.take() {
            Some((snapshot, hits)) => {
                self.server.restore(&snapshot);
                self.counter = hits;
            }
            None if self.rng.bool() => self.saved = Some((self.server.snapshot(), self.counter.clone())),
            None => {
                self.server.flush_all();
                self.counter.clear();
            }
        }
    }
}

#[test]
fn a_grant_ends_what_was_lost_before_and_lost_hits_are_never_returned() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        let mut leases = [Lease::default(), Lease::default()];
        for _ in 0..100 {
            let at = world.rng.usize(..2);
            let (name, lease) = (["1", "2"][at], &mut leases[at]);
            match world.rng.u8(..12) {
                0..5 => world.renew(name, lease),
                5..8 => drop(lease.left.pop_first()),
                8 | 9 if !lease.left.is_empty() => world.give_back(name, lease),
                10 => {
                    let hit = world.new_hits(1);
                    world.ask(&["INCRBY", "c", "1"]);
                    world.counter.extend(hit);
                }
                11 => world.lose(),
                _ => {}
            }
        }
    }
}
