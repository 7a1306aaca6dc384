//! What is made of a pipeline's answers: an outcome for each check, dealt out in the order of asking, and
//! what they show about the server and its keys.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Ask, Bundle, Outcome,
    command::{Command, CommandKind},
    kept::Kept,
};
use crate::{
    algorithm::fixed_window,
    clock::Time,
    store::{
        self,
        redis::{
            failure::{Failure, Kind},
            resp::Reply,
        },
    },
    table::Key,
};

/// What a bundle's answers have shown.
#[derive(Default)]
pub(in crate::store::redis) struct Shown {
    /// Errors that the server answered.
    pub(in crate::store::redis) failures: Vec<Arc<Failure>>,
    /// Keys that exist with an expiry, until their window ends.
    pub(in crate::store::redis) expiring: Vec<(Key, Time)>,
    /// Keys that were made without one, because the server had lost them.
    pub(in crate::store::redis) immortal: Vec<(Box<str>, u32)>,
}

/// A command's result while it is dealt out.
enum Dealing {
    /// The counter as the next caller finds it.
    Running(u64),
    /// The counter as the command left it.
    Left(u64),
    /// What each key's next caller finds at this moment.
    Judging(Time, Vec<Result<Kept, Outcome>>),
    /// One outcome a key.
    Each(SmallVec<[store::Outcome; 4]>),
    Not(Outcome),
}

/// Makes failures of what the server answered, and notes what the answers show.
struct Reading<'a> {
    shown: Shown,
    tell: &'a dyn Fn(Kind, &str) -> Failure,
}

impl Bundle {
    /// Deals the answers out to the callers. `tell` makes a failure of an error that the server at hand
    /// answered.
    pub(in crate::store::redis) fn deal(
        &mut self,
        replies: Vec<Reply>,
        tell: impl Fn(Kind, &str) -> Failure,
    ) -> Shown {
        let mut reading = Reading { shown: Shown::default(), tell: &tell };
        let mut replies = replies.into_iter();
        let mut dealing = Vec::with_capacity(self.commands.len());
        for command in &self.commands {
            dealing.push(self.result(command, &mut replies, &mut reading));
        }
        for caller in self.callers.drain(..) {
            let asks =
                self.asks.get(caller.asks.start as usize..caller.asks.end as usize).unwrap_or_default();
            let outcomes = asks.iter().map(|ask| outcome(ask, &mut dealing)).collect();
            // A caller that has gone away does not mind.
            let _ = caller.answer.send(Ok(outcomes));
        }
        reading.shown
    }

    /// Reads a command's answers.
    fn result(
        &self,
        command: &Command,
        replies: &mut impl Iterator<Item = Reply>,
        reading: &mut Reading<'_>,
    ) -> Dealing {
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        if command.asking {
            next();
        }
        let result = match &command.kind {
            CommandKind::Count { id, added, expiry } => {
                let count = saturated(number(next()));
                let is_told = *added > 0 && expiry.told;
                if is_told {
                    next();
                }
                count.map(|after| {
                    let before = after.saturating_sub(*added);
                    if is_told {
                        reading.shown.expiring.push((*id, expiry.end));
                    } else if *added > 0 && before == 0 {
                        let key = String::from_utf8_lossy(self.key(command));
                        reading.shown.immortal.push((key.into(), expiry.seconds));
                    }
                    Dealing::Running(before)
                })
            }
            CommandKind::GiveBack { .. } => number(next()).map(Dealing::Left),
            CommandKind::Judge(judging) => judging.read(next()).map(|(now, told)| {
                let told = told.into_iter().map(|kept| kept.map_err(|error| reading.failed(&error, 1)));
                Dealing::Judging(now, told.collect())
            }),
            CommandKind::Guard(guarding) => guarding.read(next()).map(Dealing::Each),
            CommandKind::Expire { .. } => {
                next();
                Ok(Dealing::Left(0))
            }
        };
        result.unwrap_or_else(|error| Dealing::Not(reading.failed(&error, command.keys())))
    }
}

impl Reading<'_> {
    /// What an error that the server answered to a command of so many keys means for those who asked.
    fn failed(&mut self, error: &str, keys: usize) -> Outcome {
        let kind = match Kind::of_answer(error) {
            // Some of the keys are on their way elsewhere. Each alone finds out which.
            Kind::ClusterDown if keys > 1 && cannot_count_together(error) => Kind::Moved,
            kind => kind,
        };
        let failure = Arc::new((self.tell)(kind, error));
        self.shown.failures.push(failure.clone());
        match kind {
            Kind::Moved => Outcome::Elsewhere(error.into()),
            _ => Outcome::Failed(failure),
        }
    }
}

/// What one who asked is told.
fn outcome(ask: &Ask, dealing: &mut [Dealing]) -> Outcome {
    let key = ask.place.key as usize;
    let told = match dealing.get_mut(ask.place.command as usize) {
        Some(Dealing::Running(count)) => {
            *count = fixed_window::count(*count, ask.hits);
            store::Outcome::Counted(*count)
        }
        Some(Dealing::Left(count)) => store::Outcome::Counted(*count),
        Some(Dealing::Judging(now, kept)) => match kept.get_mut(key) {
            Some(Ok(kept)) => store::Outcome::Judged(kept.judge(ask.run, ask.hits, *now)),
            Some(Err(outcome)) => return outcome.clone(),
            None => store::Outcome::Counted(0),
        },
        Some(Dealing::Each(each)) => each.get(key).copied().unwrap_or(store::Outcome::Counted(0)),
        Some(Dealing::Not(outcome)) => return outcome.clone(),
        // Every ask names a command of its own bundle, and a key of it.
        None => store::Outcome::Counted(0),
    };
    Outcome::Told(told)
}

/// True for the error of a server that has only some of a command's keys: the others are on their way.
pub(in crate::store::redis) fn cannot_count_together(error: &str) -> bool {
    error.starts_with("TRYAGAIN")
}

/// The largest number of Redis in place of the error that a counter cannot hold more.
fn saturated(count: Result<u64, String>) -> Result<u64, String> {
    count.or_else(
        |error| if error.contains("would overflow") { Ok(i64::MAX.unsigned_abs()) } else { Err(error) },
    )
}

/// A counter's value; nothing counts 0, and so does what somebody else took below 0.
pub(super) fn number(reply: Reply) -> Result<u64, String> {
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

pub(super) fn numbers(reply: Reply, expected: usize) -> Result<SmallVec<[u64; 4]>, String> {
    match reply {
        Reply::List(list) if list.len() == expected => list.into_iter().map(number).collect(),
        Reply::Error(error) => Err(error),
        _ => Err(format!("{expected} numbers were asked and something else came")),
    }
}
