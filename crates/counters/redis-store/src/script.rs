//! The Lua scripts, for counters that must be read and updated in one step.
//!
//! They are called by hash. A server that does not know a script receives its source.

use std::sync::OnceLock;

use deadpool_redis::redis;

use super::resp;

pub struct Script {
    source: &'static str,
    hash: OnceLock<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Hash,
    Source,
}

impl Script {
    pub const fn new(source: &'static str) -> Self {
        Self { source, hash: OnceLock::new() }
    }

    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    pub(super) fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }

    /// Writes a command that runs the script on these keys.
    pub(super) fn call(&self, into: &mut Vec<u8>, form: Form, keys: &[&[u8]], arguments: &[u64]) {
        self.begin(into, form, keys.len(), arguments.len());
        for key in keys {
            resp::write_word(into, key);
        }
        for argument in arguments {
            resp::write_number(into, *argument);
        }
    }

    /// Begins a command that runs the script; its keys and arguments follow.
    pub(super) fn begin(&self, into: &mut Vec<u8>, form: Form, keys: usize, arguments: usize) {
        let (command, script) = match form {
            Form::Hash => ("EVALSHA", self.hash()),
            Form::Source => ("EVAL", self.source),
        };
        resp::begin_command(into, 3 + keys + arguments);
        resp::write_word(into, command.as_bytes());
        resp::write_word(into, script.as_bytes());
        resp::write_number(into, keys as u64);
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($file:literal)+;)*) => {
        $($(#[$doc])* pub(super) static $name: Script =
            Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+));)*
    };
}

scripts! {
    /// A counter and its leases, the hits to add if they are within the limit, the limit, the expiry in seconds, 1 if the
    /// counter may expire before, and a [`Receipt`](super::pipeline::Receipt).
    LEASE = "lease";
    /// A counter and its leases, the hits to subtract, the minimum of the counter for that, the lease, and its last
    /// confirmed grant.
    RETURN_HITS = "return_hits";
    // Keys, and the arguments of `pipeline::script_call`. Buckets and sliding windows, or logs, one by one; then units of
    // fixed windows, or of any kind.
    STATES = "begin" "keep" "bucket" "sliding_window" "arguments" "each";
    LOGS = "begin" "sliding_log" "arguments" "each";
    COUNTERS = "begin" "counter" "arguments" "units";
    /// See the scripts' first lines.
    HOLD = "holds" "hold";
    SETTLE = "holds" "settle";
    RESET = "holds" "reset";
    UNITS = "begin" "keep" "counter" "bucket" "sliding_window" "sliding_log" "arguments" "units";
}

#[cfg(test)]
mod tests;
