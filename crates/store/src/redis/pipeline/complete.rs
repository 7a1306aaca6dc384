//! Reads a pipeline's replies: outcomes of checks, and facts about the server and its keys.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Expire, Expiry, Outcome, PendingCheck, RedisPipeline,
    command::{Command, CommandKind},
    lease,
    reply_state::ReplyState,
    rule_limits,
};
use crate::{
    redis::{
        failure::{Failure, Kind},
        resp::Reply,
        write_check,
    },
    table::Key,
};
use algorithms::fixed_window;
use algorithms::lease::Grant;
use clock::Time;

/// Facts about the server and its keys from a pipeline's replies.
#[derive(Default)]
pub(crate) struct Learned {
    pub failures: Vec<Arc<Failure>>,
    /// Keys that have an expiry, and the end of their windows.
    pub expiring: Vec<(Key, Time)>,
    /// Keys that were created without one because the server had lost them, and their expiry in seconds.
    pub missing_ttl: Vec<(Box<str>, u32)>,
    /// Counted keys whose expiry was not set because the script was denied; `EXPIRE` may work.
    pub not_extended: Vec<(Box<str>, u32)>,
    /// The number of counted keys whose expiry could not be set.
    pub without_expiry: usize,
    /// Denied commands, once per denial.
    pub denied: Vec<&'static str>,
    /// Commands that a permission test found denied.
    pub missing: Vec<&'static str>,
    /// Whether the server accepts writes, if that was tested.
    pub accepts_writes: Option<bool>,
}

/// A command's result, while its callers get their outcomes.
enum Completion {
    /// The counter before the next caller's hits.
    Running(u64),
    /// The counter after the command.
    Final(u64),
    /// The counter after a request to lease hits, and whether it was granted.
    Leased(u64, Grant),
    /// The state of each key before the next caller's hits, at this time.
    ScriptCall(Time, Vec<Result<ReplyState, Outcome>>),
    Each(SmallVec<[crate::Outcome; 4]>),
    /// The limits of a rule before the next caller's hits, and the outcomes of the last one.
    RuleLimits(Time, SmallVec<[rule_limits::Limit; 2]>, SmallVec<[crate::Outcome; 2]>),
    Failed(Outcome),
}

/// Collects facts, and converts errors to failures.
struct Reading<'a> {
    learned: Learned,
    failure: &'a dyn Fn(Kind, &str) -> Failure,
}

impl RedisPipeline {
    /// Answers the callers from the replies. `failure` converts error replies.
    pub(crate) fn complete(
        &mut self,
        replies: Vec<Reply>,
        failure: impl Fn(Kind, &str) -> Failure,
    ) -> Learned {
        let mut reading = Reading { learned: Learned::default(), failure: &failure };
        let mut replies = replies.into_iter();
        let mut results = Vec::with_capacity(self.commands.len());
        for command in &self.commands {
            results.push(self.result(command, &mut replies, &mut reading));
        }
        self.callers.complete(|check| outcome(check, &mut results));
        reading.learned
    }

    fn result(
        &self,
        command: &Command,
        replies: &mut impl Iterator<Item = Reply>,
        reading: &mut Reading<'_>,
    ) -> Completion {
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        let asking = if command.asking { done(next()) } else { Ok(()) };
        let result = match &command.kind {
            CommandKind::Count { id, added, expiry } => {
                self.counted(command, (*id, *added, *expiry), &mut next, reading)
            }
            CommandKind::Refund { .. } | CommandKind::ReturnHits { .. } => {
                next().into_integer().map(Completion::Final)
            }
            CommandKind::Lease { id, expiry, .. } => leased(next(), (*id, *expiry), &mut reading.learned),
            CommandKind::ScriptCall(call) => call.read(next()).map(|(now, states)| {
                let states = states
                    .into_iter()
                    .map(|state| state.map_err(|error| reading.failed(&error, 1, command.name())));
                Completion::ScriptCall(now, states.collect())
            }),
            CommandKind::AtomicCheck(check) => {
                check.read(next(), &mut reading.learned.expiring).map(Completion::Each)
            }
            CommandKind::RuleLimits(limits) => {
                limits.read(next()).map(|(now, limits)| Completion::RuleLimits(now, limits, SmallVec::new()))
            }
            CommandKind::Expire { seconds, .. } => {
                if let Err(error) = next().into_integer() {
                    reading.no_expiry(self.key_text(command), *seconds, &error, command.name());
                }
                Ok(Completion::Final(0))
            }
            CommandKind::ProbeWrites => {
                reading.learned.accepts_writes = match write_check::refusal(next()) {
                    Ok(()) => Some(true),
                    // Another server owns the slot now.
                    Err(error) if Kind::of_reply(&error) == Kind::Moved => None,
                    Err(error) => {
                        reading.failed(&error, 1, command.name());
                        Some(false)
                    }
                };
                Ok(Completion::Final(0))
            }
            CommandKind::Check(needs) => {
                // A pipeline checks twice if rules are loaded while its connection is opened.
                let missing = &mut reading.learned.missing;
                let new = |command: &&str| !missing.contains(command);
                let found: Vec<_> = needs.denied(next).into_iter().filter(new).collect();
                missing.extend(found);
                Ok(Completion::Final(0))
            }
        };
        asking.and(result).unwrap_or_else(|error| {
            Completion::Failed(reading.failed(&error, command.keys(), command.name()))
        })
    }

