//! What waits for one connection, made into one pipeline: hits on one key are one command, and its result is
//! dealt out in the order of asking, so that every caller sees what it would have seen alone.
//!
//! Nothing here waits or knows a socket: a lane fills a bundle, sends what [`Bundle::write`] writes, sends
//! [`Bundle::write_again`] for the counters that were not there, and hands all answers to [`Bundle::deal`].

use std::{hash::BuildHasher, ops::Range, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::reply::{self, Reply};
use crate::{
    algorithm::{Hits, fixed_window},
    store::{
        StoreError,
        failure::{Failure, Kind},
    },
};

#[cfg(test)]
mod tests;

/// What became of one check: the counter afterwards, or why there is none.
pub(super) type Outcome = Result<u64, Arc<Failure>>;

/// What a caller hears: an outcome for each of its checks, in its order.
pub(super) type Answered = Result<SmallVec<[Outcome; 2]>, StoreError>;

/// Adding more than this is adding this: it is beyond every limit, and it takes two thousand million such
/// hits to carry a counter of memcached, which has 64 bits, past its end.
const MOST_HITS: u64 = 1 << 33;

/// A pipeline in the making.
#[derive(Default)]
pub(super) struct Bundle {
    /// The keys of all commands, one behind the other.
    keys: String,
    commands: Vec<Command>,
    /// The commands that count, by their keys, while later hits may still join them.
    counting: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// One for each check; which command answers it.
    asks: Vec<Ask>,
    callers: Vec<Caller>,
}

struct Command {
    key: Range<u32>,
    kind: CommandKind,
}

enum CommandKind {
    /// `incr`, or `get` when nothing is added. A counter that is not there is made with this expiry.
    Count { added: u64, expiry: u64 },
    /// `decr`, which memcached stops at 0.
    GiveBack { hits: u64 },
}

struct Ask {
    command: u32,
    hits: Hits,
}

struct Caller {
    asks: Range<u32>,
    answer: oneshot::Sender<Answered>,
}

/// A command's result while it is dealt out.
enum Dealing {
    /// The counter as the next caller finds it.
    Running(u64),
    /// The counter as the command left it.
    Left(u64),
    Not(Arc<Failure>),
}

impl Bundle {
    /// How many checks were asked.
    pub(super) fn checks(&self) -> usize {
        self.asks.len()
    }

    /// Empties it and keeps its room.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.commands.clear();
        self.counting.clear();
        self.asks.clear();
        self.callers.clear();
    }

    /// Lets one caller ask: `fill` adds its checks, and the outcomes come in their order.
    pub(super) fn ask(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered> {
        let first = at(self.asks.len());
        fill(self);
        let (answer, answered) = oneshot::channel();
        self.callers.push(Caller { asks: first..at(self.asks.len()), answer });
        answered
    }

    /// Asks a counter, which lives until `expiry` if it is made now.
    pub(super) fn add(&mut self, key: &str, hits: Hits, expiry: u64) {
        let hash = self.hasher.hash_one(key);
        let (hits, command) = match hits {
            Hits::Take(hits) => {
                let hits = hits.min(MOST_HITS);
                (Hits::Take(hits), self.count(hash, key, hits, expiry))
            }
            Hits::GiveBack(hits) => {
                let hits = hits.min(MOST_HITS);
                // Hits that come later are counted later, so that each sees what it would have seen alone.
                let Self { keys, commands, counting, .. } = self;
                if let Ok(known) = counting.find_entry(hash, |at| key_of(keys, commands, *at) == key) {
                    known.remove();
                }
                (Hits::GiveBack(hits), self.push(key, CommandKind::GiveBack { hits }))
            }
        };
        self.asks.push(Ask { command, hits });
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
            self.write_command(command, into);
        }
    }

    /// How many commands it has.
    pub(super) fn commands(&self) -> usize {
        self.commands.len()
    }

    fn write_command(&self, command: &Command, into: &mut Vec<u8>) {
        let key = self.key(command).as_bytes();
        match command.kind {
            CommandKind::Count { added: 0, .. } => write_words(into, &[b"get", key]),
            CommandKind::Count { added, .. } => write_change(into, b"incr", key, added),
            CommandKind::GiveBack { hits } => write_change(into, b"decr", key, hits),
        }
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
            if let CommandKind::Count { added: 1.., expiry } = command.kind {
                let mut expires = itoa::Buffer::new();
                let key = self.key(command).as_bytes();
                write_words(into, &[b"add", key, b"0", expires.format(expiry).as_bytes(), b"1"]);
                into.extend_from_slice(b"0\r\n");
            }
            self.write_command(command, into);
        }
    }

    /// True when the command at this place makes its counter when it is written again.
    pub(super) fn makes(&self, place: usize) -> bool {
        self.commands.get(place).is_some_and(Command::makes)
    }

    /// Deals the answers out to the callers. `tell` makes a failure of an error that the server at hand
    /// answered. Returns these failures.
    pub(super) fn deal(
        &mut self,
        replies: Vec<Reply>,
        tell: impl Fn(Kind, &str) -> Failure,
    ) -> Vec<Arc<Failure>> {
        let mut failures = Vec::new();
        let dealing = self.commands.iter().zip(replies).map(|(command, reply)| {
            command.result(reply).unwrap_or_else(|(kind, error)| {
                let failure = Arc::new(tell(kind, &error));
                failures.push(Arc::clone(&failure));
                Dealing::Not(failure)
            })
        });
        let mut dealing: Vec<_> = dealing.collect();
        for caller in self.callers.drain(..) {
            let asks = self.asks.get(caller.asks.start as usize..caller.asks.end as usize);
            let outcomes = asks.unwrap_or_default().iter().map(|ask| ask.outcome(&mut dealing)).collect();
            // A caller that has gone away does not mind.
            let _ = caller.answer.send(Ok(outcomes));
        }
        failures
    }

    /// Tells every caller that nothing came of it.
    pub(super) fn fail(&mut self, error: &StoreError) {
        for caller in self.callers.drain(..) {
            let _ = caller.answer.send(Err(error.clone()));
        }
    }

    fn key(&self, command: &Command) -> &str {
        text_at(&self.keys, command)
    }
}

