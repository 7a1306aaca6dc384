//! The simulated servers of Redis, and their connections to the network.

use std::collections::{BTreeMap, BTreeSet};

use simulated_redis::{Config, ConnectionId, Evicted, Eviction, Refusal, Role, Server, SortedMembers, Text};

use crate::{
    machine::PORT,
    network::{Link, Network},
    topology::{Shard, Topology},
    world::{Event, Micros},
};

/// The time that a server takes for a packet, and for each of its bytes in thousandths of a microsecond.
const PACKET: Micros = 3;
const BYTE_NANOS: u64 = 4;

impl Traffic {
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            sent: self.sent - before.sent,
            pushes: self.pushes - before.pushes,
            pushed: self.pushed - before.pushed,
            busy: self.busy - before.busy,
        }
    }
}

pub struct Servers {
    pub topology: Topology,
    /// By node.
    pub data: Vec<Server>,
    pub nodes: Vec<Node>,
    pub shards: Vec<Shard>,
    /// The slots that move, and their new shards.
    pub moving: BTreeMap<u16, usize>,
    /// The slots that have moved.
    pub moved: BTreeSet<u16>,
    began: u64,
    /// How far their clocks were set back.
    pub behind: u64,
    pub traffic: Traffic,
}

/// What has passed between all clients and servers.
#[derive(Clone, Copy, Default)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
    /// Messages to subscribers.
    pub pushes: u64,
    pub pushed: u64,
    /// The time for which a server of the cost of the simulation was busy.
    pub busy: Micros,
}

/// What a server is beside its data.
#[derive(Default)]
pub struct Node {
    links: BTreeMap<ConnectionId, usize>,
    busy_until: Micros,
    frozen_until: Micros,
    pub down_until: Micros,
}

/// What is held of a counter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Held {
    /// The sum that the records have.
    pub sum: u64,
    /// What each of its members holds.
    pub members: BTreeMap<String, u64>,
}

/// What each member of a set of holds holds, as `id:part:held`.
fn held_by(members: &[(Box<[u8]>, f64)]) -> BTreeMap<String, u64> {
    let held = |(member, _): &(Box<[u8]>, f64)| {
        let member = std::str::from_utf8(member).ok()?;
        Some((member.to_owned(), member.rsplit_once(':')?.1.parse().ok()?))
    };
    members.iter().filter_map(held).collect()
}

/// A counter in Redis: its name, its value, and the second at which it expires.
pub struct Stored {
    pub name: String,
    pub value: i64,
    pub expires: Option<u64>,
}

impl Servers {
    pub fn new(topology: Topology, began: u64, seed: u64) -> Self {
        let server = |node| Server::new(Config { seed: seed.wrapping_add(node as u64), ..Config::default() });
        let mut data: Vec<Server> = (0..topology.nodes()).map(server).collect();
        let nodes = (0..topology.nodes()).map(|_| Node::default()).collect();
        let shards = Shard::all(topology, &mut data);
        let mut servers = Self {
            topology,
            data,
            nodes,
            shards,
            moving: BTreeMap::new(),
            moved: BTreeSet::new(),
            began,
            behind: 0,
            traffic: Traffic::default(),
        };
        servers.announce();
        servers
    }

    fn node_of(link: &Link) -> usize {
        usize::from(link.port - PORT)
    }

    /// The time of day of the servers.
    fn time(&self, now: Micros) -> u64 {
        self.began + now - self.behind
    }

    /// A connection's first packet.
    pub fn open(&mut self, network: &Network, link: &Link) {
        let now = network.world.now();
        let number = Self::node_of(link);
        let node = &mut self.nodes[number];
        if now < node.frozen_until {
            // The kernel accepts it.
            network.world.at(node.frozen_until, Event::Open(link.number));
            return;
        }
        let is_up = now >= node.down_until;
        if is_up {
            let connection = self.data[number].connect();
            node.links.insert(connection, link.number);
            link.lock().connection = Some(connection);
        }
        network.world.at(now + network.delay(link.process), Event::Opened(link.number, is_up));
    }

    /// The strings that have expired since the last call, with their values, and the keys that were evicted, with what they
    /// counted or held.
    pub fn take_lost(&mut self) -> [Vec<(String, u64)>; 2] {
        // The state of a limit without a fixed window is no number.
        let hits = |value: &[u8]| integer(value).and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
        let text = |name: Box<[u8]>| String::from_utf8(name.into()).ok();
        let named = |(name, value): (Box<[u8]>, Vec<u8>)| Some((text(name)?, hits(&value)));
        let gone = |(name, value): (Box<[u8]>, Evicted)| match value {
            Evicted::Text(value) => vec![(name, hits(&value))],
            Evicted::Sorted(members) => vec![(name, held_by(&members).values().sum())],
            // The sums of counters are gone with the records.
            Evicted::Hash(fields) => {
                let sums = fields.iter().map(|(set, value)| (set.clone(), hits(value)));
                sums.chain([(name, 0)]).collect()
            }
            Evicted::Other => vec![(name, 0)],
        };
        let masters: BTreeSet<usize> = self.shards.iter().map(|shard| shard.master).collect();
        let (mut expired, mut evicted) = (Vec::new(), Vec::new());
        for (number, server) in self.data.iter_mut().enumerate() {
            let (late, lost) = (server.take_expired(), server.take_evicted());
            if masters.contains(&number) {
                expired.extend(late.into_iter().filter_map(named));
                let lost = lost.into_iter().flat_map(gone);
                evicted.extend(lost.filter_map(|(name, hits)| Some((text(name)?, hits))));
            }
        }
        [expired, evicted]
    }

