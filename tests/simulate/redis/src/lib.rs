//! A Redis server by its own rules, without sockets and without a clock: bytes in, bytes out, the time as an argument.
//!
//! The simulator runs the project's stores against it. It executes the commands that the project sends and the project's own
//! Lua scripts, and has the faults that a real server has. Nothing in it depends on the machine: the same calls give
//! the same bytes. `tests/real.rs` compares it with a real `redis-server`.
//!
//! What differs on purpose: `maxmemory` is a number of keys instead of bytes; `PUBLISH` does not reach the other nodes of a
//! cluster; errors of scripts do not name their line; only RESP version 2.
//!
//! ```
//! # use simulated_redis::{Config, Server};
//! let mut server = Server::new(Config::default());
//! let connection = server.connect();
//! let mut replies = Vec::new();
//! server.receive(1_800_000_000_000_000, connection, b"INCRBY hits 3\r\n", &mut replies);
//! assert_eq!(replies, b":3\r\n");
//! ```

#![expect(clippy::expect_used, reason = "invariants, in tests")]
#![expect(clippy::unnecessary_wraps, reason = "all commands have the type of the table's functions")]

pub mod cluster;
mod commands;
mod keyspace;
mod resp;
mod scripts;
mod sorted_set;
mod state;

use std::{cell::RefCell, collections::BTreeMap, mem, rc::Rc};

pub use cluster::Cluster;
use commands::{Command, Run};
use keyspace::Keyspace;
pub use keyspace::Shortened;
use resp::Reply;
use scripts::Scripts;
use state::{ScriptState, Sender, State};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(u64);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Default, Debug)]
pub struct Config {
    /// The user and the password; without them no `AUTH` is needed.
    pub login: Option<(String, String)>,
    /// The seed of eviction.
    pub seed: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    Master,
    Replica {
        of: Address,
    },
    /// Knows the masters by name, and no keys.
    Sentinel {
        masters: BTreeMap<String, Address>,
    },
}

/// A condition in which a server refuses commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    Loading,
    /// A replica without its master, with `replica-serve-stale-data no`.
    MasterDown,
    /// A script runs for too long.
    Busy,
    /// Refuses commands that grow the data.
    OutOfMemory,
    /// Refuses writes, because the last snapshot could not be saved.
    WritesDisabled,
    /// Refuses writes, because too few replicas are connected.
    NoReplicas,
}

/// What happens to keys above the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// `noeviction`: commands that grow the data are refused.
    None,
    /// `allkeys-random`
    Random,
    /// `volatile-ttl`
    FirstToExpire,
}

/// All data of a server at one time.
#[derive(Clone, Debug)]
pub struct Snapshot(Vec<Keyspace>);

/// A write of a master, for its replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    now: u64,
    database: usize,
    words: Vec<Box<[u8]>>,
}

/// One server. Knows nothing of real time.
pub struct Server {
    config: Config,
    state: Rc<RefCell<State>>,
    scripts: Scripts,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    counts: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Connection {
    /// The bytes of an incomplete command.
    pending: Vec<u8>,
    database: usize,
    is_logged_in: bool,
    is_asking: bool,
    is_closing: bool,
}

impl Server {
    pub fn new(config: Config) -> Self {
        let state = Rc::new(RefCell::new(State::new(config.seed)));
        let scripts = Scripts::new(&state);
        Self {
            config,
            state,
            scripts,
            connections: BTreeMap::new(),
            next_connection: 0,
            counts: BTreeMap::new(),
        }
    }

    pub fn connect(&mut self) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections
            .insert(id, Connection { is_logged_in: self.config.login.is_none(), ..Connection::default() });
        id
    }

    pub fn disconnect(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.state.borrow_mut().disconnect(id);
    }

