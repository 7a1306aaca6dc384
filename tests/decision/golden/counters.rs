//! The counters of a case in Redis, in the form of the recordings.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use support::{
    clock,
    redis::{Connection, Env, Redis, tcp},
};

use super::compare::{difference, same};

/// The units by their length in seconds, shortest first.
const UNITS: [(u64, &str); 7] = [
    (1, "second"),
    (60, "minute"),
    (3600, "hour"),
    (86400, "day"),
    (604_800, "week"),
    (30 * 86400, "month"),
    (365 * 86400, "year"),
];

/// A case's own database in a shared Redis.
pub(crate) struct Database<'a> {
    redis: &'a Redis,
    number: usize,
}

impl<'a> Database<'a> {
    /// The database with this number, flushed.
    pub(crate) fn emptied(redis: &'a Redis, number: usize) -> Self {
        let database = Self { redis, number };
        database.connect().ask(&["FLUSHDB"]).expect("a database can be emptied");
        database
    }

    /// The settings that select it.
    pub(crate) fn env(&self) -> Env {
        tcp(&format!("redis://{}/{}", self.redis.address(), self.number))
    }

    /// The differences from the recording.
    pub(crate) fn differences(&self, recorded: &Value) -> Vec<String> {
        let have = self.counters();
        if same(recorded, &have) {
            Vec::new()
        } else {
            vec![format!("counters\n{}", difference(recorded, &have))]
        }
    }

    /// Each counter by its name, with the length of its window in place of the start. A counter at zero equals an absent
    /// one.
    fn counters(&self) -> Value {
        let mut connection = self.connect();
        let mut ask = |words: &[&str]| connection.ask(words).expect("Redis answers");
        let mut counters = BTreeMap::new();
        for key in ask(&["KEYS", "*"]).words() {
            let (count, ttl) = (ask(&["GET", &key]).number(), ask(&["TTL", &key]).number());
            if count != 0 {
                counters.insert(named(&key, ttl), count);
            }
        }
        json!(counters)
    }

    fn connect(&self) -> Connection {
        let mut connection = self.redis.connect();
        connection.ask(&["SELECT", &self.number.to_string()]).expect("a database can be chosen");
        connection
    }
}

/// The counter's name with the length of its window, or with the error in its window or expiry.
fn named(key: &str, ttl: i64) -> String {
    let (name, start) = key.rsplit_once('_').unwrap_or((key, ""));
    // Without jitter a counter expires after the length of its window.
    let unit = u64::try_from(ttl).ok().and_then(|ttl| UNITS.iter().find(|(seconds, _)| *seconds >= ttl));
    match (unit, start.parse::<u64>()) {
        (Some((seconds, unit)), Ok(start)) if start == clock::window(*seconds) => format!("{name}@{unit}"),
        _ => format!("{name}@start {start}, expiry {ttl}"),
    }
}
