//! What a server has: its data, its role, its subscriptions. Commands of clients and of scripts run here.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use smallvec::SmallVec;

use crate::{
    ConnectionId, Evicted, Eviction, MovedKey, Refusal, Role, SortedMembers, Write,
    cluster::{Cluster, Route, slot},
    commands::{Call, Command, Outcome, Run},
    keyspace::{Entry, Keyspace, Shortened, Value},
    resp::{Reply, Words},
    sorted_set::SortedSet,
};

/// As redis.conf has them.
pub(crate) const DATABASES: usize = 16;

/// The number of keys that eviction chooses among, as `maxmemory-samples`.
const SAMPLES: usize = 5;

pub(crate) struct State {
    /// Microseconds since 1970.
    pub(crate) now: u64,
    databases: Vec<Keyspace>,
    /// The database of the command that runs.
    selected: usize,
    pub(crate) role: Role,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) max_keys: Option<(usize, Eviction)>,
    pub(crate) evicted: u64,
    /// Until they are taken.
    pub(crate) evicted_keys: Vec<(Box<[u8]>, Evicted)>,
    pub(crate) random: Rng,
    subscriptions: BTreeMap<Box<[u8]>, BTreeSet<ConnectionId>>,
    pub(crate) pushes: Vec<(ConnectionId, Vec<u8>)>,
    /// The writes that no replica has yet, if there is one.
    pub(crate) log: Option<Vec<Write>>,
    /// The script that runs.
    pub(crate) script: ScriptState,
}

