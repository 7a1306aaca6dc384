//! What is made of a pipeline's answers: an outcome for each check, dealt out in the order of asking, and
//! what they show about the server and its keys.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Expire, Expiry, Outcome, PendingCheck, RedisPipeline,
    command::{Command, CommandKind},
    reply_state::ReplyState,
    rule_limits,
};
use crate::{
    clock::Time,
    limiter::algorithm::fixed_window,
    store::{
        self,
        redis::{
            failure::{Failure, Kind, UNEXPECTED},
            resp::Reply,
        },
        table::Key,
    },
};

/// What a pipeline's answers have shown.
#[derive(Default)]
pub(in crate::store::redis) struct Learned {
    /// Errors that the server answered.
    pub(in crate::store::redis) failures: Vec<Arc<Failure>>,
    /// Keys that exist with an expiry, until their window ends.
    pub(in crate::store::redis) expiring: Vec<(Key, Time)>,
    /// Keys that were made without one, because the server had lost them.
    pub(in crate::store::redis) missing_ttl: Vec<(Box<str>, u32)>,
    /// Keys that were counted and whose expiry the server did not set, how many seconds they are to live, and whether
    /// that can be tried in another way.
    pub(in crate::store::redis) not_expiring: Vec<(Box<str>, u32, bool)>,
    /// Commands that the server does not run for our user, as often as it has refused them.
    pub(in crate::store::redis) denied: Vec<&'static str>,
    /// Those that were only tried.
    pub(in crate::store::redis) missing: Vec<&'static str>,
}

/// A command's result while it is dealt out.
enum Completion {
    /// The counter as the next caller finds it.
    Running(u64),
    /// The counter as the command left it.
    Left(u64),
    /// What each key's next caller finds at this moment.
    PendingScriptCall(Time, Vec<Result<ReplyState, Outcome>>),
    /// One outcome a key.
    Each(SmallVec<[store::Outcome; 4]>),
    /// The limits of a rule as the next caller finds them, and what the last one was told.
    RuleLimits(Time, SmallVec<[rule_limits::Limit; 2]>, SmallVec<[store::Outcome; 2]>),
    Not(Outcome),
}

/// Makes failures of what the server answered, and notes what the answers show.
struct Reading<'a> {
    shown: Learned,
    tell: &'a dyn Fn(Kind, &str) -> Failure,
}

impl RedisPipeline {
    /// Deals the answers out to the callers. `tell` makes a failure of an error that the server at hand
    /// answered.
    pub(in crate::store::redis) fn complete(
        &mut self,
        replies: Vec<Reply>,
        tell: impl Fn(Kind, &str) -> Failure,
    ) -> Learned {
        let mut reading = Reading { shown: Learned::default(), tell: &tell };
        let mut replies = replies.into_iter();
        let mut dealing = Vec::with_capacity(self.commands.len());
        for command in &self.commands {
            dealing.push(self.result(command, &mut replies, &mut reading));
        }
        for caller in self.callers.drain(..) {
            let asks =
                self.asks.get(caller.asks.start as usize..caller.asks.end as usize).unwrap_or_default();
            let outcomes = asks.iter().map(|check| outcome(check, &mut dealing)).collect();
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
    ) -> Completion {
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        let asked = if command.asking { done(next()) } else { Ok(()) };
        let result = match &command.kind {
            CommandKind::Count { id, added, expiry } => {
                let count = if *added > 0 { saturated(integer(next())) } else { number(next()) };
                let is_set = *added > 0 && expiry.set != Expire::Known;
                let set_asked = if is_set && command.asking { done(next()) } else { Ok(()) };
                let set = is_set.then(|| set_asked.and_then(|()| integer(next())));
                count.map(|after| {
                    let before = after.saturating_sub(*added);
                    match set {
                        Some(set) => self.expiry(command, *id, *expiry, set, reading),
                        None if *added > 0 && before == 0 => {
                            reading.shown.missing_ttl.push((self.key_text(command), expiry.seconds));
                        }
                        None => {}
                    }
                    Completion::Running(before)
                })
            }
            CommandKind::Refund { .. } => integer(next()).map(Completion::Left),
            CommandKind::ScriptCall(judging) => judging.read(next()).map(|(now, told)| {
                let told = told
                    .into_iter()
                    .map(|kept| kept.map_err(|error| reading.failed(&error, 1, command.name())));
                Completion::PendingScriptCall(now, told.collect())
            }),
            CommandKind::AtomicCheck(guarding) => {
                guarding.read(next(), &mut reading.shown.expiring).map(Completion::Each)
            }
            CommandKind::RuleLimits(together) => together
                .read(next())
                .map(|(now, limits)| Completion::RuleLimits(now, limits, SmallVec::new())),
            CommandKind::Expire { seconds, .. } => {
                if let Err(error) = integer(next()) {
                    reading.no_expiry(self.key_text(command), *seconds, &error, command.name());
                }
                Ok(Completion::Left(0))
            }
            CommandKind::Check(needs) => {
                reading.shown.missing.extend(needs.denied(next));
                Ok(Completion::Left(0))
            }
        };
        let result = asked.and(result);
        result.unwrap_or_else(|error| Completion::Not(reading.failed(&error, command.keys(), command.name())))
    }

    /// Notes what became of a key's expiry.
    fn expiry(
        &self,
        command: &Command,
        id: Key,
        expiry: Expiry,
        set: Result<u64, String>,
        reading: &mut Reading<'_>,
    ) {
        match set {
            Ok(1..) => reading.shown.expiring.push((id, expiry.end)),
            // It is gone already: evicted, or deleted. Who counts next makes it anew.
            Ok(0) => {}
            Err(error) => {
                let by = if expiry.set == Expire::Extend { "evalsha" } else { "expire" };
                reading.no_expiry(self.key_text(command), expiry.seconds, &error, by);
            }
        }
    }

    fn key_text(&self, command: &Command) -> Box<str> {
        String::from_utf8_lossy(self.key(command)).into()
    }
}

impl Reading<'_> {
    /// A key that was counted has got no expiry.
    fn no_expiry(&mut self, key: Box<str>, seconds: u32, error: &str, by: &'static str) {
        self.failed(error, 1, by);
        // A script that may not be run does no more than an ordinary command, but it never shortens.
        let is_denied = Kind::of_answer(error) == Kind::Denied;
        self.shown.not_expiring.push((key, seconds, is_denied && by == "evalsha"));
    }

