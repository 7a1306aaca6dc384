//! The simulated Redis and its connections to the network.

use std::collections::BTreeMap;

use simulated_redis::{Config, ConnectionId, Refusal, Role, Server, Snapshot, SortedMembers};

use crate::{
    ledger::Counter,
    network::{Link, Network},
    streams,
    world::{Event, Micros},
};

/// The time that a server takes for a packet, and for each of its bytes in thousandths of a microsecond.
const PACKET: Micros = 3;
const BYTE_NANOS: u64 = 4;

pub struct RedisServer {
    pub server: Server,
    began: u64,
    control: ConnectionId,
    links: BTreeMap<ConnectionId, usize>,
    busy_until: Micros,
    refusal: Option<Refusal>,
    pub frozen_until: Micros,
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

impl Held {
    /// A member is `id:part:held`.
    fn of(sum: u64, members: &[(Box<[u8]>, f64)]) -> Self {
        let held = |(member, _): &(Box<[u8]>, f64)| {
            let member = String::from_utf8(member.to_vec()).expect("members are texts");
            let held = member.rsplit(':').next()?.parse().expect("a number");
            Some((member, held))
        };
        Self { sum, members: members.iter().filter_map(held).collect() }
    }
}

impl RedisServer {
    pub fn new(began: u64, seed: u64) -> Self {
        let mut server = Server::new(Config { seed, ..Config::default() });
        streams::plant_in_scripts(&mut server);
        let control = server.connect();
        Self {
            server,
            began,
            control,
            links: BTreeMap::new(),
            busy_until: 0,
            refusal: None,
            frozen_until: 0,
            down_until: 0,
        }
    }

    /// A connection's first packet.
    pub fn open(&mut self, network: &Network, link: &Link) {
        let now = network.world.now();
        if now < self.frozen_until {
            // The kernel accepts it.
            network.world.at(self.frozen_until, Event::Open(link.number));
            return;
        }
        let is_up = now >= self.down_until;
        if is_up {
            let connection = self.server.connect();
            self.links.insert(connection, link.number);
            link.lock().connection = Some(connection);
        }
        network.world.at(now + network.delay(), Event::Opened(link.number, is_up));
    }

    /// The counters that have expired since the last call, with their hits.
    pub fn take_expired(&mut self) -> impl Iterator<Item = (Counter, u64)> {
        let named = |(name, value): (Box<[u8]>, Vec<u8>)| {
            let counter = Counter::named(&String::from_utf8(name.into()).ok()?)?;
            Some((counter, String::from_utf8(value).ok()?.parse().ok()?))
        };
        self.server.take_expired().into_iter().filter_map(named)
    }

    /// Bytes arrive.
    /// Returns the counter in them that is negative now, with its value.
    pub fn receive(&mut self, network: &Network, link: &Link) -> Option<(String, i64)> {
        let now = network.world.now();
        if now < self.frozen_until {
            network.world.at(self.frozen_until, Event::ToServer(link.number));
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
                trace.tell(now, &link.process, format_args!("-> redis {}", shown(&bytes)));
            }
        });
        let mut out = Vec::new();
        self.server.receive(self.began + now, connection, &bytes, &mut out);
        let cost = PACKET + (bytes.len() + out.len()) as u64 * BYTE_NANOS / 1000;
        self.busy_until = self.busy_until.max(now) + cost;
        if network.world.trace(|trace, _| trace.is_told()) {
            let (asked, answered) = (shown(&bytes), shown(&out));
            network.world.tell(&"redis", format_args!("-> {} {answered} (to {asked})", link.process));
        }
        self.reply(network, link, out);
        for (to, message) in self.server.take_pushes() {
            if let Some(number) = self.links.get(&to) {
                self.reply(network, &network.link(*number), message);
            }
        }
        if !self.server.is_open(connection) {
            network.close_by_server(link);
        }
        let name = named(&bytes)?;
        let value = self.counter(now, name).filter(|value| *value < 0)?;
        Some((name.to_owned(), value))
    }

    fn reply(&self, network: &Network, link: &Link, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        network.world.trace(|trace, _| {
            trace.add_bytes(&bytes);
        });
        network.reply(link, bytes, self.busy_until);
    }

    /// The client has closed a connection.
    pub fn closed(&mut self, link: &Link) {
        if let Some(connection) = link.lock().connection.take() {
            self.links.remove(&connection);
            self.server.disconnect(connection);
        }
    }

    /// The number of connections of processes.
    pub fn connections(&self) -> usize {
        self.links.len()
    }

    /// Closes all connections: the server ends.
    pub fn close_all(&mut self, network: &Network) {
        for number in std::mem::take(&mut self.links).into_values() {
            let link = network.link(number);
            link.lock().connection = None;
            network.reset(&link);
        }
        self.server.close_all();
        self.control = self.server.connect();
    }

    pub fn restart(&mut self, network: &Network, data: Option<&Snapshot>) {
        self.close_all(network);
        match data {
            Some(snapshot) => self.server.restart_from(snapshot),
            None => self.server.restart_empty(),
        }
        self.control = self.server.connect();
    }

    pub fn refuse(&mut self, refusal: Option<Refusal>) {
        self.refusal = refusal;
        self.server.refuse(refusal);
    }

    pub fn set_read_only(&mut self, is_read_only: bool) {
        let of = simulated_redis::Address { host: "127.0.0.1".to_owned(), port: 1 };
        self.server.set_role(if is_read_only { Role::Replica { of } } else { Role::Master });
    }

    /// The reply to a command of the simulation, which a server answers that refuses others.
    pub fn ask(&mut self, now: Micros, words: &[&str]) -> String {
        let mut out = Vec::new();
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
        }
        self.server.refuse(None);
        self.server.receive(self.began + now, self.control, command.as_bytes(), &mut out);
        self.server.refuse(self.refusal);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The value of a counter; `None` if there is none.
    pub fn counter(&mut self, now: Micros, name: &str) -> Option<i64> {
        self.ask(now, &["GET", name]).lines().nth(1)?.parse().ok()
    }

    /// What is held of each counter, by its name.
    pub fn held(&mut self, now: Micros) -> BTreeMap<String, Held> {
        let sets = self.server.sorted_sets(self.began + now).into_iter();
        let held = |(name, members): SortedMembers| {
            let name = String::from_utf8(name.into()).ok()?;
            let (base, counter) = name.split_once("holds:")?;
            let (counter, _) = counter.split_once('#')?;
            let sum = self.ask(now, &["HGET", &format!("{base}holds"), &name]);
            let sum = sum.lines().nth(1).and_then(|sum| sum.parse().ok()).unwrap_or(0);
            Some((counter.to_owned(), Held::of(sum, &members)))
        };
        sets.filter_map(held).collect()
    }

    /// The seconds until a key expires; -1 if it does not.
    pub fn expiry(&mut self, now: Micros, name: &str) -> i64 {
        self.ask(now, &["TTL", name]).trim_start_matches(':').trim().parse().unwrap_or(-3)
    }
}

/// The first name of a counter in a command.
fn named(bytes: &[u8]) -> Option<&str> {
    let start = bytes.windows(5).position(|five| five == b"sim_k")?;
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