impl Command {
    /// True when it makes its counter where there is none.
    fn makes(&self) -> bool {
        matches!(self.kind, CommandKind::Count { added: 1.., .. })
    }

    /// What an answer says; else its kind of failure, and in which words.
    fn result(&self, reply: Reply) -> Result<Dealing, (Kind, String)> {
        let count = match reply {
            Reply::Number(count) => count,
            Reply::Value(value) => {
                reply::counter(&value).ok_or_else(|| (Kind::NotANumber, value.escape_ascii().to_string()))?
            }
            Reply::Missing if self.makes() => {
                // It was made a moment ago.
                return Err((Kind::OutOfMemory, "NOT_FOUND".to_owned()));
            }
            Reply::Missing => 0,
            Reply::Error(error) => return Err((reply::kind(&error), error)),
            Reply::Added | Reply::Version => {
                return Err((Kind::Other, "something else than a number".to_owned()));
            }
        };
        Ok(match self.kind {
            CommandKind::Count { added, .. } => Dealing::Running(count.saturating_sub(added)),
            CommandKind::GiveBack { .. } => Dealing::Left(count),
        })
    }
}

impl Ask {
    fn outcome(&self, dealing: &mut [Dealing]) -> Outcome {
        match dealing.get_mut(self.command as usize) {
            Some(Dealing::Running(count)) => {
                *count = fixed_window::count(*count, self.hits);
                Ok(*count)
            }
            Some(Dealing::Left(count)) => Ok(*count),
            Some(Dealing::Not(failure)) => Err(Arc::clone(failure)),
            // Every ask names a command of its own bundle.
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

/// A bundle never comes near four thousand million of anything: its queue is bounded.
fn at(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