/// Who sends a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Client {
        is_asking: bool,
    },
    Script(ScriptState),
    /// The master, which has decided already.
    Master,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ScriptState {
    /// Its caller sent `ASKING` before.
    pub(crate) is_asking: bool,
    /// It is not stopped halfway.
    pub(crate) has_written: bool,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: 0,
            databases: vec![Keyspace::default(); DATABASES],
            selected: 0,
            role: Role::Master,
            refusal: None,
            cluster: None,
            max_keys: None,
            evicted: 0,
            evicted_keys: Vec::new(),
            random: Rng::with_seed(seed),
            subscriptions: BTreeMap::new(),
            pushes: Vec::new(),
            log: None,
            script: ScriptState::default(),
        }
    }

    pub(crate) fn database(&mut self) -> &mut Keyspace {
        &mut self.databases[self.selected]
    }

    pub(crate) fn databases(&self) -> &[Keyspace] {
        &self.databases
    }

    pub(crate) fn replace_data(&mut self, databases: Vec<Keyspace>) {
        self.databases = databases;
    }

    pub(crate) fn clear(&mut self) {
        self.databases.iter_mut().for_each(Keyspace::clear);
    }

    pub(crate) fn select(&mut self, database: usize) {
        self.selected = database;
    }

    /// The number of keys in all databases.
    pub(crate) fn keys(&self) -> usize {
        self.databases.iter().map(Keyspace::len).sum()
    }

    fn millis(&self) -> u64 {
        self.now / 1000
    }

    pub(crate) fn take_expired(&mut self) -> Vec<(Box<[u8]>, Vec<u8>)> {
        self.databases.iter_mut().flat_map(Keyspace::take_expired).collect()
    }

    pub(crate) fn take_shortened(&mut self) -> Vec<Shortened> {
        self.databases.iter_mut().flat_map(Keyspace::take_shortened).collect()
    }

    pub(crate) fn sorted_sets(&self, now: u64) -> Vec<SortedMembers> {
        let keys = self.databases.iter().flat_map(|database| database.entries(now / 1000));
        let members = |(name, entry): (&[u8], &Entry)| match &entry.value {
            Value::Sorted(set) => Some((name.into(), members(set))),
            _ => None,
        };
        keys.filter_map(members).collect()
    }

    /// Removes some keys that have expired, as the server does in the background.
    pub(crate) fn sweep(&mut self) {
        let (now, is_replica) = (self.millis(), matches!(self.role, Role::Replica { .. }));
        if !is_replica {
            self.database().sweep(now);
        }
    }

    /// Why the server does not run a command; `None` if it does. Its arguments are not read yet.
    pub(crate) fn refuses(
        &mut self,
        command: &Command,
        arguments: &[&[u8]],
        sender: Sender,
    ) -> Option<String> {
        if sender == Sender::Master {
            return None;
        }
        if let Some(error) = self.redirects(command, arguments, sender) {
            return Some(match sender {
                Sender::Script(_) => {
                    "ERR Script attempted to access a non local key in a cluster node".to_owned()
                }
                _ => error,
            });
        }
        let is_full = match sender {
            // Redis evicts before a script, and not while it runs.
            Sender::Script(_) => {
                self.max_keys.is_some_and(|(most, eviction)| eviction == Eviction::None && self.keys() > most)
            }
            _ => self.is_full(),
        };
        let has_written = matches!(sender, Sender::Script(ScriptState { has_written: true, .. }));
        let text = match self.refusal {
            _ if is_full && command.grows() && !has_written => Refusal::OutOfMemory.text(),
            Some(refusal @ (Refusal::OutOfMemory | Refusal::WritesDisabled | Refusal::NoReplicas))
                if command.writes()
                    && !has_written
                    && (refusal != Refusal::OutOfMemory || command.grows()) =>
            {
                refusal.text()
            }
            _ if command.writes() && matches!(self.role, Role::Replica { .. }) => {
                "READONLY You can't write against a read only replica."
            }
            Some(refusal @ (Refusal::Loading | Refusal::MasterDown | Refusal::Busy))
                if matches!(sender, Sender::Client { .. })
                    && !command.runs_while_loading()
                    // Refused once the script is known.
                    && !(refusal == Refusal::MasterDown && matches!(command.run, Run::Script)) =>
            {
                refusal.text()
            }
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// The redirection of a command to another node of the cluster.
    fn redirects<'a>(&mut self, command: &Command, arguments: &[&'a [u8]], sender: Sender) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let keys = command.keys_of(arguments);
        let slot = slot(keys.first()?);
        if cluster.owner(slot).is_none() {
            return Some("CLUSTERDOWN Hash slot not served".to_owned());
        }
        if keys.iter().any(|key| self::slot(key) != slot) {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        let now = self.millis();
        let here = |key: &&'a [u8]| (*key, self.databases[0].get(key, now).is_some());
        let known: SmallVec<[(&[u8], bool); 8]> = keys.iter().map(here).collect();
        let (Sender::Client { is_asking } | Sender::Script(ScriptState { is_asking, .. })) = sender else {
            return None;
        };
        let cluster = self.cluster.as_ref()?;
        let error = |kind: &str, slot: u16, to: usize| {
            let to = cluster.address(to);
            Some(format!("{kind} {slot} {}:{}", to.host, to.port))
        };
        match cluster.route(slot, is_asking, &known) {
            Route::Here => None,
            Route::Moved { slot, to } => error("MOVED", slot, to),
            Route::Ask { slot, to } => error("ASK", slot, to),
            Route::TryAgain => Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned()),
        }
    }

    /// Evicts keys until there is room. True if there is none.
    fn is_full(&mut self) -> bool {
        let Some((most, eviction)) = self.max_keys else { return false };
        if matches!(self.role, Role::Replica { .. }) {
            // `replica-ignore-maxmemory`
            return false;
        }
        while self.keys() > most {
            let Some((database, key)) = self.victim(eviction) else { return true };
            let entry = self.databases[database].remove(&key, 0);
            self.evicted += 1;
            let value = match entry.map(|entry| entry.value) {
                Some(Value::Text(text)) => Evicted::Text(text),
                Some(Value::Sorted(set)) => Evicted::Sorted(members(&set)),
                Some(Value::Hash(hash)) => Evicted::Hash(hash.into_iter().collect()),
                _ => Evicted::Other,
            };
            self.evicted_keys.push((key.clone(), value));
            self.record(database, &[b"DEL", &key]);
        }
        false
    }

    /// The key to evict: of some random ones, the one that expires first if the policy says so.
    fn victim(&mut self, eviction: Eviction) -> Option<(usize, Box<[u8]>)> {
        let database = self.databases.iter().position(|keys| keys.len() > 0)?;
        let (keys, random) = (&self.databases[database], &mut self.random);
        let samples = (0..SAMPLES).filter_map(|_| keys.at(random.usize(..keys.len())));
        let key = match eviction {
            Eviction::None => None,
            Eviction::Random => samples.map(|(key, _)| key).next(),
            Eviction::FirstToExpire => samples
                .filter(|(_, entry)| entry.expires.is_some())
                .min_by_key(|(_, entry)| entry.expires)
                .map(|(key, _)| key),
        };
        key.map(|key| (database, key.into()))
    }

    /// Runs a command that needs neither a connection nor a script.
    pub(crate) fn run(&mut self, command: &Command, arguments: &[&[u8]]) -> Outcome {
        let outcome = match command.run {
            Run::Keys(run) => {
                let now = self.millis();
                run(&mut Call { keys: &mut self.databases[self.selected], now }, arguments)
            }
            Run::Server(run) => run(self, arguments),
            Run::Connection(_) | Run::Script => unreachable!("a connection runs {}", command.name),
        };
        if command.writes() && self.log.is_some() && outcome.is_ok() {
            let words: Words<'_> =
                [command.name.as_bytes()].into_iter().chain(arguments.iter().copied()).collect();
            self.record(self.selected, &words);
        }
        outcome
    }

    fn record(&mut self, database: usize, words: &[&[u8]]) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(Write { now, database, words: words.iter().map(|word| (*word).into()).collect() });
        }
    }

    /// Runs a write of the master at its time.
    pub(crate) fn apply(&mut self, write: &Write) {
        let words: Words<'_> = write.words.iter().map(|word| &**word).collect();
        let command = Command::named(words[0]).expect("the master knew the command");
        let (now, selected) = (self.now, self.selected);
        (self.now, self.selected) = (write.now, write.database);
        self.run(command, &words[1..]).expect("the master ran the command on the same data");
        (self.now, self.selected) = (now, selected);
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        let now = self.millis();
        self.databases[0].remove(key, now);
        self.record(0, &[b"DEL", key]);
    }

    pub(crate) fn record_flush(&mut self) {
        self.record(0, &[b"FLUSHALL"]);
    }

    pub(crate) fn take_keys(&mut self, slot: u16, most: usize) -> Vec<MovedKey> {
        let (keys, now) = (&mut self.databases[0], self.now / 1000);
        let own = keys.keys(now).filter(|key| self::slot(key) == slot).take(most);
        let own: Vec<Box<[u8]>> = own.map(Into::into).collect();
        let moved =
            own.into_iter().filter_map(|key| keys.remove(&key, now).map(|entry| MovedKey { key, entry }));
        moved.collect()
    }

    pub(crate) fn put_keys(&mut self, keys: Vec<MovedKey>) {
        for MovedKey { key, entry } in keys {
            self.databases[0].set(&key, entry);
        }
    }

    pub(crate) fn publish(&mut self, channel: &[u8], message: &[u8]) -> usize {
        let Some(subscribers) = self.subscriptions.get(channel) else { return 0 };
        let push = Reply::Array(vec![Reply::text(b"message"), Reply::text(channel), Reply::text(message)]);
        let mut bytes = Vec::new();
        push.write(&mut bytes);
        self.pushes.extend(subscribers.iter().map(|id| (*id, bytes.clone())));
        subscribers.len()
    }

    pub(crate) fn subscribe(&mut self, id: ConnectionId, channel: &[u8]) {
        self.subscriptions.entry(channel.into()).or_default().insert(id);
    }

    pub(crate) fn unsubscribe(&mut self, id: ConnectionId, channel: &[u8]) {
        if let Some(subscribers) = self.subscriptions.get_mut(channel) {
            subscribers.remove(&id);
            if subscribers.is_empty() {
                self.subscriptions.remove(channel);
            }
        }
    }

    pub(crate) fn channels_of(&self, id: ConnectionId) -> Vec<Box<[u8]>> {
        let own = self.subscriptions.iter().filter(|(_, subscribers)| subscribers.contains(&id));
        own.map(|(channel, _)| channel.clone()).collect()
    }

    pub(crate) fn subscriptions_of(&self, id: ConnectionId) -> usize {
        self.subscriptions.values().filter(|subscribers| subscribers.contains(&id)).count()
    }

    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        self.subscriptions.retain(|_, subscribers| {
            subscribers.remove(&id);
            !subscribers.is_empty()
        });
        self.pushes.retain(|(to, _)| *to != id);
    }
}

fn members(set: &SortedSet) -> Vec<(Box<[u8]>, f64)> {
    set.iter().map(|(member, score)| (member.into(), score.number())).collect()
}
