//! The scripts that run on the server, where a count must be read and changed in one step.
//!
//! They are called by their hash; a server that does not know one is sent its text, and knows it then.

use std::sync::LazyLock;

use deadpool_redis::redis;

use super::resp;

/// A script and its hash.
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

/// How a script is named in a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// By its hash.
    Hash,
    /// By its text.
    Text,
}

impl Script {
    /// Begins a command that runs the script: so many keys and so many arguments are to follow.
    pub(super) fn begin(&self, into: &mut Vec<u8>, form: Form, keys: usize, arguments: usize) {
        resp::begin_command(into, keys.saturating_add(arguments).saturating_add(3));
        match form {
            Form::Hash => {
                resp::write_word(into, b"EVALSHA");
                resp::write_word(into, self.hash.as_bytes());
            }
            Form::Text => {
                resp::write_word(into, b"EVAL");
                resp::write_word(into, self.text.as_bytes());
            }
        }
        resp::write_number(into, keys as u64);
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($file:literal)+;)*) => {
        $($(#[$doc])* pub(super) static $name: Script = Script {
            text: concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+),
            hash: LazyLock::new(|| redis::Script::new($name.text).get_hash().to_owned()),
        };)*
    };
}

scripts! {
    /// One key, and the hits that are taken off it.
    GIVE_BACK = "refund";
    /// A key, and the seconds to live unless it lives longer.
    EXTEND = "extend";
    /// Keys, and for each the hits (negative when given back), the limit, the seconds to live, and its member.
    COUNT_GUARDED = "count_guarded";
    /// Keys of buckets and sliding windows, a byte for each that tells its argument, and arguments as
    /// `pipeline::judge` writes them.
    STATES = "begin" "keep" "bucket" "sliding_window" "each";
    /// Keys of sliding logs, and the same.
    LOGS = "begin" "sliding_log" "each_log";
    /// Keys of fixed windows of one rule, for each the limit and the seconds to live, and runs.
    COUNT_TOGETHER = "count_together";
    /// Keys of one rule, runs, and an argument for each key, as `pipeline::together` writes them.
    ASK_TOGETHER = "begin" "keep" "bucket" "sliding_window" "sliding_log" "counter" "ask_together";
    /// Keys of any kind, and an argument for each, as `pipeline::guard` writes them.
    ASK_GUARDED = "begin" "keep" "bucket" "sliding_window" "sliding_log" "ask_guarded";
}

#[cfg(test)]
mod tests;
