//! The servers of a topology: one server, a master with a replica and a sentinel, or the nodes of a cluster. Here masters
//! fail or change places with their replicas, and slots move.

use std::{collections::VecDeque, mem};

use net::{HostPort, ServerAddress};
use redis_store::settings::RedisServers;
use serde::{Deserialize, Serialize};
use simulated_redis::{Address, Cluster, Role, Server, Snapshot, Write, cluster::slot};

use crate::{machine::PORT, network::Network, plan::SECOND, servers::Servers, world::Micros};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Topology {
    Single,
    /// A master, its replica, and a sentinel.
    Sentinel,
    /// Three masters, each with a replica.
    Cluster,
}

const MASTER_NAME: &str = "main";

impl Topology {
    pub fn shards(self) -> usize {
        if self == Self::Cluster { 3 } else { 1 }
    }

    pub fn nodes(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Sentinel => 3,
            Self::Cluster => 6,
        }
    }

    /// The servers as the settings of a replica of the service name them.
    pub fn settings(self) -> RedisServers {
        let at = |node| HostPort { host: "redis".to_owned(), port: address(node).port };
        match self {
            Self::Single => RedisServers::Single(ServerAddress::Tcp(at(0))),
            Self::Sentinel => RedisServers::Sentinel {
                master: MASTER_NAME.to_owned(),
                sentinels: vec![at(2)],
                credentials: None,
            },
            Self::Cluster => RedisServers::Cluster { seeds: (0..3).map(at).collect() },
        }
    }
}

fn address(node: usize) -> Address {
    Address { host: "127.0.0.1".to_owned(), port: PORT + node as u16 }
}

/// A master, and the replica that follows it with a delay.
pub struct Shard {
    pub master: usize,
    follower: Option<usize>,
    /// The replica has all writes but those that it is behind: it may become the master.
    is_synced: bool,
    /// Writes that the replica may not have yet, with their times.
    behind: VecDeque<(Micros, Vec<Write>)>,
}

impl Shard {
    /// The shards, when the simulation begins.
    pub fn all(topology: Topology, servers: &mut [Server]) -> Vec<Self> {
        let count = topology.shards();
        let shard = |master| {
            let follower = (topology != Topology::Single).then_some(master + count);
            Self { master, follower, is_synced: true, behind: VecDeque::new() }
        };
        let shards: Vec<Self> = (0..count).map(shard).collect();
        for Self { master, follower, .. } in &shards {
            if let Some(follower) = *follower {
                servers[*master].log_writes();
                servers[follower].set_role(Role::Replica { of: address(*master) });
            }
        }
        if topology == Topology::Cluster {
            let masters: Vec<Address> = (0..count).map(address).collect();
            for (node, server) in servers.iter_mut().enumerate() {
                server.set_cluster(Some(Cluster::even(&masters, node)));
            }
        }
        shards
    }

    /// Takes the writes that the master has logged.
    pub fn follow(&mut self, now: Micros, servers: &mut [Server]) {
        if self.follower.is_some() {
            let writes = servers[self.master].take_writes();
            if !writes.is_empty() {
                self.behind.push_back((now, writes));
            }
        }
    }

    /// The replica has all writes until `until`.
    fn replicate(&mut self, until: Micros, servers: &mut [Server]) {
        let Some(follower) = self.follower else { return };
        while self.behind.front().is_some_and(|(at, _)| *at <= until) {
            let (_, writes) = self.behind.pop_front().expect("there is one");
            for write in &writes {
                servers[follower].apply(write);
            }
        }
    }

    /// The replica copies its master.
    fn copy(&mut self, servers: &mut [Server]) {
        self.behind.clear();
        self.is_synced = true;
        let Some(follower) = self.follower else { return };
        servers[self.master].take_writes();
        let data = servers[self.master].snapshot();
        servers[follower].restore(&data);
    }
}

impl Servers {
    /// Replicas catch up. Called each second, with less than the longest lag of a failover.
    pub fn catch_up(&mut self, now: Micros) {
        for shard in &mut self.shards {
            shard.replicate(now.saturating_sub(SECOND), &mut self.data);
        }
    }

    /// A master fails, and its replica, which lacks the writes of the last `lag`, becomes the master. Without one that can, the
    /// master comes back.
    pub fn fail_over(&mut self, network: &Network, shard: usize, lag: Micros, until: Micros) {
        let now = network.world.now();
        let failed = self.shards[shard].master;
        self.shards[shard].replicate(now.saturating_sub(lag), &mut self.data);
        self.nodes[failed].down_until = until;
        self.close_all(network, failed);
        self.promote(shard);
    }

    /// A master and its replica change places, if the replica can. Connections stay.
    pub fn switch_over(&mut self, shard: usize) {
        if !self.shards[shard].is_synced {
            return;
        }
        self.shards[shard].replicate(Micros::MAX, &mut self.data);
        self.promote(shard);
        self.rejoin(shard);
    }

