//! The commands that the rules need, and whether the server allows our user to run them.
//!
//! A connection checks them with its first pipeline, and again when a reload needs more: each command is sent with
//! arguments that have no effect. So a missing permission is logged before a request fails or counters never expire.

use super::resp::{self, Reply};
use limit::{Algorithm, Limit, Limits};
use rules::RuleSet;

/// The features that rules need commands for, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs(pub(super) u8);

const KEY: &str = "tollgate:check";

const COUNTERS: u8 = 1;
const SEVERAL: u8 = 1 << 1;
const STATES: u8 = 1 << 2;
const LOGS: u8 = 1 << 3;
const WHOLE_REQUESTS: u8 = 1 << 4;
const LEASES: u8 = 1 << 5;
const HOLDS: u8 = 1 << 6;
const SCRIPTS: u8 = SEVERAL | STATES | LOGS | WHOLE_REQUESTS | LEASES | HOLDS;

/// The hash of no script.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// `RPUSH` always has an effect, so it is undone in the same step.
const RPUSH: &str = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], '') redis.call('DEL', KEYS[1])";

/// Commands, the features that need them, and calls without effects that test the permission.
const PROBES: [(&str, u8, &[&str]); 32] = [
    ("incrby", COUNTERS | SEVERAL | WHOLE_REQUESTS | HOLDS, &["INCRBY", KEY, "x"]),
    ("expire", COUNTERS | LOGS | WHOLE_REQUESTS, &["EXPIRE", KEY, "1"]),
    ("get", COUNTERS | SEVERAL | WHOLE_REQUESTS | HOLDS, &["GET", KEY]),
    ("evalsha", SCRIPTS, &["EVALSHA", NO_SCRIPT, "1", KEY]),
    ("eval", SCRIPTS, &["EVAL", "return 1", "1", KEY]),
    ("set", SEVERAL | STATES | WHOLE_REQUESTS | HOLDS, &["SET", KEY, "", "EX", "0"]),
    ("ttl", WHOLE_REQUESTS | LEASES, &["TTL", KEY]),
    ("decrby", LEASES, &["DECRBY", KEY, "x"]),
    ("hget", LEASES | HOLDS, &["HGET", KEY, ""]),
    ("hset", LEASES | HOLDS, &["HSET", KEY]),
    ("hlen", LEASES, &["HLEN", KEY]),
    ("time", STATES | LOGS | HOLDS, &["TIME"]),
    ("mget", STATES | HOLDS, &["MGET", KEY]),
    ("setex", STATES, &["SETEX", KEY, "0", ""]),
    ("setrange", STATES, &["SETRANGE", KEY, "0", ""]),
    ("lrange", LOGS, &["LRANGE", KEY, "0", "0"]),
    ("lindex", LOGS, &["LINDEX", KEY, "0"]),
    ("llen", LOGS, &["LLEN", KEY]),
    ("ltrim", LOGS, &["LTRIM", KEY, "0", "0"]),
    ("del", LOGS | HOLDS, &["DEL", KEY]),
    ("zadd", HOLDS, &["ZADD", KEY, "x", ""]),
    ("zrem", HOLDS, &["ZREM", KEY, ""]),
    ("zcard", HOLDS, &["ZCARD", KEY]),
    ("zrange", HOLDS, &["ZRANGE", KEY, "0", "0"]),
    ("zrangebyscore", HOLDS, &["ZRANGEBYSCORE", KEY, "0", "0"]),
    ("zcount", HOLDS, &["ZCOUNT", KEY, "0", "0"]),
    ("hmget", HOLDS, &["HMGET", KEY, ""]),
    ("hincrby", HOLDS, &["HINCRBY", KEY, "", "x"]),
    ("hdel", HOLDS, &["HDEL", KEY, ""]),
    ("pttl", HOLDS, &["PTTL", KEY]),
    ("pexpire", HOLDS, &["PEXPIRE", KEY, "1"]),
    ("rpush", LOGS, &["EVAL", RPUSH, "1", KEY]),
];

impl Needs {
    /// The needs of any rules, because requests may contain overrides.
    pub(super) const COUNTERS: Self = Self(COUNTERS);
    /// The needs of `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`.
    pub(super) const WHOLE_REQUESTS: Self = Self(WHOLE_REQUESTS);

    /// The needs of the limits for which `holds` is true.
    pub(super) fn of(rules: &RuleSet, holds: impl Fn(&Limits, &Limit) -> bool) -> Self {
        let mut needs = COUNTERS;
        for limits in rules.rules().into_iter().filter_map(|rule| rule.limits()) {
            for limit in limits.iter().filter(|limit| holds(limits, limit)) {
                needs |= if limit.is_leased() { LEASES } else { 0 };
                needs |= if limit.holds { HOLDS } else { 0 };
                needs |= match limit.algorithm {
                    Algorithm::FixedWindow(_) | Algorithm::Concurrency(_) => COUNTERS,
                    Algorithm::SlidingWindow(_) | Algorithm::Bucket(_) => STATES,
                    Algorithm::SlidingLog(_) => LOGS,
                };
                needs |= if limits.are_several() { SEVERAL } else { 0 };
            }
        }
        Self(needs)
    }

    /// True if it includes all needs of `other`.
    pub(super) const fn include(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn probes(self) -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
        let needed = PROBES.iter().filter(move |(_, needs, _)| needs & self.0 != 0);
        needed.map(|(command, _, words)| (*command, *words))
    }

    pub(super) fn count(self) -> usize {
        self.probes().count()
    }