    /// False after `QUIT`, a protocol error or a restart: the server has closed the connection.
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| !connection.is_closing)
    }

    /// Runs the commands that these bytes complete, at a time in microseconds since 1970, and appends their replies.
    pub fn receive(&mut self, now: u64, id: ConnectionId, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut pending = mem::take(&mut connection.pending);
        self.state.borrow_mut().now = now;
        if pending.is_empty() {
            let read = self.run_all(id, bytes, out);
            pending.extend_from_slice(&bytes[read..]);
        } else {
            pending.extend_from_slice(bytes);
            let read = self.run_all(id, &pending, out);
            pending.drain(..read);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.pending = pending;
        }
    }

    /// Messages for other connections than those that caused them, in order.
    pub fn take_pushes(&mut self) -> Vec<(ConnectionId, Vec<u8>)> {
        mem::take(&mut self.state.borrow_mut().pushes)
    }

    /// How often clients have sent each command.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Runs the complete commands, and returns the number of their bytes.
    fn run_all(&mut self, id: ConnectionId, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let mut read = 0;
        while self.is_open(id) && read < bytes.len() {
            match resp::command(&bytes[read..]) {
                Ok(Some((words, length))) => {
                    if !words.is_empty() {
                        self.run(id, &words).write(out);
                    }
                    read += length;
                }
                Ok(None) => break,
                Err(error) => {
                    Reply::error(error).write(out);
                    self.connection(id).is_closing = true;
                }
            }
        }
        read
    }

    fn run(&mut self, id: ConnectionId, words: &[&[u8]]) -> Reply {
        let (name, arguments) = (words[0], &words[1..]);
        let command = Command::named(name);
        let is_sentinel = matches!(self.state.borrow().role, Role::Sentinel { .. });
        let Some(command) = command.filter(|command| !is_sentinel || command.is_of_sentinels()) else {
            return Reply::Error(unknown(name, arguments));
        };
        if !command.accepts(words.len()) {
            let name = command.name.to_ascii_lowercase();
            return Reply::Error(format!("ERR wrong number of arguments for '{name}' command"));
        }
        *self.counts.entry(command.name).or_default() += 1;
        let connection = self.connection(id);
        let is_asking = mem::take(&mut connection.is_asking);
        let database = connection.database;
        if command.needs_login() && !connection.is_logged_in {
            return Reply::error("NOAUTH Authentication required.");
        }
        {
            let state = &mut *self.state.borrow_mut();
            state.select(database);
            state.sweep();
            if let Some(error) = state.refuses(command, arguments, Sender::Client { is_asking }) {
                return Reply::Error(error);
            }
            if !command.runs_while_subscribed() && state.subscriptions_of(id) > 0 {
                let name = command.name.to_ascii_lowercase();
                return Reply::Error(format!(
                    "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
                ));
            }
        }
        let outcome = match command.run {
            Run::Keys(_) | Run::Server(_) => self.state.borrow_mut().run(command, arguments),
            Run::Connection(run) => run(self, id, arguments),
            Run::Script => {
                let mut state = self.state.borrow_mut();
                state.script = ScriptState { is_asking, has_written: false };
                let refusal = state.refusal.filter(|refusal| *refusal == Refusal::MasterDown);
                drop(state);
                self.scripts.run(command.name == "EVAL", arguments, refusal)
            }
        };
        outcome.unwrap_or_else(Reply::Error)
    }

    fn connection(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("a command comes from an open connection")
    }
}

/// Faults, and what the simulator sees.
impl Server {
    /// Loses all keys, as by `FLUSHALL` of an operator.
    pub fn flush_all(&mut self) {
        let mut state = self.state.borrow_mut();
        state.clear();
        state.record_flush();
    }

