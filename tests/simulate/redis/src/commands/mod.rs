//! The commands that the project sends, and those that its tests ask with. A command that is not here is unknown, as in a
//! server that is too old for it.

mod collections;
mod connection;
mod keys;
mod server;
mod sorted;
mod strings;

use crate::{
    ConnectionId, Server,
    keyspace::{Entry, Hash, Keyspace, Value},
    resp::Reply,
    state::State,
};

pub(crate) type Outcome = Result<Reply, String>;

pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const SYNTAX: &str = "ERR syntax error";

/// What a command on keys works on.
pub(crate) struct Call<'s> {
    pub(crate) keys: &'s mut Keyspace,
    /// Milliseconds since 1970.
    pub(crate) now: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Needs only the keys of the database.
    Keys(fn(&mut Call<'_>, &[&[u8]]) -> Outcome),
    Server(fn(&mut State, &[&[u8]]) -> Outcome),
    Connection(fn(&mut Server, ConnectionId, &[&[u8]]) -> Outcome),
    Script,
}

/// Where the keys of a command are among its words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    None,
    First,
    FirstTwo,
    All,
    /// Their number is the second argument.
    Counted,
}

pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The number of words; if negative, the least.
    arity: i8,
    pub(crate) keys: Keys,
    flags: u8,
    pub(crate) run: Run,
}

const WRITE: u8 = 1;
/// Refused while the server is out of memory.
const GROWS: u8 = 1 << 1;
/// Answered while the server loads its data.
const LOADING: u8 = 1 << 2;
/// Not allowed in scripts.
const NO_SCRIPT: u8 = 1 << 3;
/// Allowed before `AUTH`.
const NO_AUTH: u8 = 1 << 4;
/// A sentinel has it.
const SENTINEL: u8 = 1 << 5;
/// Answered on a connection with subscriptions.
const SUBSCRIBED: u8 = 1 << 6;

impl Command {
    pub(crate) fn named(name: &[u8]) -> Option<&'static Self> {
        let mut upper = [0; 16];
        let upper = upper.get_mut(..name.len())?;
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        let index = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(upper)).ok()?;
        Some(&COMMANDS[index])
    }

    pub(crate) fn accepts(&self, words: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        words == least || self.arity < 0 && words > least
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn writes(&self) -> bool {
        self.has(WRITE)
    }

    pub(crate) fn grows(&self) -> bool {
        self.has(GROWS)
    }

    pub(crate) fn runs_while_loading(&self) -> bool {
        self.has(LOADING)
    }

    pub(crate) fn runs_in_scripts(&self) -> bool {
        !self.has(NO_SCRIPT)
    }

    pub(crate) fn needs_login(&self) -> bool {
        !self.has(NO_AUTH)
    }

    pub(crate) fn is_of_sentinels(&self) -> bool {
        self.has(SENTINEL)
    }

    pub(crate) fn runs_while_subscribed(&self) -> bool {
        self.has(SUBSCRIBED)
    }

    /// The keys among the arguments.
    pub(crate) fn keys_of<'a, 'b>(&self, arguments: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
        match self.keys {
            Keys::None => &[],
            Keys::First => arguments.get(..1).unwrap_or_default(),
            Keys::FirstTwo => arguments.get(..2).unwrap_or_default(),
            Keys::All => arguments,
            Keys::Counted => {
                let count = arguments.get(1).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
                let rest = arguments.get(2..).unwrap_or_default();
                count.and_then(|count: usize| rest.get(..count)).unwrap_or_default()
            }
        }
    }
}

