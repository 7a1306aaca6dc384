//! What waits for one connection, made into one pipeline: hits on one key are one command, and its
//! result is dealt out in the order of asking, so that every caller sees what it would have seen alone.
//!
//! Nothing here waits or knows a socket: a lane fills a bundle, sends what [`Bundle::write`] writes, and
//! hands what came back to [`Bundle::deal`].

use std::{ops::Range, sync::Arc};

use hashbrown::HashMap;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{
    failure::{Failure, Kind},
    resp::{self, Reply},
    script,
};
use crate::{
    algorithm::{Hits, fixed_window},
    clock::Time,
    store::StoreError,
    table::Key,
};

/// What became of one check.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The counter afterwards.
    Count(u64),
    /// Not counted here: the server named another, in these words.
    Elsewhere(Arc<str>),
    /// Not counted.
    Failed(Arc<Failure>),
}

/// What a caller hears: an outcome for each of its checks, in its order.
pub(super) type Answered = Result<SmallVec<[Outcome; 2]>, StoreError>;

/// Adding more than this is adding this: it is beyond every limit, and 1,000 such hits do not overflow a
/// counter of Redis. It is also the largest number to which a script counts exactly.
const MOST_HITS: u64 = 1 << 53;

/// How long a counter lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expiry {
    /// Seconds from now.
    pub(super) seconds: u32,
    /// When its window ends.
    pub(super) end: Time,
    /// Whether it is told to the server: false when this process has told it in this window.
    pub(super) told: bool,
}

/// A check that counts only as long as no check beside it would be over its limit.
pub(super) struct Guarded<'a> {
    pub(super) key: &'a str,
    pub(super) limit: u32,
    pub(super) hits: Hits,
    pub(super) seconds: u32,
}

/// A pipeline in the making.
#[derive(Default)]
pub(super) struct Bundle {
    /// The keys of all commands, one behind the other.
    keys: Vec<u8>,
    commands: Vec<Command>,
    /// The command that counts a key, while later hits may still join it.
    counting: HashMap<Key, u32>,
    /// One for each check that is not guarded; which command answers it.
    asks: Vec<Ask>,
    callers: Vec<Caller>,
    /// How many checks were asked.
    checks: usize,
}

struct Command {
    key: Range<u32>,
    kind: CommandKind,
}

enum CommandKind {
    /// `INCRBY`, or `GET` when nothing is added; then `EXPIRE` where it is to be told.
    Count { id: Key, added: u64, expiry: Expiry, asking: bool },
    /// Takes off, but never below 0.
    GiveBack { hits: u64 },
    /// Several keys in one step.
    Guarded { words: Vec<Vec<u8>>, keys: usize },
    /// Gives an expiry to a key that has lost its own.
    Expire { seconds: u32 },
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
    /// One number a key.
    Each(SmallVec<[u64; 4]>),
    Not(Outcome),
}

/// What a bundle's answers have shown.
#[derive(Default)]
pub(super) struct Shown {
    /// Errors that the server answered.
    pub(super) failures: Vec<Arc<Failure>>,
    /// Keys that exist with an expiry, until their window ends.
    pub(super) expiring: Vec<(Key, Time)>,
    /// Keys that were made without one, because the server had lost them.
    pub(super) immortal: Vec<(Box<str>, u32)>,
}

impl Bundle {
    /// How many checks were asked.
    pub(super) fn checks(&self) -> usize {
        self.checks
    }