    pub(super) fn write(self, into: &mut Vec<u8>) {
        for (_, words) in self.probes() {
            resp::begin_command(into, words.len());
            for word in words {
                resp::write_word(into, word.as_bytes());
            }
        }
    }

    /// The commands that the server denied, by its replies.
    pub(super) fn denied(self, mut next: impl FnMut() -> Reply) -> Vec<&'static str> {
        let denied = self.probes().filter(|(command, _)| match next() {
            // Only if the command within the script was denied, and not the script.
            Reply::Error(error) if *command == "rpush" => is_denied_in_script(&error),
            Reply::Error(error) => is_denied(&error),
            _ => false,
        });
        denied.map(|(command, _)| command).collect()
    }
}

/// True for errors about denied and unknown commands. Errors about keys do not count: a user may have access to the
/// rules' keys and not to that of the probes.
pub(super) fn is_denied(error: &str) -> bool {
    let of_command = error.starts_with("NOPERM") && !is_about_a_key(error);
    of_command || error.starts_with("ERR unknown command") || is_denied_in_script(error)
}

/// The same for a command within a script, as Redis 7 and earlier versions report it.
fn is_denied_in_script(error: &str) -> bool {
    error.contains("can't run this command")
        || error.contains("-NOPERM") && !is_about_a_key(error)
        || error.contains("Unknown Redis command called from")
}

/// Advice on the denial of a key: the command, and a pattern of the key without what callers send.
pub(super) fn key_advice(command: &str, key: &str) -> String {
    let command = command.to_ascii_uppercase();
    let pattern = match key.split_once(['_', ':']) {
        Some((start, _)) => format!("{start}{}*", key.get(start.len()..=start.len()).unwrap_or_default()),
        None if key.ends_with("}holds") => "{*}holds*".to_owned(),
        None => format!("{key}*"),
    };
    format!("; {command} needs the key pattern ~{pattern}: docs/redis.md#permissions")
}

/// True for the denial of a key, as Redis 7.0 and later versions report it.
pub(super) fn is_about_a_key(error: &str) -> bool {
    error.contains("access one of the keys") || error.contains("access a key")
}

/// The log message about commands that the user may not run, or that the server does not know.
pub(super) fn denial(user: &str, denied: &[&str]) -> String {
    let names: Vec<_> = denied.iter().map(|command| command.to_ascii_uppercase()).collect();
    let grants: Vec<_> = denied.iter().map(|command| format!("+{command}")).collect();
    let (names, grants) = (names.join(", "), grants.join(" "));
    let harm = if denied.contains(&"expire") { "counters never expire without EXPIRE; " } else { "" };
    format!(
        "user \"{user}\" cannot run {names}, which the rules need; {harm}grant: ACL SETUSER {user} {grants}, or remove their rename-command from redis.conf"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::{CompileOptions, SourceFile, compile};

    fn needs(rate_limit: &str) -> Vec<&'static str> {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {rate_limit}\n");
        let file = SourceFile { name: "a.yaml".to_owned(), text: text.into_bytes() };
        let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
        Needs::of(&rules, |_, _| true).probes().map(|(command, _)| command).collect()
    }

    #[test]
    fn rules_need_the_commands_of_their_limits() {
        let counters = ["incrby", "expire", "get"];
        assert_eq!(needs("{unit: hour, requests_per_unit: 1}"), counters);
        assert_eq!(needs("{unlimited: true}"), counters, "requests may contain limits");
        let several = needs("[{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]");
        assert_eq!(several, [&counters[..], &["evalsha", "eval", "set"]].concat());
        let bucket = needs("{unit: hour, requests_per_unit: 1, algorithm: token_bucket}");
        assert!(bucket.contains(&"setrange") && !bucket.contains(&"rpush"));
        let log = needs("{unit: hour, requests_per_unit: 1, algorithm: sliding_log}");
        assert!(!log.contains(&"setrange") && log.contains(&"rpush"));
    }

    #[test]
    fn only_errors_about_commands_are_denials() {
        for (error, expected) in [
            ("NOPERM this user has no permissions to run the 'expire' command", true),
            ("NOPERM this user has no permissions to run the 'expire' command or its subcommand", true),
            ("ERR unknown command 'EXPIRE', with args beginning with: 'a' '1' ", true),
            (
                "ERR The user executing the script can't run this command or subcommand script: 30f, on @user_script:1.",
                true,
            ),
            (
                "ERR Error running script (call to f_a1): @user_script:1: -NOPERM this user has no permissions",
                true,
            ),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
            ("NOPERM No permissions to access a key", false),
            ("ERR value is not an integer or out of range", false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("MOVED 3999 127.0.0.1:6381", false),
        ] {
            assert_eq!(is_denied(error), expected, "{error}");
        }
    }

    #[test]
    fn a_denied_key_is_shown_without_what_callers_send() {
        for (key, pattern) in [
            ("d_k_secret_0", "~d_*:"),
            ("p:d_k_secret_0", "~p:*:"),
            ("{d_k_secret_}0/60", "~{d_*:"),
            ("{06S}holds", "~{*}holds*:"),
            ("tollgate:0123", "~tollgate:*:"),
        ] {
            let advice = key_advice("evalsha", key);
            assert!(advice.contains(&format!("EVALSHA needs the key pattern {pattern}")), "{advice}");
            assert!(!advice.contains("secret"), "{advice}");
        }
    }

    #[test]
    fn a_denial_names_the_user_the_commands_and_the_grant() {
        let message = denial("ann", &["expire", "ttl"]);
        assert!(message.contains("user \"ann\" cannot run EXPIRE, TTL,"), "{message}");
        assert!(message.contains("ACL SETUSER ann +expire +ttl,"), "{message}");
    }
}