const fn on_keys(
    name: &'static str,
    arity: i8,
    keys: Keys,
    flags: u8,
    run: fn(&mut Call<'_>, &[&[u8]]) -> Outcome,
) -> Command {
    Command { name, arity, keys, flags, run: Run::Keys(run) }
}

const fn on_server(
    name: &'static str,
    arity: i8,
    flags: u8,
    run: fn(&mut State, &[&[u8]]) -> Outcome,
) -> Command {
    Command { name, arity, keys: Keys::None, flags, run: Run::Server(run) }
}

const fn on_connection(
    name: &'static str,
    arity: i8,
    flags: u8,
    run: fn(&mut Server, ConnectionId, &[&[u8]]) -> Outcome,
) -> Command {
    Command { name, arity, keys: Keys::None, flags: flags | NO_SCRIPT, run: Run::Connection(run) }
}

const fn script(name: &'static str) -> Command {
    Command { name, arity: -3, keys: Keys::Counted, flags: NO_SCRIPT, run: Run::Script }
}

use Keys::{All, First, FirstTwo};

/// Sorted by name.
static COMMANDS: [Command; 81] = [
    on_connection("ASKING", 1, 0, connection::asking),
    on_connection("AUTH", -2, LOADING | NO_AUTH | SENTINEL, connection::auth),
    on_connection("CLIENT", -2, LOADING | SENTINEL, connection::client),
    on_server("CLUSTER", -2, LOADING, server::cluster),
    on_server("DBSIZE", 1, 0, server::dbsize),
    on_keys("DECR", 2, First, WRITE | GROWS, strings::decr),
    on_keys("DECRBY", 3, First, WRITE | GROWS, strings::decrby),
    on_keys("DEL", -2, All, WRITE, keys::del),
    on_connection("ECHO", 2, LOADING, connection::echo),
    script("EVAL"),
    script("EVALSHA"),
    on_keys("EXISTS", -2, All, 0, keys::exists),
    on_keys("EXPIRE", 3, First, WRITE, keys::expire),
    on_keys("EXPIREAT", 3, First, WRITE, keys::expireat),
    on_server("FLUSHALL", -1, WRITE, server::flushall),
    on_keys("GET", 2, First, 0, strings::get),
    on_keys("HDEL", -3, First, WRITE, collections::hdel),
    on_connection("HELLO", -1, LOADING | NO_AUTH | SENTINEL, connection::hello),
    on_keys("HEXISTS", 3, First, 0, collections::hexists),
    on_keys("HGET", 3, First, 0, collections::hget),
    on_keys("HGETALL", 2, First, 0, collections::hgetall),
    on_keys("HINCRBY", 4, First, WRITE | GROWS, collections::hincrby),
    on_keys("HKEYS", 2, First, 0, collections::hkeys),
    on_keys("HLEN", 2, First, 0, collections::hlen),
    on_keys("HMGET", -3, First, 0, collections::hmget),
    on_keys("HSCAN", -3, First, 0, collections::hscan),
    on_keys("HSET", -4, First, WRITE | GROWS, collections::hset),
    on_keys("HSETNX", 4, First, WRITE | GROWS, collections::hsetnx),
    on_keys("HVALS", 2, First, 0, collections::hvals),
    on_keys("INCR", 2, First, WRITE | GROWS, strings::incr),
    on_keys("INCRBY", 3, First, WRITE | GROWS, strings::incrby),
    on_server("INFO", -1, LOADING | SENTINEL, server::info),
    on_keys("KEYS", 2, Keys::None, 0, keys::keys),
    on_keys("LINDEX", 3, First, 0, collections::lindex),
    on_keys("LLEN", 2, First, 0, collections::llen),
    on_keys("LPUSH", -3, First, WRITE | GROWS, collections::lpush),
    on_keys("LRANGE", 4, First, 0, collections::lrange),
    on_keys("LTRIM", 4, First, WRITE, collections::ltrim),
    on_keys("MGET", -2, All, 0, strings::mget),
    on_keys("PERSIST", 2, First, WRITE, keys::persist),
    on_keys("PEXPIRE", 3, First, WRITE, keys::pexpire),
    on_keys("PEXPIREAT", 3, First, WRITE, keys::pexpireat),
    on_connection("PING", -1, SENTINEL | SUBSCRIBED, connection::ping),
    on_keys("PTTL", 2, First, 0, keys::pttl),
    on_server("PUBLISH", 3, LOADING, server::publish),
    on_connection("QUIT", -1, LOADING | NO_AUTH | SENTINEL | SUBSCRIBED, connection::quit),
    on_keys("RENAME", 3, FirstTwo, WRITE, keys::rename),
    on_server("ROLE", 1, LOADING | NO_SCRIPT | SENTINEL, server::role),
    on_keys("RPUSH", -3, First, WRITE | GROWS, collections::rpush),
    on_keys("SADD", -3, First, WRITE | GROWS, collections::sadd),
    on_keys("SCARD", 2, First, 0, collections::scard),
    on_connection("SCRIPT", -2, 0, connection::script),
    on_connection("SELECT", 2, LOADING, connection::select),
    on_server("SENTINEL", -2, SENTINEL | NO_SCRIPT, server::sentinel),
    on_keys("SET", -3, First, WRITE | GROWS, strings::set),
    on_keys("SETEX", 4, First, WRITE | GROWS, strings::setex),
    on_keys("SETRANGE", 4, First, WRITE | GROWS, strings::setrange),
    on_keys("SMEMBERS", 2, First, 0, collections::smembers),
    on_keys("SRANDMEMBER", 3, First, 0, collections::srandmember),
    on_keys("SREM", -3, First, WRITE, collections::srem),
    on_keys("STRLEN", 2, First, 0, strings::strlen),
    on_connection("SUBSCRIBE", -2, LOADING | SENTINEL | SUBSCRIBED, connection::subscribe),
    on_server("TIME", 1, LOADING, server::time),
    on_keys("TTL", 2, First, 0, keys::ttl),
    on_keys("TYPE", 2, First, 0, keys::kind),
    on_keys("UNLINK", -2, All, WRITE, keys::del),
    on_connection("UNSUBSCRIBE", -1, LOADING | SENTINEL | SUBSCRIBED, connection::unsubscribe),
    on_connection("UNWATCH", 1, LOADING, connection::unwatch),
    on_keys("ZADD", -4, First, WRITE | GROWS, sorted::zadd),
    on_keys("ZCARD", 2, First, 0, sorted::zcard),
    on_keys("ZCOUNT", 4, First, 0, sorted::zcount),
    on_keys("ZINCRBY", 4, First, WRITE | GROWS, sorted::zincrby),
    on_keys("ZMSCORE", -3, First, 0, sorted::zmscore),
    on_keys("ZPOPMAX", -2, First, WRITE, sorted::zpopmax),
    on_keys("ZPOPMIN", -2, First, WRITE, sorted::zpopmin),
    on_keys("ZRANGE", -4, First, 0, sorted::zrange),
    on_keys("ZRANGEBYSCORE", -4, First, 0, sorted::zrangebyscore),
    on_keys("ZREM", -3, First, WRITE, sorted::zrem),
    on_keys("ZREMRANGEBYRANK", 4, First, WRITE, sorted::zremrangebyrank),
    on_keys("ZREMRANGEBYSCORE", 4, First, WRITE, sorted::zremrangebyscore),
    on_keys("ZSCORE", 3, First, 0, sorted::zscore),
];

impl Call<'_> {
    pub(crate) fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.keys.get(key, self.now)
    }

    fn text(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, String> {
        match self.entry(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn hash(&mut self, key: &[u8]) -> Result<Option<&mut Hash>, String> {
        match self.entry(key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::Hash(hash)) => Ok(Some(hash)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Removes a key whose last element was removed.
    fn remove_if(&mut self, is_empty: bool, key: &[u8]) {
        if is_empty {
            self.keys.remove(key, self.now);
        }
    }
}

fn integer(text: &[u8]) -> Result<i64, String> {
    crate::resp::integer(text).ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

/// The elements from `first` to `last` of `length`; negative indexes count from the end.
fn range(first: i64, last: i64, length: usize) -> std::ops::Range<usize> {
    let length = i64::try_from(length).expect("a number of elements in memory");
    let from_start = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let (first, last) = (from_start(first).max(0), from_start(last).min(length - 1));
    let index = |index: i64| usize::try_from(index).expect("it is between 0 and the length");
    if first > last { 0..0 } else { index(first)..index(last + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_name_fits_the_buffer() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(COMMANDS.iter().all(|command| Command::named(command.name.as_bytes()).is_some()));
        assert!(Command::named(b"incrby").is_some_and(Command::writes));
        assert!(Command::named(b"a name longer than any").is_none());
    }
}