    /// The keys of masters whose expiry was brought forward since the last call.
    pub fn take_shortened(&mut self) -> Vec<(String, u64, u64)> {
        // What a replica takes over from its master may end earlier than what it had.
        let masters: BTreeSet<usize> = self.shards.iter().map(|shard| shard.master).collect();
        let taken = self.data.iter_mut().map(Server::take_shortened).enumerate();
        let all = taken.filter(|(number, _)| masters.contains(number)).flat_map(|(_, taken)| taken);
        let named =
            all.map(|(key, before, after)| (String::from_utf8_lossy(&key).into_owned(), before, after));
        // A counter of a calendar is kept until its window ends and a minute more, in whole seconds of clocks that differ.
        named.filter(|(key, before, after)| key.ends_with("holds") || after + 2_000 < *before).collect()
    }

    /// Bytes arrive.
    /// Returns the counter in them that is negative now, with its value.
    pub fn receive(&mut self, network: &Network, link: &Link) -> Option<(String, i64)> {
        let now = network.world.now();
        let number = Self::node_of(link);
        if now < self.nodes[number].frozen_until {
            network.world.at(self.nodes[number].frozen_until, Event::ToServer(link.number));
            return None;
        }
        let (connection, is_half_open) = {
            let state = link.lock();
            (state.connection, state.is_half_open)
        };
        let bytes = network.arrive_at_server(link)?;
        let connection = connection.filter(|_| !is_half_open)?;
        network.world.trace(|trace, now| {
            trace.add(now);
            trace.add(link.number as u64);
            trace.add_bytes(&bytes);
            if trace.is_told() {
                trace.tell(now, &link.process, format_args!("-> redis{} {}", link.port, shown(&bytes)));
            }
        });
        let (mut out, time) = (Vec::new(), self.time(now));
        self.data[number].receive(time, connection, &bytes, &mut out);
        if let Some(shard) = self.shards.iter_mut().find(|shard| shard.master == number) {
            shard.follow(now, &mut self.data);
        }
        let cost = PACKET + (bytes.len() + out.len()) as u64 * BYTE_NANOS / 1000;
        let ready = self.nodes[number].busy_until.max(now) + cost;
        self.nodes[number].busy_until = ready;
        self.traffic.received += bytes.len() as u64;
        self.traffic.sent += out.len() as u64;
        self.traffic.busy += cost;
        if network.world.trace(|trace, _| trace.is_told()) {
            let (asked, answered) = (shown(&bytes), shown(&out));
            let who = format!("redis{}", link.port);
            network.world.tell(&who, format_args!("-> {} {answered} (to {asked})", link.process));
        }
        reply(network, link, out, ready);
        for (to, message) in self.data[number].take_pushes() {
            self.traffic.pushes += 1;
            self.traffic.pushed += message.len() as u64;
            if let Some(link) = self.nodes[number].links.get(&to) {
                reply(network, &network.link(*link), message, ready);
            }
        }
        if !self.data[number].is_open(connection) {
            network.close_by_server(link);
        }
        let name = named(&bytes)?;
        let value = integer(&self.data[number].text(time, name.as_bytes())?).filter(|value| *value < 0)?;
        Some((name.to_owned(), value))
    }

    /// The client has closed a connection.
    pub fn closed(&mut self, link: &Link) {
        if let Some(connection) = link.lock().connection.take() {
            let number = Self::node_of(link);
            self.nodes[number].links.remove(&connection);
            self.data[number].disconnect(connection);
        }
    }

    /// The number of connections of processes.
    pub fn connections(&self) -> usize {
        self.nodes.iter().map(|node| node.links.len()).sum()
    }

    /// Closes all connections of a server, which ends.
    pub fn close_all(&mut self, network: &Network, number: usize) {
        for link in std::mem::take(&mut self.nodes[number].links).into_values() {
            let link = network.link(link);
            link.lock().connection = None;
            network.reset(&link);
        }
        self.data[number].close_all();
    }

    /// The master of a shard, or of all, as actions name them.
    fn masters(&self, of: usize) -> usize {
        self.shards[of % self.shards.len()].master
    }

