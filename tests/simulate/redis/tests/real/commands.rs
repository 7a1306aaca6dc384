//! Random commands: those that the project sends, on few keys, so that types, expiries and states meet.

use fastrand::Rng;

use crate::holds;

pub(crate) type Words = Vec<Vec<u8>>;

macro_rules! source {
    ($($file:literal)+) => { concat!($(include_str!(concat!("../../../../../crates/", $file, ".lua"))),+) };
}

const LEASE: &str = source!("counters/redis-store/src/scripts/lease");
const RETURN_HITS: &str = source!("counters/redis-store/src/scripts/return_hits");
const STATES: &str = source!("counters/redis-store/src/scripts/begin" "counters/redis-store/src/scripts/keep"
    "counters/redis-store/src/scripts/bucket" "counters/redis-store/src/scripts/sliding_window"
    "counters/redis-store/src/scripts/arguments" "counters/redis-store/src/scripts/each");
const LOGS: &str = source!("counters/redis-store/src/scripts/begin" "counters/redis-store/src/scripts/sliding_log"
    "counters/redis-store/src/scripts/arguments" "counters/redis-store/src/scripts/each");
const COUNTERS: &str = source!("counters/redis-store/src/scripts/begin" "counters/redis-store/src/scripts/counter"
    "counters/redis-store/src/scripts/arguments" "counters/redis-store/src/scripts/units");
const UNITS: &str = source!("counters/redis-store/src/scripts/begin" "counters/redis-store/src/scripts/keep"
    "counters/redis-store/src/scripts/counter" "counters/redis-store/src/scripts/bucket"
    "counters/redis-store/src/scripts/sliding_window" "counters/redis-store/src/scripts/sliding_log"
    "counters/redis-store/src/scripts/arguments" "counters/redis-store/src/scripts/units");
const CHANGE: &str =
    source!("decision/overrides/src/scripts/version" "decision/overrides/src/scripts/change");
const SWITCH: &str =
    source!("decision/overrides/src/scripts/version" "decision/overrides/src/scripts/switch");
const EXPIRE: &str = source!("decision/overrides/src/scripts/expire");

pub(crate) struct Generator<'r> {
    pub(crate) random: &'r mut Rng,
    grants: u64,
}

impl<'r> Generator<'r> {
    pub(crate) fn new(random: &'r mut Rng) -> Self {
        Self { random, grants: 100 }
    }

    /// A move of the clock in microseconds: mostly forwards, sometimes back.
    pub(crate) fn step(&mut self) -> i64 {
        let up_to = [1, 1_000, 100_000, 1_000_000, 20_000_000, 4_000_000_000];
        let up_to = up_to[self.random.usize(..up_to.len())];
        let by = self.random.i64(0..=up_to);
        if self.random.u8(..6) == 0 { -by.min(90_000_000) } else { by }
    }

