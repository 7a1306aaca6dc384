//! A pipeline of memcached commands. Hits on the same key share a command, and each caller gets the outcome that it
//! would have got alone.
//!
//! There is no I/O here: a connection fills a pipeline, sends the bytes of [`MemcachedPipeline::write`], then those of
//! [`MemcachedPipeline::write_again`] for missing counters, and passes all replies to
//! [`MemcachedPipeline::complete`].

mod command;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hashbrown::HashMap;

use self::command::{Command, CommandKind, Completion};
use super::reply::Reply;
use counters::CounterId;
use limit::{Hits, fixed_window};
use wire::{
    Callers, Keys, Pipeline, at, at_mut,
    failure::{Failure, FailureKind},
    index,
};

/// The outcome of one check: the counter's new value, or a failure.
pub(super) type CheckResult = Result<u64, Arc<Failure>>;

/// The maximum that one command adds on the server, though the outcomes of its callers include all of their hits. It is
/// above every limit.
const MAX_HITS: u64 = 1 << 53;

/// A counter from this value on is reduced by [`SPARE`], because memcached's counters wrap at 2⁶⁴. Each command that
/// sees it reduces it, by more than a command adds; 127 that see it at once leave it above every limit.
const TOO_LARGE: u64 = 1 << 63;

const SPARE: u64 = 1 << 56;

#[derive(Default)]
pub(super) struct MemcachedPipeline {
    keys: Keys,
    commands: Vec<Command>,
    /// The commands that later hits on the same key may join.
    counting: HashMap<CounterId, u32>,
    callers: Callers<PendingCheck, CheckResult>,
}

pub(super) struct PendingCheck {
    command: u32,
    hits: Hits,
}

impl Pipeline for MemcachedPipeline {
    type Check = PendingCheck;
    type CheckResult = CheckResult;

    fn callers(&self) -> &Callers<PendingCheck, CheckResult> {
        &self.callers
    }

    fn callers_mut(&mut self) -> &mut Callers<PendingCheck, CheckResult> {
        &mut self.callers
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.commands.clear();
        self.counting.clear();
        self.callers.clear();
    }
}

impl MemcachedPipeline {
    /// Adds a check. `expiry` applies if its counter is created now.
    pub(super) fn add(&mut self, key: &str, hits: Hits, expiry: u64) {
        let id = CounterId::of_name(key);
        let (hits, command) = match hits {
            Hits::Take(hits) => (Hits::Take(hits), self.count(id, key, hits.min(MAX_HITS), expiry)),
            Hits::Refund(hits) => {
                let hits = hits.min(MAX_HITS);
                // Later hits need a later command, so that each caller gets the outcome it would have got alone.
                self.counting.remove(&id);
                (Hits::Refund(hits), self.push(key, CommandKind::Refund { hits }))
            }
        };
        self.callers.push(PendingCheck { command, hits });
    }

    /// The index of the command that counts these hits.
    fn count(&mut self, id: CounterId, key: &str, hits: u64, expiry: u64) -> u32 {
        if let Some(known) = self.counting.get(&id).copied() {
            let CommandKind::Count { added, .. } = &mut at_mut(&mut self.commands, known).kind else {
                unreachable!("hits join no refund");
            };
            if let Some(together) = added.checked_add(hits).filter(|together| *together <= MAX_HITS) {
                *added = together;
                return known;
            }
        }
        let next = self.push(key, CommandKind::Count { added: hits, expiry });
        self.counting.insert(id, next);
        next
    }

    fn push(&mut self, key: &str, kind: CommandKind) -> u32 {
        let command = index(self.commands.len());
        self.commands.push(Command { key: self.keys.push(key), kind });
        command
    }

    /// Writes the pipeline; returns the number of its replies.
    pub(super) fn write(&self, into: &mut Vec<u8>) -> usize {
        self.commands.iter().for_each(|command| command.write(self.keys.get(&command.key), into));
        self.commands.len()
    }

    /// The indexes of the commands to send again because their counters were missing. Reads and refunds of a missing
    /// counter come after the command that creates it, so they are sent again too.
    pub(super) fn missing(&self, replies: &[Reply]) -> Vec<u32> {
        let missing = || (0..).zip(replies).filter(|(_, reply)| **reply == Reply::Missing).map(|(at, _)| at);
        if missing().any(|index| self.creates(index)) { missing().collect() } else { Vec::new() }
    }

    /// Writes these commands again; returns the number of their replies. Each that [`creates`](Self::creates) its counter
    /// is preceded by an `add` with its own reply.
    ///
    /// The `add` stores 0 and the command increments it, so concurrent creation by another replica loses nothing.
    pub(super) fn write_again(&self, indexes: &[u32], into: &mut Vec<u8>) -> usize {
        let commands = || indexes.iter().map(|index| at(&self.commands, *index));
        commands().for_each(|command| command.write_again(self.keys.get(&command.key), into));
        commands().map(|command| if command.creates() { 2 } else { 1 }).sum()
    }

    /// True if the command at this index creates its counter when it is sent again.
    pub(super) fn creates(&self, index: u32) -> bool {
        at(&self.commands, index).creates()
    }

    /// The keys whose counters have come near the number at which they wrap.
    pub(super) fn too_large(&self, replies: &[Reply]) -> impl Iterator<Item = &[u8]> {
        let is_too_large = |reply: &Reply| matches!(reply, Reply::Number(TOO_LARGE..));
        let commands = self.commands.iter().zip(replies).filter(move |(_, reply)| is_too_large(reply));
        commands.filter(|(command, _)| command.creates()).map(|(command, _)| self.keys.get(&command.key))
    }

    /// Reduces a counter that is too large, for no caller.
    pub(super) fn reduce(&mut self, key: &str) {
        self.push(key, CommandKind::Refund { hits: SPARE });
    }

    /// Answers the callers from the replies. `failure` converts error replies. Returns these failures.
    pub(super) fn complete(
        &mut self,
        replies: Vec<Reply>,
        failure: impl Fn(FailureKind, &str) -> Failure,
    ) -> Vec<Arc<Failure>> {
        let mut failures = Vec::new();
        let results = self.commands.iter().zip(replies).map(|(command, reply)| {
            command.result(reply).unwrap_or_else(|(kind, error)| {
                let failure = Arc::new(failure(kind, &error));
                failures.push(Arc::clone(&failure));
                Completion::Failed(failure)
            })
        });
        let mut results: Vec<_> = results.collect();
        self.callers.complete(|check| check.outcome(&mut results));
        failures
    }
}

impl PendingCheck {
    fn outcome(&self, results: &mut [Completion]) -> CheckResult {
        match at_mut(results, self.command) {
            Completion::Running(count) => {
                *count = fixed_window::count(*count, self.hits);
                Ok(*count)
            }
            Completion::Final(count) => Ok(*count),
            Completion::Failed(failure) => Err(Arc::clone(failure)),
        }
    }
}