    pub fn freeze(&mut self, shard: usize, until: Micros) {
        let master = self.masters(shard);
        self.nodes[master].frozen_until = until;
    }

    pub fn refuse(&mut self, shard: usize, refusal: Option<Refusal>) {
        let master = self.masters(shard);
        self.data[master].refuse(refusal);
    }

    /// All servers do what they should again, unless they are down.
    pub fn recover(&mut self) {
        for (number, server) in self.data.iter_mut().enumerate() {
            server.refuse(None);
            if self.shards.iter().any(|shard| shard.master == number) {
                server.set_role(Role::Master);
            }
        }
    }

    pub fn set_read_only(&mut self, shard: usize) {
        let of = simulated_redis::Address { host: "127.0.0.1".to_owned(), port: 1 };
        let master = self.masters(shard);
        self.data[master].set_role(Role::Replica { of });
    }

    /// Bounds the keys of each master to half of those that it has, until [`unbound_keys`](Self::unbound_keys).
    pub fn bound_keys(&mut self, eviction: Eviction) {
        for shard in &self.shards {
            let server = &mut self.data[shard.master];
            server.bound_keys(server.keys() / 2, eviction);
        }
    }

    /// Also of those that were masters.
    pub fn unbound_keys(&mut self) {
        self.data.iter_mut().for_each(|server| server.bound_keys(usize::MAX, Eviction::None));
    }

    pub fn flush(&mut self) {
        for shard in &self.shards {
            self.data[shard.master].flush_all();
        }
    }

    /// What is held of each counter, by its name.
    pub fn held(&self, now: Micros) -> BTreeMap<String, Held> {
        let time = self.time(now);
        let held = |server: &Server, (name, members): SortedMembers| {
            let name = String::from_utf8(name.into()).ok()?;
            let (base, counter) = name.split_once("holds:")?;
            let (counter, _) = counter.split_once('#')?;
            let sum = server.field(time, format!("{base}holds").as_bytes(), name.as_bytes());
            let sum = sum.and_then(|sum| integer(&sum)).map_or(0, i64::unsigned_abs);
            Some((counter.to_owned(), Held { sum, members: held_by(&members) }))
        };
        let masters = self.shards.iter().map(|shard| &self.data[shard.master]);
        let sets =
            masters.flat_map(|server| server.sorted_sets(time).into_iter().map(move |set| (server, set)));
        sets.filter_map(|(server, set)| held(server, set)).collect()
    }

    /// The value of a counter of any master.
    pub fn counter(&self, now: Micros, name: &str) -> Option<i64> {
        let mut masters = self.shards.iter().map(|shard| &self.data[shard.master]);
        integer(&masters.find_map(|master| master.text(self.time(now), name.as_bytes()))?)
    }

    pub fn delete(&mut self, name: &str) {
        let master = self.shards[self.shard_of(name.as_bytes())].master;
        self.data[master].delete(name.as_bytes());
    }

    /// True if all masters can be reached.
    pub fn are_up(&self, now: Micros) -> bool {
        self.shards.iter().all(|shard| self.nodes[shard.master].down_until <= now)
    }

    /// The counters of all masters.
    pub fn counters(&self, now: Micros) -> Vec<Stored> {
        self.counters_at(self.time(now))
    }

    /// The counters of all masters that have expired, and were not removed yet.
    pub fn expired(&self, now: Micros) -> Vec<Stored> {
        let live: BTreeSet<_> = self.counters(now).into_iter().map(|one| one.name).collect();
        self.counters_at(0).into_iter().filter(|one| !live.contains(&one.name)).collect()
    }

    fn counters_at(&self, time: u64) -> Vec<Stored> {
        let texts = self.shards.iter().flat_map(|shard| self.data[shard.master].texts(time));
        let stored = |(name, value, expires): Text| {
            let name = String::from_utf8(name.into()).ok()?;
            Some(Stored { name, value: integer(&value)?, expires: expires.map(|millis| millis / 1000) })
        };
        texts.filter_map(stored).collect()
    }
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn reply(network: &Network, link: &Link, bytes: Vec<u8>, ready: Micros) {
    if bytes.is_empty() {
        return;
    }
    network.world.trace(|trace, _| trace.add_bytes(&bytes));
    network.reply(link, bytes, ready);
}

/// The first name of a counter in a command.
fn named(bytes: &[u8]) -> Option<&str> {
    let start = bytes.windows(5).position(|five| five == b"sim_k")?;
    let start = start - usize::from(start > 0 && bytes[start - 1] == b'{');
    let rest = &bytes[start..];
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// Bytes of the protocol, without its lengths.
fn shown(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    let words = text.split("\\r\\n").filter(|word| !word.starts_with(['*', '$']) && !word.is_empty());
    let words: Vec<&str> = words.collect();
    let mut line = words.join(" ");
    if line.len() > 300 {
        line.truncate(300);
        line.push('…');
    }
    line
}