    /// The count before the hits that a command added. Records whether it set the expiry.
    fn counted(
        &self,
        command: &Command,
        (id, added, expiry): (Key, u64, Expiry),
        mut next: impl FnMut() -> Reply,
        reading: &mut Reading<'_>,
    ) -> Result<Completion, String> {
        if added == 0 {
            return number(next()).map(Completion::Running);
        }
        let count = saturated(next().into_integer());
        let set = (expiry.set != Expire::Known).then(|| {
            let asking = if command.asking { done(next()) } else { Ok(()) };
            asking.and_then(|()| next().into_integer())
        });
        let before = count?.saturating_sub(added);
        match set {
            Some(Ok(1..)) => reading.learned.expiring.push((id, expiry.end)),
            Some(Err(error)) => {
                let by = if expiry.set == Expire::Extend { "evalsha" } else { "expire" };
                reading.no_expiry(self.key_text(command), expiry.seconds, &error, by);
            }
            None if before == 0 => {
                reading.learned.missing_ttl.push((self.key_text(command), expiry.seconds));
            }
            // After 0, the key was evicted or deleted meanwhile. The next hit creates it again.
            Some(Ok(0)) | None => {}
        }
        Ok(Completion::Running(before))
    }

    fn key_text(&self, command: &Command) -> Box<str> {
        String::from_utf8_lossy(self.key(command)).into()
    }
}

impl Reading<'_> {
    fn no_expiry(&mut self, key: Box<str>, seconds: u32, error: &str, by: &'static str) {
        self.failed(error, 1, by);
        if by == "evalsha" && Kind::of_reply(error) == Kind::Denied {
            self.learned.not_extended.push((key, seconds));
        } else {
            self.learned.without_expiry = self.learned.without_expiry.saturating_add(1);
        }
    }

    /// The outcome of an error reply to a command with this many keys.
    fn failed(&mut self, error: &str, keys: usize, command: &'static str) -> Outcome {
        let kind = match Kind::of_reply(error) {
            // Some of the keys are migrating: each is counted alone.
            Kind::ClusterDown if keys > 1 && cannot_count_together(error) => Kind::Moved,
            kind => kind,
        };
        if kind == Kind::Denied {
            self.learned.denied.push(command);
        }
        let failure = Arc::new((self.failure)(kind, error));
        self.learned.failures.push(failure.clone());
        match kind {
            Kind::Moved => Outcome::Redirected(error.into()),
            _ => Outcome::Failed(failure),
        }
    }
}

/// The reply to a lease. Records whether it set the expiry.
fn leased(reply: Reply, (id, expiry): (Key, Expiry), learned: &mut Learned) -> Result<Completion, String> {
    let (after, grant) = lease::read(reply)?;
    if grant == Grant::Added && expiry.set != Expire::Known {
        learned.expiring.push((id, expiry.end));
    }
    Ok(Completion::Leased(after, grant))
}

fn outcome(check: &PendingCheck, results: &mut [Completion]) -> Outcome {
    let key = check.target.key as usize;
    let outcome = match results.get_mut(check.target.command as usize) {
        Some(Completion::Running(count)) => {
            *count = fixed_window::count(*count, check.hits);
            crate::Outcome::Counted(*count)
        }
        Some(Completion::Leased(after, grant)) => return Outcome::Leased(*after, *grant),
        Some(Completion::Final(count)) => crate::Outcome::Counted(*count),
        Some(Completion::ScriptCall(now, states)) => match states.get_mut(key) {
            Some(Ok(state)) => crate::Outcome::Decided(state.apply(check.run, check.hits, *now)),
            Some(Err(outcome)) => return outcome.clone(),
            None => crate::Outcome::Counted(0),
        },
        Some(Completion::RuleLimits(now, limits, outcomes)) => {
            // A caller's checks of a rule are adjacent.
            if key == 0 {
                *outcomes = rule_limits::apply(limits, check.run, check.hits, *now);
            }
            outcomes.get(key).copied().unwrap_or(crate::Outcome::Counted(0))
        }
        Some(Completion::Each(each)) => each.get(key).copied().unwrap_or(crate::Outcome::Counted(0)),
        Some(Completion::Failed(outcome)) => return outcome.clone(),
        // Every check refers to a command of its own pipeline, and a key of it.
        None => crate::Outcome::Counted(0),
    };
    Outcome::Counted(outcome)
}

/// True for the error of a server that has only some of a command's keys because their slot is migrating.
pub(crate) fn cannot_count_together(error: &str) -> bool {
    error.starts_with("TRYAGAIN")
}

/// The largest integer of Redis instead of its overflow error.
fn saturated(count: Result<u64, String>) -> Result<u64, String> {
    count.or_else(
        |error| if error.contains("would overflow") { Ok(i64::MAX.unsigned_abs()) } else { Err(error) },
    )
}

/// A counter's value; a missing key is 0, and so is a negative number.
fn number(reply: Reply) -> Result<u64, String> {
    match reply {
        Reply::Nil => Ok(0),
        Reply::Text(_) => {
            let number = reply.text().and_then(|text| text.parse::<i64>().ok());
            let number = number.ok_or("ERR value is not an integer or out of range")?;
            Ok(u64::try_from(number).unwrap_or_default())
        }
        other => Err(other.unexpected("a counter's value")),
    }
}

/// `+OK`.
fn done(reply: Reply) -> Result<(), String> {
    match reply {
        Reply::Text(_) => Ok(()),
        other => Err(other.unexpected("OK")),
    }
}
