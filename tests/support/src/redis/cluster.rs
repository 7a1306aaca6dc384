//! Three masters that share the keys, each with a replica.

use std::time::{Duration, Instant};

use super::{Env, Redis, Reply, TESTER, ask, eventually, free_port, holds, write};

/// The number of slots, fixed by Redis.
const SLOTS: u16 = 16384;
const MASTERS: usize = 3;

/// A running cluster, killed on drop.
pub struct Cluster {
    /// Three masters, then their replicas in the same order, as at the start.
    pub servers: Vec<Redis>,
    /// The port of the first one's cluster bus.
    pub bus: u16,
}

impl Cluster {
    /// Starts a cluster with this `cluster-node-timeout`.
    pub fn start(node_timeout: Duration) -> Self {
        Self::with(node_timeout, &[])
    }

    /// Starts a cluster with more arguments for its servers.
    pub fn with(node_timeout: Duration, args: &[&str]) -> Self {
        let timeout = node_timeout.as_millis().to_string();
        let buses: Vec<_> = (0..2 * MASTERS).map(|_| free_port()).collect();
        let mut servers: Vec<_> = buses
            .iter()
            .map(|bus| {
                let bus = bus.to_string();
                let cluster =
                    ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", &timeout];
                let replica = ["--masteruser", TESTER, "--masterauth", TESTER];
                Redis::prepared(&[&cluster[..], &replica, args].concat())
            })
            .collect();
        let bus = buses[0];
        let nodes: Vec<_> = servers.iter().map(|server| server.port).zip(buses).collect();
        for (index, server) in servers.iter_mut().enumerate() {
            write(&server.dir.path().join("nodes.conf"), &config(index, &nodes));
            server.launch();
        }
        for server in &mut servers {
            server.wait_until_ready();
        }
        let cluster = Self { servers, bus };
        cluster.wait_until_ready();
        cluster
    }

    /// The settings to use it, with one seed of each kind.
    pub fn env(&self) -> Env {
        let seeds = [&self.servers[0], &self.servers[MASTERS]].map(Redis::address);
        vec![
            ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
            ("REDIS_TYPE", "CLUSTER".to_owned()),
            ("REDIS_URL", seeds.join(",")),
        ]
    }

    /// The counter of a key on the master that owns it; 0 if it is missing.
    pub fn counter(&self, key: &str) -> i64 {
        self.owner(slot(key)).counter(key)
    }

    /// All keys of all masters, sorted.
    pub fn keys(&self) -> Vec<String> {
        let masters = self.servers.iter().filter(|server| is_master(server.port));
        let mut keys: Vec<_> = masters.flat_map(Redis::keys).collect();
        keys.sort();
        keys
    }

    /// The master that owns a slot.
    pub fn owner(&self, slot: u16) -> &Redis {
        let port = eventually("the slot has an owner", || self.owner_port(slot));
        self.servers.iter().find(|server| server.port == port).expect("the owner is one of ours")
    }

    /// Kills the owner of a slot and waits until its replica has taken its place. Returns how long that took.
    pub fn fail_over(&mut self, slot: u16) -> Duration {
        let port = self.owner(slot).port;
        let old = self.servers.iter_mut().find(|server| server.port == port).expect("it was just found");
        let start = Instant::now();
        old.kill();
        eventually("the replica owns the slot", || {
            let now = self.owner_port(slot)?;
            holds(now != port, || "the old master".to_owned())?;
            holds(is_master(now), || format!("{now}, which is a replica"))?;
            self.all_say_ok()
        });
        start.elapsed()
    }

    /// Moves a slot with its keys to another master, key by key, as `redis-cli --cluster reshard` does.
    pub fn move_slot(&self, slot: u16, to: &Redis) {
        let from = self.owner(slot);
        let [from_id, to_id] = [from, to].map(|server| server.ask(&["CLUSTER", "MYID"]).to_string());
        let (slot, port) = (slot.to_string(), to.port.to_string());
        to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        loop {
            let keys = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).words();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let to = ["127.0.0.1", &port, &key, "0", "1000", "AUTH2", TESTER, TESTER];
                let moved = from.ask(&[&["MIGRATE"], &to[..]].concat());
                // `NOKEY`: the key expired meanwhile.
                assert!(matches!(moved, Reply::Text(_)), "{moved}");
            }
        }
        for server in [to, from] {
            server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }

    fn owner_port(&self, slot: u16) -> Result<u16, String> {
        let running = self.servers.iter().find(|server| server.process.is_some()).ok_or("none runs")?;
        let Reply::List(ranges) = running.try_ask(&["CLUSTER", "SLOTS"])? else {
            return Err("no list of slots".to_owned());
        };
        // A range: its first and last slot, then the master's address, port and id.
        let owner = ranges.iter().map(Reply::words).find_map(|range| {
            let number = |index: usize| range.get(index)?.parse::<u16>().ok();
            (number(0)? <= slot && slot <= number(1)?).then(|| number(3)).flatten()
        });
        owner.ok_or_else(|| format!("slot {slot} has no owner"))
    }

    fn wait_until_ready(&self) {
        eventually("the cluster is ready", || {
            self.all_say_ok()?;
            for replica in &self.servers[MASTERS..] {
                let role = replica.ask(&["ROLE"]).words();
                holds(role.get(3).is_some_and(|state| state == "connected"), || format!("{role:?}"))?;
            }
            Ok(())
        });
    }

    fn all_say_ok(&self) -> Result<(), String> {
        self.servers.iter().filter(|server| server.process.is_some()).try_for_each(|server| {
            let info = server.try_ask(&["CLUSTER", "INFO"])?.to_string();
            holds(info.contains("cluster_state:ok"), || format!("{info}\n{}", server.log()))
        })
    }
}

fn is_master(port: u16) -> bool {
    ask(port, &["ROLE"]).is_ok_and(|role| role.word().as_deref() == Some("master"))
}

/// The configuration that a node writes once all nodes have met, so that none has to be discovered.
fn config(myself: usize, nodes: &[(u16, u16)]) -> String {
    let id = |index: usize| format!("{:040x}", index + 1);
    let line = |(index, (port, bus)): (usize, &(u16, u16))| {
        let me = if index == myself { "myself," } else { "" };
        let owner = index % MASTERS;
        let rest = if index < MASTERS {
            let [from, to] = [owner, owner + 1].map(|part| part * usize::from(SLOTS) / MASTERS);
            format!("{me}master - 0 0 {} connected {from}-{}", owner + 1, to - 1)
        } else {
            format!("{me}slave {} 0 0 {} connected", id(owner), owner + 1)
        };
        format!("{} 127.0.0.1:{port}@{bus} {rest}\n", id(index))
    };
    let lines: String = nodes.iter().enumerate().map(line).collect();
    format!("{lines}vars currentEpoch {MASTERS} lastVoteEpoch 0\n")
}

/// The slot of a key: CRC-16 (XMODEM) of the content of its first braces, else of the whole key.
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let crc = tag.filter(|tag| !tag.is_empty()).unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[test]
fn slots_are_those_of_redis() {
    // The specification of Redis Cluster gives 0x31C3 for this text.
    assert_eq!(slot("123456789"), 0x31C3);
    assert_eq!(slot("a{123456789}b{c}"), 0x31C3);
    assert_ne!(slot("a{}b"), slot(""));
}