    /// Empties it and keeps its room.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.commands.clear();
        self.counting.clear();
        self.asks.clear();
        self.callers.clear();
        self.checks = 0;
    }

    /// Lets one caller ask: `fill` adds its checks, and the outcomes come in their order.
    pub(super) fn ask(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered> {
        let first = at(self.asks.len());
        fill(self);
        let (answer, answered) = oneshot::channel();
        let asks = first..at(self.asks.len());
        self.checks += asks.len();
        self.callers.push(Caller { asks, answer });
        answered
    }

    /// Adds hits to a counter; none looks at it.
    pub(super) fn count(&mut self, key: &str, id: Key, hits: u64, expiry: Expiry) {
        let hits = hits.min(MOST_HITS);
        let next = at(self.commands.len());
        let known = self.counting.get(&id).copied().filter(|command| self.join(*command, hits, expiry));
        let command = known.unwrap_or(next);
        if known.is_none() {
            self.counting.insert(id, next);
            self.push(key, CommandKind::Count { id, added: hits, expiry, asking: false });
        }
        self.asks.push(Ask { command, hits: Hits::Take(hits) });
    }

    /// Adds hits to a counter whose slot is on its way to the server that is asked.
    pub(super) fn count_asking(&mut self, key: &str, id: Key, hits: u64, expiry: Expiry) {
        let hits = hits.min(MOST_HITS);
        self.asks.push(Ask { command: at(self.commands.len()), hits: Hits::Take(hits) });
        self.push(key, CommandKind::Count { id, added: hits, expiry, asking: true });
    }

    /// Gives hits back to a counter.
    pub(super) fn give_back(&mut self, key: &str, id: Key, hits: u64) {
        // Hits that come later are counted later, so that each sees what it would have seen alone.
        self.counting.remove(&id);
        let hits = hits.min(MOST_HITS);
        self.asks.push(Ask { command: at(self.commands.len()), hits: Hits::GiveBack(hits) });
        self.push(key, CommandKind::GiveBack { hits });
    }

    /// Counts several checks in one step on the server: as long as none would be over its limit all
    /// count, else only those that would.
    pub(super) fn count_guarded<'a>(&mut self, checks: impl ExactSizeIterator<Item = Guarded<'a>>) {
        // What was gathered before is counted before; what comes later must not join it.
        self.counting.clear();
        let command = at(self.commands.len());
        let keys = checks.len();
        let mut words = Vec::with_capacity(keys * 4);
        let mut arguments = Vec::with_capacity(keys * 3);
        for check in checks {
            words.push(check.key.as_bytes().to_vec());
            let (sign, hits) = match check.hits {
                Hits::Take(hits) => ("", hits),
                Hits::GiveBack(hits) => ("-", hits),
            };
            arguments.push(format!("{sign}{}", hits.min(MOST_HITS)).into_bytes());
            arguments.push(check.limit.to_string().into_bytes());
            arguments.push(check.seconds.to_string().into_bytes());
            self.asks.push(Ask { command, hits: check.hits });
        }
        words.append(&mut arguments);
        self.push("", CommandKind::Guarded { words, keys });
    }

    /// Gives an expiry to a key that has lost its own.
    pub(super) fn expire(&mut self, key: &str, seconds: u32) {
        self.push(key, CommandKind::Expire { seconds });
    }

    fn push(&mut self, key: &str, kind: CommandKind) {
        let start = at(self.keys.len());
        self.keys.extend_from_slice(key.as_bytes());
        self.commands.push(Command { key: start..at(self.keys.len()), kind });
    }

    /// Adds hits to a command that counts the key already, if they fit.
    fn join(&mut self, command: u32, hits: u64, expiry: Expiry) -> bool {
        let known = self.commands.get_mut(command as usize);
        let Some(Command { kind: CommandKind::Count { added, expiry: known, .. }, .. }) = known else {
            return false;
        };
        let fits = *added + hits <= MOST_HITS;
        if fits {
            *added += hits;
            known.told |= expiry.told;
        }
        fits
    }

    /// Writes the pipeline.
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        for command in &self.commands {
            self.write_command(command, into, script::Form::Hash);
        }
    }

    /// Writes the commands at these places with the whole text of their scripts, which the server did
    /// not know.
    pub(super) fn write_with_scripts(&self, places: &[usize], into: &mut Vec<u8>) {
        for command in places.iter().filter_map(|place| self.commands.get(*place)) {
            self.write_command(command, into, script::Form::Text);
        }
    }

    fn write_command(&self, command: &Command, into: &mut Vec<u8>, form: script::Form) {
        let key = self.key(command);
        match &command.kind {
            CommandKind::Count { added, expiry, asking, .. } => {
                if *asking {
                    resp::write_command(into, &[b"ASKING"]);
                }
                if *added == 0 {
                    resp::write_command(into, &[b"GET", key]);
                    return;
                }
                resp::begin_command(into, 3);
                resp::write_word(into, b"INCRBY");
                resp::write_word(into, key);
                resp::write_number(into, *added);
                if expiry.told {
                    write_expire(into, key, expiry.seconds);
                }
            }
            CommandKind::GiveBack { hits } => {
                script::GIVE_BACK.begin(into, form, 1, 1);
                resp::write_word(into, key);
                resp::write_number(into, *hits);
            }
            CommandKind::Guarded { words, keys } => {
                script::COUNT_GUARDED.begin(into, form, *keys, words.len() - keys);
                for word in words {
                    resp::write_word(into, word);
                }
            }
            CommandKind::Expire { seconds } => write_expire(into, key, *seconds),
        }
    }

    /// How many answers the pipeline gets.
    pub(super) fn answers(&self) -> usize {
        self.commands.iter().map(Command::answers).sum()
    }

    /// The commands, by place, whose script the server did not know; with the place of each one's answer.
    pub(super) fn unknown_scripts(&self, replies: &[Reply]) -> Vec<(usize, usize)> {
        let mut unknown = Vec::new();
        let mut reply = 0;
        for (place, command) in self.commands.iter().enumerate() {
            let scripted = matches!(command.kind, CommandKind::GiveBack { .. } | CommandKind::Guarded { .. });
            if scripted
                && matches!(replies.get(reply), Some(Reply::Error(error)) if error.starts_with("NOSCRIPT"))
            {
                unknown.push((place, reply));
            }
            reply += command.answers();
        }
        unknown
    }

    /// Deals the answers out to the callers. `tell` makes a failure of an error that the server at hand
    /// answered.
    pub(super) fn deal(&mut self, replies: Vec<Reply>, tell: impl Fn(Kind, &str) -> Failure) -> Shown {
        let mut shown = Shown::default();
        let mut replies = replies.into_iter();
        let mut dealing = Vec::with_capacity(self.commands.len());
        for command in &self.commands {
            dealing.push(self.result(command, &mut replies, &mut shown, &tell));
        }
        for caller in self.callers.drain(..) {
            let asks =
                self.asks.get(caller.asks.start as usize..caller.asks.end as usize).unwrap_or_default();
            let outcomes = outcomes(asks, &mut dealing);
            // A caller that has gone away does not mind.
            let _ = caller.answer.send(Ok(outcomes));
        }
        shown
    }

    /// Tells every caller that nothing came of it.
    pub(super) fn fail(&mut self, error: &StoreError) {
        for caller in self.callers.drain(..) {
            let _ = caller.answer.send(Err(error.clone()));
        }
    }

    /// Reads a command's answers.
    fn result(
        &self,
        command: &Command,
        replies: &mut impl Iterator<Item = Reply>,
        shown: &mut Shown,
        tell: &impl Fn(Kind, &str) -> Failure,
    ) -> Dealing {
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        let not = |error: &str, shown: &mut Shown| {
            let kind = Kind::of_answer(error);
            let failure = Arc::new(tell(kind, error));
            shown.failures.push(failure.clone());
            Dealing::Not(if kind == Kind::Moved {
                Outcome::Elsewhere(error.into())
            } else {
                Outcome::Failed(failure)
            })
        };
        match &command.kind {
            CommandKind::Count { id, added, expiry, asking } => {
                if *asking {
                    next();
                }
                let count = number(next());
                if *added > 0 && expiry.told {
                    next();
                }
                let after = match count {
                    Ok(after) => after,
                    Err(error) => return not(&error, shown),
                };
                let before = after.saturating_sub(*added);
                if *added > 0 && expiry.told {
                    shown.expiring.push((*id, expiry.end));
                } else if *added > 0 && before == 0 {
                    let key = String::from_utf8_lossy(self.key(command));
                    shown.immortal.push((key.into(), expiry.seconds));
                }
                Dealing::Running(before)
            }
            CommandKind::GiveBack { .. } => match number(next()) {
                Ok(after) => Dealing::Left(after),
                Err(error) => not(&error, shown),
            },
            CommandKind::Guarded { keys, .. } => match numbers(next(), *keys) {
                Ok(each) => Dealing::Each(each),
                Err(error) => not(&error, shown),
            },
            CommandKind::Expire { .. } => {
                next();
                Dealing::Left(0)
            }
        }
    }

    fn key(&self, command: &Command) -> &[u8] {
        self.keys.get(command.key.start as usize..command.key.end as usize).unwrap_or_default()
    }
}