    pub(crate) fn next(&mut self) -> Words {
        match self.random.u8(..23) {
            0..5 => self.plain(),
            5..7 => self.collection(),
            7..9 => self.sorted(),
            9 => self.lease(),
            10..13 => self.each(),
            13..16 => self.units(),
            16..18 => self.overrides(),
            18 => self.odd(),
            19..22 => self.holds(),
            _ => self.value(),
        }
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.usize(..from.len())]
    }

    fn key(&mut self) -> String {
        format!("k{}", self.random.u8(..6))
    }

    /// Mostly small numbers, sometimes those at the edges.
    fn number(&mut self) -> String {
        match self.random.u8(..16) {
            0 => self
                .pick(&[
                    "9223372036854775807",
                    "-9223372036854775808",
                    "9007199254740992",
                    "x",
                    "",
                    " 1",
                    "01",
                    "1.5",
                ])
                .to_owned(),
            1 => self.random.i64(..).to_string(),
            2 => (-self.random.i64(..50)).to_string(),
            _ => self.random.i64(..50).to_string(),
        }
    }

    fn seconds(&mut self) -> String {
        match self.random.u8(..8) {
            0 => self.number(),
            1 => self.random.u32(1..100_000).to_string(),
            _ => self.random.u32(1..40).to_string(),
        }
    }

    fn text(&mut self) -> String {
        let texts = ["", "a", "b", "{\"expires_at\":\"x\"}", "{}", "not json"];
        if self.random.bool() { self.number() } else { self.pick(&texts).to_owned() }
    }

    /// Commands on strings and on keys of any type.
    fn plain(&mut self) -> Words {
        let (key, other, number, seconds) = (self.key(), self.key(), self.number(), self.seconds());
        let text = self.text();
        let moment = (1_800_000_000_i64 + self.random.i64(-100..100)).to_string();
        let millis = (1_800_000_000_000_i64 + self.random.i64(-100_000..100_000)).to_string();
        let line = match self.random.u8(..24) {
            0 => vec!["GET", &key],
            1 | 2 => vec!["INCRBY", &key, &number],
            3 => vec!["DECRBY", &key, &number],
            4 => vec![self.pick(&["INCR", "DECR", "STRLEN", "TYPE"]), &key],
            5 => vec!["SET", &key, &text],
            6 => vec!["SET", &key, &text, "EX", &seconds, "NX"],
            7 => vec![
                "SET",
                &key,
                &text,
                self.pick(&["NX", "XX", "GET", "KEEPTTL"]),
                self.pick(&["XX", "GET", "KEEPTTL"]),
            ],
            8 => vec!["SET", &key, &text, "PXAT", &millis],
            9 => vec!["SET", &key, &text, self.pick(&["PX", "EX", "EXAT"]), &number],
            10 => vec!["SETEX", &key, &seconds, &text],
            11 => vec!["SETRANGE", &key, self.pick(&["0", "3", "-1", "x"]), &text],
            12 => vec!["MGET", &key, &other],
            13 | 14 => vec!["EXPIRE", &key, &seconds],
            15 => vec!["PEXPIRE", &key, &number],
            16 => vec!["EXPIREAT", &key, &moment],
            17 => vec!["PEXPIREAT", &key, &millis],
            18 | 19 => vec![self.pick(&["TTL", "PTTL"]), &key],
            20 => vec!["PERSIST", &key],
            21 => vec![self.pick(&["DEL", "UNLINK", "EXISTS"]), &key, &other],
            22 => vec!["RENAME", &key, &other],
            _ => vec!["KEYS", "*"],
        };
        words(&line)
    }

    fn collection(&mut self) -> Words {
        let (key, field, other, text) = (self.key(), self.key(), self.key(), self.text());
        let (from, to) = (self.random.i64(-5..5).to_string(), self.number());
        let line = match self.random.u8(..24) {
            20 => vec!["HINCRBY", &key, &field, &to],
            21 => vec!["HKEYS", &key],
            22 => vec!["HMGET", &key, &field, &other],
            0 | 1 => vec!["HSET", &key, &field, &text],
            2 => vec!["HSET", &key, &field, &text, &other],
            3 => vec!["HSET", &key, &field, &text, &other, "v"],
            4 => vec!["HSETNX", &key, &field, &text],
            5 => vec![self.pick(&["HGET", "HEXISTS"]), &key, &field],
            6 => vec!["HDEL", &key, &field, &other],
            7 => vec![self.pick(&["HLEN", "HVALS", "HGETALL"]), &key],
            8 => vec!["HSCAN", &key, "0", "COUNT", "1000"],
            9 | 10 => vec!["RPUSH", &key, &text, &field],
            11 => vec!["LPUSH", &key, &text],
            12 => vec!["LLEN", &key],
            13 => vec!["LINDEX", &key, &from],
            14 => vec!["LRANGE", &key, &from, &to],
            15 => vec!["LTRIM", &key, &from, &to],
            16 => vec!["SADD", &key, &field, &other],
            17 => vec!["SREM", &key, &field],
            18 => vec![self.pick(&["SMEMBERS", "SCARD"]), &key],
            _ => vec!["DEL", &key],
        };
        words(&line)
    }

    /// Mostly a small number, so that scores are equal.
    fn score(&mut self) -> String {
        match self.random.u8(..12) {
            0 => self.number(),
            1 => self
                .pick(&[
                    "inf",
                    "-inf",
                    "+inf",
                    "1e400",
                    "nan",
                    "0.1",
                    "-0",
                    "1e21",
                    "1.5e-7",
                    "123456789012345678",
                ])
                .to_owned(),
            2 => format!("{:.3}", self.random.f64() * 10.0),
            _ => self.random.i8(-4..9).to_string(),
        }
    }

    /// Sorted sets have names of their own, and sometimes those of other types.
    fn sorted(&mut self) -> Words {
        let key = if self.random.u8(..12) == 0 { self.key() } else { format!("z{}", self.random.u8(..3)) };
        let (member, other, score, next) = (self.key(), self.key(), self.score(), self.score());
        let (bounded, unbounded) = (format!("({score}"), format!("({next}"));
        let from = self.pick(&[&score, &bounded, "-inf", "(0"]).to_owned();
        let to = self.pick(&[&next, &unbounded, "+inf", "inf", ""]).to_owned();
        let (first, last) = (self.random.i64(-5..5).to_string(), self.number());
        let (offset, count) = (self.random.i8(-1..3).to_string(), self.random.i8(-1..4).to_string());
        let option = self.pick(&["NX", "XX", "gt", "LT", "CH", "INCR"]);
        let again = self.pick(&["NX", "XX", "GT", "LT", "CH", "INCR"]);
        let line = match self.random.u8(..26) {
            0..3 => vec!["ZADD", &key, &score, &member, &next, &other],
            3 => vec!["ZADD", &key, &score, &member],
            4 => vec!["ZADD", &key, option, &score, &member],
            5 => vec!["ZADD", &key, option, again, &score, &member],
            6 => vec!["ZADD", &key, option, again, &score, &member, &next, &other],
            7 => vec!["ZADD", &key, &score, &member, &next],
            8 | 9 => vec!["ZINCRBY", &key, &score, &member],
            10 => vec!["ZSCORE", &key, &member],
            11 => vec!["ZMSCORE", &key, &member, &other],
            12 => vec!["ZCARD", &key],
            13 => vec!["ZCOUNT", &key, &from, &to],
            14 => vec!["ZRANGEBYSCORE", &key, &from, &to],
            15 => vec!["ZRANGEBYSCORE", &key, &from, &to, "WITHSCORES", "LIMIT", &offset, &count],
            16 => vec!["ZRANGE", &key, &first, &last, self.pick(&["WITHSCORES", "REV"])],
            17 => vec!["ZRANGE", &key, &from, &to, "BYSCORE", "LIMIT", &offset, &count],
            18 => vec!["ZRANGE", &key, &to, &from, "REV", "BYSCORE", "WITHSCORES"],
            19 => vec!["ZRANGE", &key, &first, &last, "LIMIT", &offset, self.pick(&["1", "x"])],
            20 => vec!["ZREM", &key, &member, &other, &member],
            21 => vec!["ZREMRANGEBYSCORE", &key, &from, &to],
            22 => vec!["ZREMRANGEBYRANK", &key, &first, &last],
            23 => vec![self.pick(&["ZPOPMIN", "ZPOPMAX"]), &key],
            24 => vec![self.pick(&["ZPOPMIN", "ZPOPMAX"]), &key, &count],
            _ => vec!["EXPIRE", &key, "9"],
        };
        words(&line)
    }

    /// Mistakes, and commands on the connection and the server.
    fn odd(&mut self) -> Words {
        let key = self.key();
        let line = match self.random.u8(..20) {
            0 => vec!["GET"],
            1 => vec!["get", &key],
            2 => vec!["HSET", &key],
            3 => vec!["SET", &key, "", "EX", "0"],
            4 => vec!["SETEX", &key, "0", ""],
            5 => vec!["INCRBY", &key, "x"],
            6 => vec!["NOSUCH", &key],
            7 => vec!["PING"],
            8 => vec!["PING", "x"],
            9 => vec!["TIME"],
            10 => vec!["ROLE", "x"],
            11 => vec!["EVALSHA", "0000000000000000000000000000000000000000", "1", &key],
            12 => vec!["EVALSHA", "short", "1", &key],
            13 => vec!["EVAL", "return 1", self.pick(&["-1", "x", "5", "1"]), &key],
            14 => vec!["PUBLISH", &key, "message"],
            15 => vec!["SELECT", self.pick(&["16", "x", "-1"])],
            16 => vec!["CLIENT", "SETNAME", "tollgate"],
            17 => vec!["ASKING"],
            18 => vec!["CLUSTER", "SLOTS"],
            _ => vec!["UNWATCH"],
        };
        words(&line)
    }

    /// Values and errors of scripts.
    fn value(&mut self) -> Words {
        let bodies = [
            "return 1.9",
            "return -1.9",
            "return {1, 2, nil, 4}",
            "return {1, {'x', false, true}, 2.5}",
            "return {ok = 'FINE'}",
            "return {err = 'MINE text'}",
            "return redis.error_reply('MINE text')",
            "return redis.error_reply('text')",
            "return redis.status_reply('YES')",
            "return {err = 'WRONGTYPE'}",
            "return nil",
            "return 'text'",
            "return #KEYS + #ARGV",
            "return redis.call('GET', KEYS[1])",
            "return redis.pcall('HGET', KEYS[1], 'f')",
            "return redis.call('HGET', KEYS[1], 'f')",
            "return redis.call('SET', KEYS[1], 7, 'EX', 10, 'NX')",
            "return type(redis.call('GET', KEYS[1]))",
            "return redis.call('INCRBY', KEYS[1], 9007199254740992)",
            "return redis.call('INCRBY', KEYS[1], 1.5)",
            "return redis.call('SET', KEYS[1], 0.1)",
            "return redis.call('SET', KEYS[1], 123456789012345678)",
            "return redis.call('NOSUCH')",
            "return redis.call('GET')",
            "return redis.call('SUBSCRIBE', 'x')",
            "return redis.call('GET', {})",
            "return redis.call()",
            "return nosuch",
            "own = 1",
            "return 1 +",
            "error('mine')",
            "return 1 + nil",
            "return {math.random(), math.random(10), math.random(5, 9), tostring(math.random())}",
            "return redis.sha1hex(ARGV[1])",
            "return redis.call('TIME')",
            "return tostring(pcall(redis.call, 'HGET', KEYS[1], 'f'))",
            "local value = redis.pcall('GET') return type(value) == 'table' and value.err ~= nil",
            "return struct.pack('<I7I4c2', 1234567890123, 4294967295, 'ab')",
            "return {struct.unpack('<i8I4c1', struct.pack('<i8I4c1', -5, 7, 'x'))}",
            "return struct.unpack('<I8', 'short')",
            "return {struct.unpack('<I2c0i8', struct.pack('<I2c0i8', 5, 'names', -3))}",
            "return redis.call('ZADD', KEYS[1], 2^53 - 1, 'a', -0.5, 'b')",
            "return redis.call('ZSCORE', KEYS[1], 'k1')",
            "return redis.call('ZINCRBY', KEYS[1], 0.1, 'k1')",
            "return cjson.decode('{\"a\": [1, null, true, \"x\"]}').a",
            "return tostring(cjson.decode(ARGV[1]).expires_at)",
            "return {string.format('%.0f', 2^53), string.format('%d', 3), tonumber('0x10'), tonumber('') == nil}",
            "redis.call('RPUSH', KEYS[1], 'a', 'b') return redis.call('LRANGE', KEYS[1], 0, -1)",
        ];
        let (body, key, text) = (self.pick(&bodies), self.key(), self.text());
        words(&["EVAL", body, "1", &key, &text])
    }

    fn lease(&mut self) -> Words {
        let key = self.key();
        let leases = format!("{{{key}}}:leases");
        let holder = self.random.u8(..3).to_string();
        self.grants += 1;
        let confirmed =
            if self.random.u8(..3) == 0 { 0 } else { self.grants.saturating_sub(self.random.u64(..6)) };
        let (hits, limit) = (self.random.u8(..20).to_string(), self.random.u8(10..100).to_string());
        let (seconds, may_expire) = (self.random.u8(1..60).to_string(), self.random.u8(..2).to_string());
        if self.random.u8(..3) == 0 {
            let own = self.random.u8(..30).to_string();
            return script(
                RETURN_HITS,
                &[key, leases],
                &words(&[&hits, &own, &holder, &confirmed.to_string()]),
            );
        }
        let requested = self.grants.to_string();
        let arguments =
            words(&[&hits, &limit, &seconds, &may_expire, &holder, &confirmed.to_string(), &requested]);
        script(LEASE, &[key, leases], &arguments)
    }

    /// An argument of the scripts that count. Limits of a letter are always the same, since states depend on them.
    fn argument(&mut self, letter: u8, unit: u8) -> Vec<u8> {
        let numbers = match letter {
            b'c' => [u64::from(self.random.u8(1..40)), 0, 0],
            b'w' => [20, 10, 0],
            b'l' => [8, 15, 0],
            // 3 hits per 7 seconds, up to 5 at once.
            _ => [3 * 1_000_000, 7 * 1_000_000, 5],
        };
        let mut argument = vec![letter, unit];
        argument.extend(u32::from(self.random.u8(1..30)).to_le_bytes());
        argument.extend(numbers.iter().flat_map(|number: &u64| number.to_le_bytes()));
        for _ in 0..self.random.u8(1..3) {
            let hits = match self.random.u8(..8) {
                0 => 0,
                1 => -self.random.i64(1..6),
                2 => 1 << 53,
                _ => self.random.i64(1..6),
            };
            argument.extend(hits.to_le_bytes());
            argument.extend(if hits > 0 { self.random.u32(1..4) } else { 1 }.to_le_bytes());
        }
        argument
    }

    /// Keys that are counted one by one. A call has no key twice.
    fn each(&mut self) -> Words {
        let (source, letters) = if self.random.bool() { (STATES, &b"bw"[..]) } else { (LOGS, &b"l"[..]) };
        let first = self.random.usize(..4);
        let (mut keys, mut arguments, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..self.random.u8(1..4) {
            let letter = letters[self.random.usize(..letters.len())];
            let key = (first + usize::from(number)) % 4;
            keys.push(self.state_key(letter, key));
            arguments.push(self.argument(letter, b'a'));
            indexes.push(number + 1);
        }
        script(source, &keys, &[vec![indexes], arguments].concat())
    }

    fn units(&mut self) -> Words {
        let is_timed = self.random.bool();
        let (source, letters) = if is_timed { (UNITS, &b"cbwl"[..]) } else { (COUNTERS, &b"c"[..]) };
        let is_guarded = self.random.u8(..3) == 0;
        let (mut keys, mut arguments, mut unit) = (Vec::new(), Vec::new(), b'a');
        let mut argument = Vec::new();
        for number in 0..self.random.usize(1..5) {
            let may_continue = number > 0 && (unit == b'f' || unit == b'n') && self.random.bool();
            let units = if is_guarded { b"afax" } else { b"affx" };
            unit = if may_continue { b'n' } else { units[self.random.usize(..4)] };
            let letter = letters[self.random.usize(..letters.len())];
            let unit = if letter != b'c' && unit == b'x' { b'a' } else { unit };
            let own = self.argument(letter, unit);
            // The keys of a rule have the same runs.
            let runs = if unit == b'n' { argument[30..].to_vec() } else { own[30..].to_vec() };
            argument = [&own[..30], &runs].concat();
            let index = self.random.usize(..4);
            keys.push(self.state_key(letter, index));
            arguments.push(argument.clone());
        }
        let kind = if is_guarded { b"g".to_vec() } else { Vec::new() };
        script(source, &keys, &[vec![kind], arguments].concat())
    }

    /// Rarely a key of another type.
    fn state_key(&mut self, letter: u8, index: usize) -> String {
        let letter = if self.random.u8(..30) == 0 { 'k' } else { char::from(letter) };
        format!("{letter}{index}")
    }

    fn overrides(&mut self) -> Words {
        let [hash, versions, committing] = ["overrides", "versions", "committing"].map(str::to_owned);
        let (token, id, value) = (self.random.u8(..9).to_string(), self.key(), self.text());
        let (own, version) = (self.version(), self.version());
        match self.random.u8(..8) {
            0 => words(&["SET", "committing", &token, "NX", "EX", "30"]),
            1 => {
                let [import, old] = ["import", "old"].map(str::to_owned);
                let length = self.random.u8(..3).to_string();
                let keys = [hash, versions, committing, import, old];
                let (of, floor) = (self.pick(&["import", ""]).to_owned(), self.version());
                let arguments =
                    words(&["changes", &zero(own), &token, &length, &of, &zero(floor), &id, &zero(version)]);
                script(SWITCH, &keys, &arguments)
            }
            2 => words(&["HSET", "import", &id, &value]),
            3 => {
                let end = self.seconds();
                let id = self.key();
                script(EXPIRE, &[hash], &words(&[&id, "x", &end, "other", "x", "1800000010"]))
            }
            4 => words(&["ZRANGE", "versions", "0", "-1", "WITHSCORES"]),
            5 => words(&["HGETALL", "overrides"]),
            _ => {
                let arguments = words(&["changes", &zero(own), "body", &id, &version, &value]);
                script(CHANGE, &[hash, versions], &arguments)
            }
        }
    }

    /// The version of an override, as microseconds since 1970, or none.
    fn version(&mut self) -> String {
        self.pick(&["", "1", "1800000000000000", "1800000010000000", "1900000000000000"]).to_owned()
    }
}

/// A caller that knows no version says 0.
fn zero(version: String) -> String {
    if version.is_empty() { "0".to_owned() } else { version }
}

/// A command that reads every key.
pub(crate) fn exists() -> Vec<String> {
    let own = (0..6).flat_map(|index| [format!("k{index}"), format!("{{k{index}}}:leases")]);
    let sorted = (0..3).map(|index| format!("z{index}"));
    let states = "cbwl".chars().flat_map(|letter| (0..4).map(move |index| format!("{letter}{index}")));
    let overrides = ["overrides", "versions", "committing", "import", "old"].map(str::to_owned);
    ["EXISTS".to_owned()]
        .into_iter()
        .chain(own)
        .chain(sorted)
        .chain(states)
        .chain(overrides)
        .chain(holds::names())
        .collect()
}

fn words(line: &[&str]) -> Words {
    line.iter().map(|word| word.as_bytes().to_vec()).collect()
}

pub(crate) fn script(source: &str, keys: &[String], arguments: &[Vec<u8>]) -> Words {
    let mut call = words(&["EVAL", source, &keys.len().to_string()]);
    call.extend(keys.iter().map(|key| key.clone().into_bytes()));
    call.extend_from_slice(arguments);
    call
}
