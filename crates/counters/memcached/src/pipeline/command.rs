//! One command of a pipeline: its bytes and its result.

use std::{ops::Range, sync::Arc};

use crate::reply::{self, Reply};
use wire::failure::{Failure, FailureKind};

/// One command, and the position of its key.
pub(super) struct Command {
    pub(super) key: Range<u32>,
    pub(super) kind: CommandKind,
}

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
    pub(super) fn write(&self, key: &[u8], into: &mut Vec<u8>) {
        let (command, by) = match self.kind {
            CommandKind::Count { added: 0, .. } => return write_words(into, &[b"get", key]),
            CommandKind::Count { added, .. } => (&b"incr"[..], added),
            CommandKind::Refund { hits } => (b"decr".as_slice(), hits),
        };
        write_words(into, &[command, key, itoa::Buffer::new().format(by).as_bytes()]);
    }

    /// Writes the command again, preceded by an `add` if it creates its counter.
    pub(super) fn write_again(&self, key: &[u8], into: &mut Vec<u8>) {
        if let CommandKind::Count { added: 1.., expiry } = self.kind {
            write_words(into, &[b"add", key, b"0", itoa::Buffer::new().format(expiry).as_bytes(), b"1"]);
            into.extend_from_slice(b"0\r\n");
        }
        self.write(key, into);
    }

    pub(super) fn creates(&self) -> bool {
        matches!(self.kind, CommandKind::Count { added: 1.., .. })
    }

    /// The result by its reply, or the kind and the text of a failure.
    pub(super) fn result(&self, reply: Reply) -> Result<Completion, (FailureKind, String)> {
        let count = match reply {
            Reply::Number(count) => count,
            Reply::Value(value) => reply::counter(&value)
                .ok_or_else(|| (FailureKind::NotANumber, value.escape_ascii().to_string()))?,
            Reply::Missing if self.creates() => {
                // The counter was created just before, so it was evicted.
                return Err((FailureKind::OutOfMemory, "NOT_FOUND".to_owned()));
            }
            Reply::Missing => 0,
            Reply::Error(error) => return Err((reply::kind(&error), error)),
            Reply::Unique(..) | Reply::Stored | Reply::NotStored | Reply::Version => {
                return Err((FailureKind::Other, "expected a number".to_owned()));
            }
        };
        Ok(match self.kind {
            // `incr` wraps at 2⁶⁴.
            CommandKind::Count { added, .. } => Completion::Running(count.wrapping_sub(added)),
            CommandKind::Refund { .. } => Completion::Final(count),
        })
    }
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