impl Command {
    fn answers(&self) -> usize {
        match &self.kind {
            CommandKind::Count { added, expiry, asking, .. } => {
                1 + usize::from(*asking) + usize::from(*added > 0 && expiry.told)
            }
            _ => 1,
        }
    }
}

/// The outcomes of one caller's asks.
fn outcomes(asks: &[Ask], dealing: &mut [Dealing]) -> SmallVec<[Outcome; 2]> {
    let mut guarded = 0;
    let outcome = |ask: &Ask| match dealing.get_mut(ask.command as usize) {
        Some(Dealing::Running(count)) => {
            *count = fixed_window::count(*count, ask.hits);
            Outcome::Count(*count)
        }
        Some(Dealing::Left(count)) => Outcome::Count(*count),
        Some(Dealing::Each(each)) => {
            guarded += 1;
            Outcome::Count(each.get(guarded - 1).copied().unwrap_or_default())
        }
        Some(Dealing::Not(outcome)) => outcome.clone(),
        // Every ask names a command of its own bundle.
        None => Outcome::Count(0),
    };
    asks.iter().map(outcome).collect()
}

fn write_expire(into: &mut Vec<u8>, key: &[u8], seconds: u32) {
    resp::begin_command(into, 3);
    resp::write_word(into, b"EXPIRE");
    resp::write_word(into, key);
    resp::write_number(into, u64::from(seconds));
}

/// A counter's value; nothing counts 0, and so does what somebody else took below 0.
fn number(reply: Reply) -> Result<u64, String> {
    match reply {
        Reply::Integer(number) => Ok(u64::try_from(number).unwrap_or_default()),
        Reply::Nil => Ok(0),
        Reply::Text(text) => {
            let number = str::from_utf8(&text).ok().and_then(|text| text.parse::<i64>().ok());
            let number = number.ok_or("ERR value is not an integer or out of range")?;
            Ok(u64::try_from(number).unwrap_or_default())
        }
        Reply::Error(error) => Err(error),
        Reply::List(_) => Err("a list came where a number was asked".to_owned()),
    }
}

fn numbers(reply: Reply, expected: usize) -> Result<SmallVec<[u64; 4]>, String> {
    match reply {
        Reply::List(list) if list.len() == expected => list.into_iter().map(number).collect(),
        Reply::Error(error) => Err(error),
        _ => Err(format!("{expected} numbers were asked and something else came")),
    }
}

/// A bundle never comes near four thousand million of anything: its queue is bounded.
fn at(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