    /// What an error that the server answered to a command of so many keys means for those who asked.
    fn failed(&mut self, error: &str, keys: usize, command: &'static str) -> Outcome {
        let kind = match Kind::of_answer(error) {
            // Some of the keys are on their way elsewhere. Each alone finds out which.
            Kind::ClusterDown if keys > 1 && cannot_count_together(error) => Kind::Moved,
            kind => kind,
        };
        if kind == Kind::Denied {
            self.shown.denied.push(command);
        }
        let failure = Arc::new((self.tell)(kind, error));
        self.shown.failures.push(failure.clone());
        match kind {
            Kind::Moved => Outcome::Elsewhere(error.into()),
            _ => Outcome::Failed(failure),
        }
    }
}

/// What one who asked is told.
fn outcome(check: &PendingCheck, dealing: &mut [Completion]) -> Outcome {
    let key = check.place.key as usize;
    let told = match dealing.get_mut(check.place.command as usize) {
        Some(Completion::Running(count)) => {
            *count = fixed_window::count(*count, check.hits);
            store::Outcome::Counted(*count)
        }
        Some(Completion::Left(count)) => store::Outcome::Counted(*count),
        Some(Completion::PendingScriptCall(now, kept)) => match kept.get_mut(key) {
            Some(Ok(kept)) => store::Outcome::Decided(kept.judge(check.run, check.hits, *now)),
            Some(Err(outcome)) => return outcome.clone(),
            None => store::Outcome::Counted(0),
        },
        Some(Completion::RuleLimits(now, limits, told)) => {
            // The checks of a caller follow each other.
            if key == 0 {
                *told = rule_limits::apply(limits, check.run, check.hits, *now);
            }
            told.get(key).copied().unwrap_or(store::Outcome::Counted(0))
        }
        Some(Completion::Each(each)) => each.get(key).copied().unwrap_or(store::Outcome::Counted(0)),
        Some(Completion::Not(outcome)) => return outcome.clone(),
        // Every ask names a command of its own pipeline, and a key of it.
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
fn number(reply: Reply) -> Result<u64, String> {
    match reply {
        Reply::Nil => Ok(0),
        Reply::Text(text) => {
            let number = str::from_utf8(&text).ok().and_then(|text| text.parse::<i64>().ok());
            let number = number.ok_or("ERR value is not an integer or out of range")?;
            Ok(u64::try_from(number).unwrap_or_default())
        }
        other => Err(unexpected("a counter's value", other)),
    }
}

/// A number that a command or a script answers; 0 for less.
pub(super) fn integer(reply: Reply) -> Result<u64, String> {
    match reply {
        Reply::Integer(number) => Ok(u64::try_from(number).unwrap_or_default()),
        other => Err(unexpected("a number", other)),
    }
}

/// `+OK`.
fn done(reply: Reply) -> Result<(), String> {
    match reply {
        Reply::Text(_) => Ok(()),
        other => Err(unexpected("OK", other)),
    }
}

/// The error that was answered, or what came instead of what a command answers: then this connection's answers may be
/// those of other commands, and it is left.
pub(super) fn unexpected(wanted: &str, reply: Reply) -> String {
    let came = match reply {
        Reply::Error(error) => return error,
        Reply::Integer(_) => "a number",
        Reply::Text(_) => "a text",
        Reply::Nil => "nothing",
        Reply::List(_) => "a list",
    };
    format!("{UNEXPECTED}: {came} came where {wanted} was to come")
}

/// So many answers to one command.
pub(super) fn list(reply: Reply, expected: usize) -> Result<Vec<Reply>, String> {
    match reply {
        Reply::List(list) if list.len() == expected => Ok(list),
        other => Err(unexpected(&format!("a list of {expected}"), other)),
    }
}
