//! The simulated server against a real one: the same random commands at the same times, and the same replies.
//!
//! The real server's clock stands still (Debian's `faketime`), and the test moves it.

#![expect(clippy::expect_used, reason = "tests fail by it")]

mod commands;
mod holds;
mod server;

use std::{collections::BTreeSet, env};

use commands::{Generator, exists};
use fastrand::Rng;
use server::{Real, Reply, Simulated};
use simulated_redis::{Address, Cluster, Refusal, Role};

/// Commands of a sequence, after which both servers are emptied.
const SEQUENCE: usize = 250;
const SEQUENCES: u64 = 30;
const SEQUENCES_DEEP: u64 = 120;

fn is_deep() -> bool {
    env::var_os("TOLLGATE_TEST_DEEP").is_some()
}

#[test]
fn replies_to_random_commands_are_those_of_a_real_server() {
    let (mut real, mut simulated) = (Real::start(&[]), Simulated::start());
    let seed =
        env::var("TOLLGATE_TEST_SEED").ok().map(|seed| seed.parse().expect("TOLLGATE_TEST_SEED is a number"));
    let seeds = seed.map_or(1..=if is_deep() { SEQUENCES_DEEP } else { SEQUENCES }, |seed: u64| seed..=seed);
    let (mut commands, mut errors, mut scripts) = (0, 0, 0);
    for seed in seeds {
        let mut random = Rng::with_seed(seed);
        for words in [&[&b"FLUSHALL"[..]][..], &[b"SCRIPT", b"FLUSH"]] {
            assert_eq!(real.ask(words), simulated.ask(real.now(), words));
        }
        let mut generator = Generator::new(&mut random);
        let mut trace = Vec::new();
        for number in 0..SEQUENCE {
            if generator.random.u8(..8) == 0 {
                real.move_clock(generator.step());
                // Both remove what has expired, before the clock may be set back.
                let words = exists();
                let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
                assert_eq!(real.ask(&words), simulated.ask(real.now(), &words), "seed {seed}: existing keys");
            }
            let command = generator.next();
            let words: Vec<&[u8]> = command.iter().map(|word| &**word).collect();
            trace.push(shown(&words));
            let expected = real.ask(&words);
            let reply = simulated.ask(real.now(), &words);
            assert!(
                agree(&words, &reply, &expected),
                "seed {seed}, command {number} at {}: expected {expected}, got {reply}\nrepeat: TOLLGATE_TEST_SEED={seed}\n{}",
                real.now(),
                trace[trace.len().saturating_sub(12)..].join("\n"),
            );
            commands += 1;
            errors += u32::from(matches!(expected, Reply::Error(_)));
            scripts += u32::from(words[0].starts_with(b"EVAL"));
        }
    }
    println!("{commands} commands, {scripts} of them scripts, {errors} errors");
    assert!(seed.is_some() || errors < commands / 3, "{errors} of {commands} commands fail");
}

/// A condition in which a server refuses some commands.
#[derive(Clone, Copy, Debug)]
enum Condition {
    OutOfMemory,
    NoReplicas,
    Replica,
    MasterDown,
}

const CONDITIONS: [Condition; 4] =
    [Condition::OutOfMemory, Condition::NoReplicas, Condition::Replica, Condition::MasterDown];

impl Condition {
    /// Begins or ends on both servers.
    fn set(self, begins: bool, real: &mut Real, simulated: &mut Simulated) {
        let config = |real: &mut Real, name: &[u8], value: &[u8]| {
            assert_eq!(real.ask(&[b"CONFIG", b"SET", name, value]), Reply::Status("OK".to_owned()));
        };
        let server = &mut simulated.server;
        let refusal = match self {
            Self::OutOfMemory => Refusal::OutOfMemory,
            Self::NoReplicas => Refusal::NoReplicas,
            Self::Replica | Self::MasterDown => Refusal::MasterDown,
        };
        match self {
            Self::OutOfMemory => config(real, b"maxmemory", if begins { b"1" } else { b"0" }),
            Self::NoReplicas => config(real, b"min-replicas-to-write", if begins { b"1" } else { b"0" }),
            Self::Replica | Self::MasterDown => {
                let is_stale = begins && matches!(self, Self::MasterDown);
                config(real, b"replica-serve-stale-data", if is_stale { b"no" } else { b"yes" });
                // Nobody listens there.
                let master: [&[u8]; 2] = if begins { [b"127.0.0.1", b"1"] } else { [b"NO", b"ONE"] };
                real.ask(&[b"REPLICAOF", master[0], master[1]]);
                let of = Address { host: "127.0.0.1".to_owned(), port: 1 };
                server.set_role(if begins { Role::Replica { of } } else { Role::Master });
            }
        }
        server.refuse(Some(refusal).filter(|_| begins && !matches!(self, Self::Replica)));
    }
}