    fn promote(&mut self, shard: usize) {
        let Shard { master: old, follower: Some(new), is_synced: true, .. } = self.shards[shard] else {
            return;
        };
        self.shards[shard].behind.clear();
        self.shards[shard].is_synced = false;
        self.shards[shard].master = new;
        self.shards[shard].follower = Some(old);
        self.data[old].stop_logging();
        self.data[old].set_role(Role::Replica { of: address(new) });
        self.data[new].set_role(Role::Master);
        self.data[new].log_writes();
        if self.topology == Topology::Cluster {
            let mut view = None;
            self.data[old].cluster(|cluster| view = Some(cluster.clone()));
            self.data[new].set_cluster(view);
            self.data[old].cluster(|cluster| cluster.set_myself(self.topology.nodes()));
        }
    }

    /// A master that failed is back, as the replica of the new one.
    pub fn rejoin(&mut self, shard: usize) {
        self.shards[shard].copy(&mut self.data);
    }

    /// The sentinel and the nodes of the cluster know the masters.
    pub fn announce(&mut self) {
        match self.topology {
            Topology::Single => {}
            Topology::Sentinel => {
                let masters = [(MASTER_NAME.to_owned(), address(self.shards[0].master))].into();
                self.data[2].set_role(Role::Sentinel { masters });
            }
            Topology::Cluster => {
                for (index, shard) in self.shards.iter().enumerate() {
                    for server in &mut self.data {
                        server.cluster(|cluster| cluster.replace(index, address(shard.master)));
                    }
                }
            }
        }
    }

    /// The shard that owns a key.
    pub fn shard_of(&self, key: &[u8]) -> usize {
        if self.topology == Topology::Cluster { self.owner(slot(key)) } else { 0 }
    }

    fn owner(&self, slot: u16) -> usize {
        let mut owner = None;
        // The views of all masters agree, except while a slot moves.
        self.data[self.shards[0].master].look_at_cluster(|cluster| owner = cluster.owner(slot));
        owner.expect("all slots are served")
    }

    /// A key's slot begins to move to another node, unless it is moving already.
    pub fn begin_to_move(&mut self, key: &[u8], to: usize) {
        let (slot, from) = (slot(key), self.shard_of(key));
        if from != to && !self.moving.contains_key(&slot) {
            self.moving.insert(slot, to);
            let [source, target] = [from, to].map(|shard| self.shards[shard].master);
            self.data[source].cluster(|cluster| cluster.migrate(slot, to));
            self.data[target].cluster(|cluster| cluster.import(slot, from));
            self.move_keys(slot, [from, to], 1);
        }
    }

    fn move_keys(&mut self, slot: u16, [from, to]: [usize; 2], most: usize) {
        let keys = self.data[self.shards[from].master].take_keys(slot, most);
        self.data[self.shards[to].master].put_keys(keys);
        // `MIGRATE` is replicated.
        self.shards[from].copy(&mut self.data);
        self.shards[to].copy(&mut self.data);
    }

    /// A key's slot has moved, with the rest of its keys.
    pub fn end_to_move(&mut self, key: &[u8], to: usize) {
        let (slot, from) = (slot(key), self.shard_of(key));
        if self.moving.get(&slot) != Some(&to) {
            return;
        }
        self.moving.remove(&slot);
        self.moved.insert(slot);
        self.move_keys(slot, [from, to], usize::MAX);
        for server in &mut self.data {
            server.cluster(|cluster| cluster.set_owner(slot, Some(to)));
        }
    }

    pub fn snapshot(&self) -> Vec<Snapshot> {
        self.shards.iter().map(|shard| self.data[shard.master].snapshot()).collect()
    }

    /// All masters restart, with these data or without any, and their replicas copy them.
    pub fn restart(&mut self, network: &Network, data: Option<&[Snapshot]>, until: Micros) {
        let mut shards = mem::take(&mut self.shards);
        for (index, shard) in shards.iter_mut().enumerate() {
            self.close_all(network, shard.master);
            self.nodes[shard.master].down_until = until;
            match data {
                Some(snapshots) => self.data[shard.master].restart_from(&snapshots[index]),
                None => self.data[shard.master].restart_empty(),
            }
            shard.copy(&mut self.data);
        }
        self.shards = shards;
        self.drop_keys_of_others();
    }

    /// A master that restarts drops the keys of slots that have moved away since its snapshot.
    fn drop_keys_of_others(&mut self) {
        for slot in self.moved.clone() {
            let owner = self.owner(slot);
            for shard in (0..self.shards.len()).filter(|shard| *shard != owner) {
                self.data[self.shards[shard].master].take_keys(slot, usize::MAX);
                self.shards[shard].copy(&mut self.data);
            }
        }
    }
}
