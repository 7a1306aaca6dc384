//! What waits for one connection, made into one pipeline: hits on one key are one command, and its result is
//! dealt out in the order of asking, so that every caller sees what it would have seen alone.
//!
//! Nothing here waits or knows a socket: a connection fills a pipeline, sends what [`MemcachedPipeline::write`] writes, sends
//! [`MemcachedPipeline::write_again`] for the counters that were not there, and hands all answers to [`MemcachedPipeline::complete`].

mod command;
#[cfg(test)]
mod tests;

use std::{hash::BuildHasher, ops::Range, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::oneshot;

use self::command::{Command, CommandKind, Completion};
use super::reply::Reply;
use crate::{
    limiter::algorithm::{Hits, fixed_window},
    store::{
        StoreError,
        remote::{
            self, Pipeline,
            failure::{Failure, Kind},
        },
    },
};

/// What became of one check: the counter afterwards, or why there is none.
pub(super) type Outcome = Result<u64, Arc<Failure>>;

/// What a caller hears.
pub(super) type Answered = remote::Answered<Outcome>;

/// Adding more than this is adding this, though each caller sees all of its own hits: it is beyond every limit,
/// and it takes two thousand million such hits to carry a counter of memcached, which has 64 bits, past its end.
const MAX_HITS: u64 = 1 << 33;

/// A pipeline in the making.
#[derive(Default)]
pub(super) struct MemcachedPipeline {
    /// The keys of all commands, one behind the other.
    keys: String,
    commands: Vec<Command>,
    /// The commands that count, by their keys, while later hits may still join them.
    counting: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// One for each check; which command answers it.
    asks: Vec<PendingCheck>,
    callers: Vec<Caller>,
}

struct PendingCheck {
    command: u32,
    hits: Hits,
}

struct Caller {
    asks: Range<u32>,
    answer: oneshot::Sender<Answered>,
}

impl Pipeline for MemcachedPipeline {
    type Outcome = Outcome;

    fn checks(&self) -> usize {
        self.asks.len()
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.commands.clear();
        self.counting.clear();
        self.asks.clear();
        self.callers.clear();
    }

    fn add_caller(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered> {
        let first = at(self.asks.len());
        fill(self);
        let (answer, answered) = oneshot::channel();
        self.callers.push(Caller { asks: first..at(self.asks.len()), answer });
        answered
    }

    fn fail(&mut self, error: &StoreError) {
        for caller in self.callers.drain(..) {
            let _ = caller.answer.send(Err(error.clone()));
        }
    }
}

impl MemcachedPipeline {
    /// Asks a counter, which lives until `expiry` if it is made now.
    pub(super) fn add(&mut self, key: &str, hits: Hits, expiry: u64) {
        let hash = self.hasher.hash_one(key);
        let (hits, command) = match hits {
            Hits::Take(hits) => (Hits::Take(hits), self.count(hash, key, hits.min(MAX_HITS), expiry)),
            Hits::Refund(hits) => {
                let hits = hits.min(MAX_HITS);
                // Hits that come later are counted later, so that each sees what it would have seen alone.
                let Self { keys, commands, counting, .. } = self;
                if let Ok(known) = counting.find_entry(hash, |at| key_of(keys, commands, *at) == key) {
                    known.remove();
                }
                (Hits::Refund(hits), self.push(key, CommandKind::Refund { hits }))
            }
        };
        self.asks.push(PendingCheck { command, hits });
    }

    /// The command that counts these hits.
    fn count(&mut self, hash: u64, key: &str, hits: u64, expiry: u64) -> u32 {
        let known = self.counting.find(hash, |at| key_of(&self.keys, &self.commands, *at) == key).copied();
        if let Some(known) = known {
            if let Some(Command { kind: CommandKind::Count { added, .. }, .. }) =
                self.commands.get_mut(known as usize)
            {
                *added = added.saturating_add(hits);
            }
            return known;
        }
        let next = self.push(key, CommandKind::Count { added: hits, expiry });
        let Self { keys, commands, counting, hasher, .. } = self;
        counting.insert_unique(hash, next, |at| hasher.hash_one(key_of(keys, commands, *at)));
        next
    }

    fn push(&mut self, key: &str, kind: CommandKind) -> u32 {
        let start = at(self.keys.len());
        self.keys.push_str(key);
        self.commands.push(Command { key: start..at(self.keys.len()), kind });
        at(self.commands.len() - 1)
    }

    /// Writes the pipeline; each of its commands gets one answer.
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        for command in &self.commands {
            command.write(self.key(command), into);
        }
    }

    /// How many commands it has.
    pub(super) fn commands(&self) -> usize {
        self.commands.len()
    }

    /// The places of the commands that are to be asked again, because a counter that they change was not
    /// there; nothing when all were. What only looks at a missing counter, or gives hits back to it, comes
    /// after what counts all the same, so it is asked again too.
    pub(super) fn missing(&self, replies: &[Reply]) -> Vec<usize> {
        let missing = || (0..self.commands.len()).filter(|at| replies.get(*at) == Some(&Reply::Missing));
        if missing().any(|at| self.commands.get(at).is_some_and(Command::makes)) {
            missing().collect()
        } else {
            Vec::new()
        }
    }

    /// Writes these commands again; before each that [`makes`](Self::makes) its counter stands one that does
    /// so, and gets an answer of its own.
    ///
    /// A counter is made with nothing in it and then counted in, whoever has made it: so it does not matter
    /// that another may make it at the same time.
    pub(super) fn write_again(&self, places: &[usize], into: &mut Vec<u8>) {
        for command in places.iter().filter_map(|place| self.commands.get(*place)) {
            command.write_again(self.key(command), into);
        }
    }

    /// True when the command at this place makes its counter when it is written again.
    pub(super) fn makes(&self, place: usize) -> bool {
        self.commands.get(place).is_some_and(Command::makes)
    }

    /// Deals the answers out to the callers. `tell` makes a failure of an error that the server at hand
    /// answered. Returns these failures.
    pub(super) fn complete(
        &mut self,
        replies: Vec<Reply>,
        tell: impl Fn(Kind, &str) -> Failure,
    ) -> Vec<Arc<Failure>> {
        let mut failures = Vec::new();
        let dealing = self.commands.iter().zip(replies).map(|(command, reply)| {
            command.result(reply).unwrap_or_else(|(kind, error)| {
                let failure = Arc::new(tell(kind, &error));
                failures.push(Arc::clone(&failure));
                Completion::Not(failure)
            })
        });
        let mut dealing: Vec<_> = dealing.collect();
        for caller in self.callers.drain(..) {
            let asks = self.asks.get(caller.asks.start as usize..caller.asks.end as usize);
            let outcomes =
                asks.unwrap_or_default().iter().map(|add_caller| add_caller.outcome(&mut dealing)).collect();
            // A caller that has gone away does not mind.
            let _ = caller.answer.send(Ok(outcomes));
        }
        failures
    }

    fn key(&self, command: &Command) -> &str {
        text_at(&self.keys, command)
    }
}

impl PendingCheck {
    fn outcome(&self, dealing: &mut [Completion]) -> Outcome {
        match dealing.get_mut(self.command as usize) {
            Some(Completion::Running(count)) => {
                *count = fixed_window::count(*count, self.hits);
                Ok(*count)
            }
            Some(Completion::Left(count)) => Ok(*count),
            Some(Completion::Not(failure)) => Err(Arc::clone(failure)),
            // Every ask names a command of its own pipeline.
            None => Ok(0),
        }
    }
}

fn key_of<'k>(keys: &'k str, commands: &[Command], place: u32) -> &'k str {
    commands.get(place as usize).map(|command| text_at(keys, command)).unwrap_or_default()
}

fn text_at<'k>(keys: &'k str, command: &Command) -> &'k str {
    keys.get(command.key.start as usize..command.key.end as usize).unwrap_or_default()
}

/// A pipeline never comes near four thousand million of anything: its queue is bounded.
fn at(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