#[test]
fn a_server_that_refuses_commands_refuses_the_same_ones_as_a_real_server() {
    let (mut real, mut simulated) = (Real::start(&[]), Simulated::start());
    let mut random = Rng::with_seed(7);
    let mut generator = Generator::new(&mut random);
    let rounds = if is_deep() { 12 } else { 4 };
    for (round, condition) in CONDITIONS.iter().cycle().take(rounds).enumerate() {
        for words in [&[&b"FLUSHALL"[..]][..], &[b"SCRIPT", b"FLUSH"]] {
            assert_eq!(real.ask(words), simulated.ask(real.now(), words));
        }
        let mut refused = 0;
        for number in 0..300 {
            if number == 100 || number == 250 {
                condition.set(number == 100, &mut real, &mut simulated);
            }
            let command = generator.next();
            let words: Vec<&[u8]> = command.iter().map(|word| &**word).collect();
            let (expected, reply) = (real.ask(&words), simulated.ask(real.now(), &words));
            assert!(
                agree(&words, &reply, &expected),
                "round {round}, command {number}, {condition:?}: {}: expected {expected}, got {reply}",
                shown(&words)
            );
            let codes = ["OOM", "NOREPLICAS", "READONLY", "MASTERDOWN"];
            refused += u32::from(
                matches!(&reply, Reply::Error(error) if codes.iter().any(|code| error.starts_with(code))),
            );
        }
        assert!(refused > 20, "{condition:?}: {refused} refused");
    }
}

/// Two masters, of which the second does not run. The first has the lower half of the slots.
#[test]
fn a_node_of_a_cluster_redirects_as_a_real_one() {
    let nodes = "0000000000000000000000000000000000000000 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-8191 \
         [5061->-0000000000000000000000000000000000000001] [12182-<-0000000000000000000000000000000000000001]\n\
         0000000000000000000000000000000000000001 127.0.0.1:7002@17002 master - 0 0 2 connected 8192-16000\n\
         vars currentEpoch 2 lastVoteEpoch 0\n";
    let mut real = Real::start(&[("nodes.conf", nodes)]);
    let mut simulated = Simulated::start();
    let address = |port| Address { host: "127.0.0.1".to_owned(), port };
    let mut cluster = Cluster::even(&[address(real.port), address(7002)], 0);
    cluster.migrate(5061, 1);
    cluster.import(12182, 1);
    for slot in 16001..16384 {
        cluster.set_owner(slot, None);
    }
    simulated.server.set_cluster(Some(cluster));
    // Slots 866, 5061 (which moves away), 12182 (which moves here), 11058, and 16174 without an owner.
    let keys: [&[u8]; 8] =
        [b"hello", b"bar", b"{bar}b", b"foo", b"{foo}b", b"somekey", b"{hello}b", b"key63"];
    let script = b"return redis.call('GET', ARGV[1])";
    let mut random = Rng::with_seed(3);
    let mut seen = BTreeSet::new();
    for _ in 0..3000 {
        let mut key = || keys[random.usize(..keys.len())];
        let (one, other) = (key(), key());
        let words: Vec<&[u8]> = match random.u8(..9) {
            0 => vec![b"INCRBY", one, b"1"],
            1 => vec![b"GET", one],
            2 => vec![b"DEL", one, other],
            3 => vec![b"MGET", one, other],
            4 | 5 => vec![b"ASKING"],
            6 => vec![b"EVAL", script, b"1", one, other],
            7 => vec![b"EVAL", b"return 1", b"2", one, other],
            _ => vec![b"CLUSTER", b"KEYSLOT", one],
        };
        let (expected, reply) = (real.ask(&words), simulated.ask(real.now(), &words));
        if let Reply::Error(error) = &expected {
            seen.insert(error.split(' ').next().unwrap_or_default().to_owned());
        }
        let is_redirection = matches!(&expected, Reply::Error(error) if error.starts_with(['M', 'A']));
        assert!(
            if is_redirection { reply == expected } else { agree(&words, &reply, &expected) },
            "{}: expected {expected}, got {reply}",
            shown(&words)
        );
    }
    let codes: Vec<&str> = seen.iter().map(String::as_str).collect();
    assert_eq!(codes, ["ASK", "CLUSTERDOWN", "CROSSSLOT", "ERR", "MOVED", "TRYAGAIN"]);
    let words: [&[u8]; 2] = [b"CLUSTER", b"SLOTS"];
    assert_eq!(simulated.ask(real.now(), &words), real.ask(&words));
}

/// Errors agree by their first word. Sets, and hashes that are not small, have no order.
fn agree(words: &[&[u8]], reply: &Reply, expected: &Reply) -> bool {
    match (reply, expected) {
        (Reply::Error(one), Reply::Error(other)) => one.split(' ').next() == other.split(' ').next(),
        (Reply::List(_), Reply::List(_)) if [&b"SMEMBERS"[..], b"KEYS"].contains(&words[0]) => {
            reply.sorted() == expected.sorted()
        }
        (Reply::List(one), Reply::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| agree(words, one, other))
        }
        _ => reply == expected,
    }
}

fn shown(words: &[&[u8]]) -> String {
    let words = words
        .iter()
        .map(|word| if word.len() > 1000 { "…".to_owned() } else { word.escape_ascii().to_string() });
    words.collect::<Vec<_>>().join(" ")
}
