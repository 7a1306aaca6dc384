//! One command of a pipeline: its bytes, and its result.

use std::{ops::Range, sync::Arc};

use crate::store::{
    memcached::reply::{self, Reply},
    remote::failure::{Failure, Kind},
};

/// One command, and the position of its key.
pub(super) struct Command {
    pub(super) key: Range<u32>,
    pub(super) kind: CommandKind,
}

/// The change to a counter.
pub(super) enum CommandKind {
    /// `incr`, or `get` if nothing is added. A missing counter is created with this expiry.
    Count { added: u64, expiry: u64 },
    /// `decr`, which stops at 0.
    Refund { hits: u64 },
}

/// A command's result, while its callers get their outcomes.
pub(super) enum Completion {
    /// The counter before the next caller's hits.
    Running(u64),
    /// The counter after the command.
    Final(u64),
    Failed(Arc<Failure>),
}

impl Command {
    /// Writes the command.
    pub(super) fn write(&self, key: &str, into: &mut Vec<u8>) {
        let key = key.as_bytes();
        match self.kind {
            CommandKind::Count { added: 0, .. } => write_words(into, &[b"get", key]),
            CommandKind::Count { added, .. } => write_change(into, b"incr", key, added),
            CommandKind::Refund { hits } => write_change(into, b"decr", key, hits),
        }
    }

    /// Writes the command again, after an `add` that creates its counter if it counts.
    pub(super) fn write_again(&self, key: &str, into: &mut Vec<u8>) {
        if let CommandKind::Count { added: 1.., expiry } = self.kind {
            let mut expires = itoa::Buffer::new();
            write_words(into, &[b"add", key.as_bytes(), b"0", expires.format(expiry).as_bytes(), b"1"]);
            into.extend_from_slice(b"0\r\n");
        }
        self.write(key, into);
    }

    /// True if it creates a missing counter.
    pub(super) fn creates(&self) -> bool {
        matches!(self.kind, CommandKind::Count { added: 1.., .. })
    }

    /// The result by its reply, or the kind and the text of a failure.
    pub(super) fn result(&self, reply: Reply) -> Result<Completion, (Kind, String)> {
        let count = match reply {
            Reply::Number(count) => count,
            Reply::Value(value) => {
                reply::counter(&value).ok_or_else(|| (Kind::NotANumber, value.escape_ascii().to_string()))?
            }
            Reply::Missing if self.creates() => {
                // It was created a moment ago, so it was evicted.
                return Err((Kind::OutOfMemory, "NOT_FOUND".to_owned()));
            }
            Reply::Missing => 0,
            Reply::Error(error) => return Err((reply::kind(&error), error)),
            Reply::Unique(..) | Reply::Stored | Reply::NotStored | Reply::Version => {
                return Err((Kind::Other, "expected a number".to_owned()));
            }
        };
        Ok(match self.kind {
            CommandKind::Count { added, .. } => Completion::Running(count.saturating_sub(added)),
            CommandKind::Refund { .. } => Completion::Final(count),
        })
    }
}

fn write_change(into: &mut Vec<u8>, command: &[u8], key: &[u8], by: u64) {
    write_words(into, &[command, key, itoa::Buffer::new().format(by).as_bytes()]);
}

fn write_words(into: &mut Vec<u8>, words: &[&[u8]]) {
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            into.push(b' ');
        }
        into.extend_from_slice(word);
    }
    into.extend_from_slice(b"\r\n");
}