    /// Loses connections, scripts and all keys.
    pub fn restart_empty(&mut self) {
        self.state.borrow_mut().clear();
        self.close_all();
        self.scripts.forget();
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.state.borrow().databases().to_vec())
    }

    /// Restarts with the keys of an earlier time. Those that have expired since are gone.
    pub fn restart_from(&mut self, snapshot: &Snapshot) {
        self.restart_empty();
        self.state.borrow_mut().replace_data(snapshot.0.clone());
    }

    /// Closes all connections.
    pub fn close_all(&mut self) {
        let all = mem::take(&mut self.connections);
        let mut state = self.state.borrow_mut();
        for id in all.keys() {
            state.disconnect(*id);
        }
    }

    pub fn set_role(&mut self, role: Role) {
        self.state.borrow_mut().role = role;
    }

    pub fn role(&self) -> Role {
        self.state.borrow().role.clone()
    }

    pub fn refuse(&mut self, refusal: Option<Refusal>) {
        self.state.borrow_mut().refusal = refusal;
    }

    /// Bounds the number of keys of all databases.
    pub fn bound_keys(&mut self, most: usize, eviction: Eviction) {
        self.state.borrow_mut().max_keys = Some((most, eviction));
    }

    /// The number of keys that were evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.state.borrow().evicted
    }

    /// The strings that have expired since the last call, with their values.
    pub fn take_expired(&mut self) -> Vec<(Box<[u8]>, Vec<u8>)> {
        self.state.borrow_mut().take_expired()
    }

    /// The keys whose expiry was brought forward since the last call, with the milliseconds of both.
    pub fn take_shortened(&mut self) -> Vec<Shortened> {
        self.state.borrow_mut().take_shortened()
    }

    /// The keys that were evicted since the last call.
    pub fn take_evicted(&mut self) -> Vec<(Box<[u8]>, Evicted)> {
        mem::take(&mut self.state.borrow_mut().evicted_keys)
    }

    /// The strings of database 0 at a time in microseconds since 1970, with the millisecond of their expiry.
    pub fn texts(&self, now: u64) -> Vec<Text> {
        self.state.borrow().databases()[0].texts(now / 1000)
    }

    /// The string of a key, whatever the server refuses.
    pub fn text(&self, now: u64, key: &[u8]) -> Option<Vec<u8>> {
        self.state.borrow().databases()[0].text(key, now / 1000).map(<[u8]>::to_vec)
    }

    /// A field of the hash of a key, whatever the server refuses.
    pub fn field(&self, now: u64, key: &[u8], field: &[u8]) -> Option<Vec<u8>> {
        self.state.borrow().databases()[0].field(key, field, now / 1000).map(<[u8]>::to_vec)
    }

    /// Deletes a key, as an operator does.
    pub fn delete(&mut self, key: &[u8]) {
        self.state.borrow_mut().delete(key);
    }

    /// The number of keys, of which some may have expired.
    pub fn keys(&self) -> usize {
        self.state.borrow().keys()
    }

    /// The sorted sets that have not expired at a time in microseconds, with the members in order and their scores.
    pub fn sorted_sets(&self, now: u64) -> Vec<SortedMembers> {
        self.state.borrow().sorted_sets(now)
    }

    /// The node's view of its cluster; `None` if the server is in none.
    pub fn set_cluster(&mut self, cluster: Option<Cluster>) {
        self.state.borrow_mut().cluster = cluster;
    }

    /// Changes the node's view of its cluster.
    pub fn cluster(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut state = self.state.borrow_mut();
        change(state.cluster.as_mut().expect("the server is a node of a cluster"));
    }

    /// Reads the node's view of its cluster.
    pub fn look_at_cluster(&self, look: impl FnOnce(&Cluster)) {
        look(self.state.borrow().cluster.as_ref().expect("the server is a node of a cluster"));
    }

    /// Logs the writes from now on, for [`take_writes`](Self::take_writes).
    pub fn log_writes(&mut self) {
        self.state.borrow_mut().log.get_or_insert_default();
    }

    /// Logs no writes from now on: the server is no master.
    pub fn stop_logging(&mut self) {
        self.state.borrow_mut().log = None;
    }

    /// The writes since the last call, which replicas [apply](Self::apply) in this order, or lose.
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.state.borrow_mut().log.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Runs a write of the master, of which this server is a replica.
    pub fn apply(&mut self, write: &Write) {
        self.state.borrow_mut().apply(write);
    }

    /// Becomes a replica of a master with these data.
    pub fn copy(&mut self, master: &Self) {
        self.restore(&master.snapshot());
    }

    /// Has these data from now on. Connections stay.
    pub fn restore(&mut self, data: &Snapshot) {
        self.state.borrow_mut().replace_data(data.0.clone());
    }

    /// Removes the keys of a slot, to move them to another node. The first `most` of them.
    pub fn take_keys(&mut self, slot: u16, most: usize) -> Vec<MovedKey> {
        self.state.borrow_mut().take_keys(slot, most)
    }

    pub fn put_keys(&mut self, keys: Vec<MovedKey>) {
        self.state.borrow_mut().put_keys(keys);
    }
}

/// The name of a sorted set, and its members with their scores.
pub type SortedMembers = (Box<[u8]>, Vec<(Box<[u8]>, f64)>);

/// The value of a key that was evicted.
#[derive(Debug)]
pub enum Evicted {
    Text(Vec<u8>),
    /// The members of a sorted set in order, and their scores.
    Sorted(Vec<(Box<[u8]>, f64)>),
    /// The fields of a hash.
    Hash(Vec<(Box<[u8]>, Vec<u8>)>),
    Other,
}

/// A key, its string, and the millisecond of its expiry.
pub type Text = (Box<[u8]>, Vec<u8>, Option<u64>);

/// A key of a cluster's slot that moves to another node.
#[derive(Clone, Debug)]
pub struct MovedKey {
    key: Box<[u8]>,
    entry: keyspace::Entry,
}

impl Refusal {
    fn text(self) -> &'static str {
        match self {
            Self::Loading => "LOADING Redis is loading the dataset in memory",
            Self::MasterDown => {
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
            }
            Self::Busy => {
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::WritesDisabled => {
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error."
            }
            Self::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
        }
    }
}

/// The error about an unknown command repeats its first words.
fn unknown(name: &[u8], arguments: &[&[u8]]) -> String {
    let shown: Vec<_> = arguments.iter().map(|word| format!("'{}'", word.escape_ascii())).collect();
    let (name, shown) = (name.escape_ascii(), shown.join(" "));
    format!("ERR unknown command '{name}', with args beginning with: {shown} ")
}
