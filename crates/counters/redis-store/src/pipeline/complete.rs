//! Reads a pipeline's replies: outcomes of checks, and facts about the server and its keys.

use std::sync::Arc;

use super::{
    CheckResult, Counted, Expire, Expiry, PendingCheck, RedisPipeline,
    command::{Command, CommandKind},
    script_call::ScriptReply,
};
use crate::{
    failure::{self, Failure, FailureKind},
    login::CurrentLogin,
    permissions,
    resp::{self, Reply},
    script::Form,
    write_check,
};
use clock::Time;
use counters::{Closed, CounterId, HoldAccount};
use limit::fixed_window;
use wire::at_mut;

/// Facts about the server and its keys from a pipeline's replies.
#[derive(Default)]
pub(crate) struct Learned {
    pub failures: Vec<Arc<Failure>>,
    /// Keys that have an expiry, and the end of their windows.
    pub(crate) expiring: Vec<(CounterId, Time)>,
    /// Keys that were created without one because the server had lost them, and their expiry in seconds.
    pub(crate) missing_ttl: Vec<(Box<str>, u32)>,
    /// The number of counted keys whose expiry could not be set.
    pub(crate) without_expiry: usize,
    /// Whether the server accepts writes, if that was tested.
    pub(crate) accepts_writes: Option<bool>,
    /// A login with changed credentials, and the server's error if it refused them.
    pub(crate) login: Option<(Arc<CurrentLogin>, Result<(), String>)>,
}

/// A command's result, while its callers get their outcomes.
enum Completion {
    /// The counter before the next caller's hits.
    Running(u64),
    Script(ScriptReply),
    /// Of a command with one caller, or a failure, which is that of all.
    Same(CheckResult),
    /// Of a command without callers.
    Done,
}

/// Collects facts, and converts errors to failures.
struct Reading<'a> {
    learned: Learned,
    failure: &'a dyn Fn(FailureKind, &str) -> Failure,
    /// What the next failure's message ends with.
    advice: String,
}

impl RedisPipeline {
    /// Answers the callers from the replies. `failure` converts error replies.
    pub(crate) fn complete(
        &mut self,
        replies: Vec<Reply>,
        failure: impl Fn(FailureKind, &str) -> Failure,
    ) -> Learned {
        let mut reading = Reading { learned: Learned::default(), failure: &failure, advice: String::new() };
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
        #[expect(clippy::expect_used, reason = "asserts that the replies are those of the commands")]
        let mut next = || replies.next().expect("a connection waits for every reply");
        let asking = if command.asking { done(next()) } else { Ok(()) };
        let result = match &command.kind {
            CommandKind::Count { id, added, expiry } => {
                self.counted(command, *id, *added, *expiry, &mut next, reading)
            }
            CommandKind::Lease(call) => {
                let leased = call.read(next(), &mut reading.learned.expiring);
                leased.map(|(after, grant)| Completion::Same(CheckResult::Leased(after, grant)))
            }
            CommandKind::Hold(call) => call.read(next()).map(|(holding, expired)| {
                tell(call.account.as_ref(), &expired);
                Completion::Same(CheckResult::Holds(holding))
            }),
            CommandKind::Close(call) => call.read(next()).map(|(left, closed)| {
                tell(call.account.as_ref(), &closed);
                Completion::Same(CheckResult::Closed(left))
            }),
            CommandKind::Script(call) => {
                let mut expiring = Vec::new();
                let failed = |error: &str| reading.failed(error, 1, command.name());
                let read = call.read(next(), &mut expiring, failed);
                reading.learned.expiring.append(&mut expiring);
                read.map(Completion::Script)
            }
            CommandKind::Expire { .. } => {
                if let Err(error) = next().into_integer() {
                    reading.no_expiry(&error);
                }
                Ok(Completion::Done)
            }
            CommandKind::ProbeWrites => {
                reading.learned.accepts_writes = match write_check::refusal(next()) {
                    Ok(()) => Some(true),
                    // Another server owns the slot now.
                    Err(error) if failure::kind_of_reply(&error) == FailureKind::Moved => None,
                    Err(error) => {
                        reading.failed(&error, 1, command.name());
                        Some(false)
                    }
                };
                Ok(Completion::Done)
            }
            CommandKind::LogIn(login) => {
                reading.learned.login = Some((login.clone(), done(next())));
                Ok(Completion::Done)
            }
        };
        asking.and(result).unwrap_or_else(|error| {
            if permissions::is_about_a_key(&error) {
                reading.advice = permissions::key_advice(command.name(), &self.first_key(command));
            }
            Completion::Same(reading.failed(&error, command.keys(), command.name()))
        })
    }

    /// The count before the hits that a command added. Records whether it set the expiry.
    fn counted(
        &self,
        command: &Command,
        id: CounterId,
        added: u64,
        expiry: Expiry,
        mut next: impl FnMut() -> Reply,
        reading: &mut Reading<'_>,
    ) -> Result<Completion, String> {
        if added == 0 {
            return number(next()).map(Completion::Running);
        }
        let count = or_most(next().into_integer());
        let set = (expiry.set != Expire::Known).then(|| {
            let asking = if command.asking { done(next()) } else { Ok(()) };
            asking.and_then(|()| next().into_integer())
        });
        // Another program may have written a negative number, which has no hits.
        let before = count?.saturating_sub_unsigned(added).max(0).cast_unsigned();
        match set {
            Some(Ok(1..)) => reading.learned.expiring.push((id, expiry.end)),
            Some(Err(error)) => reading.no_expiry(&error),
            None if before == 0 => {
                let key = String::from_utf8_lossy(self.key(command)).into();
                reading.learned.missing_ttl.push((key, expiry.seconds));
            }
            // After 0, the key was evicted or deleted meanwhile. The next hit creates it again.
            Some(Ok(..=0)) | None => {}
        }
        Ok(Completion::Running(before))
    }

    /// The first key of a command that was not sent after `ASKING`.
    fn first_key(&self, command: &Command) -> String {
        let mut bytes = Vec::new();
        self.write_command(command, &mut bytes, Form::Hash);
        // A script's keys follow its hash and their number.
        let at = if command.name() == "evalsha" { 3 } else { 1 };
        let words = match resp::read(&bytes) {
            Ok(Some((Reply::List(words), _))) => words,
            _ => Vec::new(),
        };
        words.get(at).and_then(Reply::text).unwrap_or_default().to_owned()
    }
}

impl Reading<'_> {
    fn no_expiry(&mut self, error: &str) {
        self.failed(error, 1, "expire");
        self.learned.without_expiry += 1;
    }

    /// The outcome of an error reply to a command with this many keys.
    fn failed(&mut self, error: &str, keys: usize, command: &'static str) -> CheckResult {
        let kind = match failure::kind_of_reply(error) {
            // Some of the keys are migrating: each is counted alone.
            FailureKind::ClusterDown if keys > 1 && cannot_count_together(error) => FailureKind::Moved,
            kind => kind,
        };
        let mut failure = (self.failure)(kind, error);
        failure.denied = (kind == FailureKind::Denied).then_some(command);
        failure.message.push_str(&std::mem::take(&mut self.advice));
        let failure = Arc::new(failure);
        self.learned.failures.push(failure.clone());
        match kind {
            FailureKind::Moved => CheckResult::Redirected(error.into()),
            _ => CheckResult::Failed(failure),
        }
    }
}

/// Here and not by the caller, who may have left.
fn tell(account: Option<&HoldAccount>, closed: &[Closed]) {
    if let Some(account) = account {
        account.answered(closed);
    }
}

fn outcome(check: &PendingCheck, results: &mut [Completion]) -> CheckResult {
    match at_mut(results, check.command) {
        Completion::Running(count) => {
            *count = fixed_window::count(*count, check.hits);
            CheckResult::Counted(Counted::After(*count))
        }
        Completion::Script(reply) => reply.outcome(check),
        // A request has one caller.
        Completion::Same(CheckResult::Holds(holding)) => CheckResult::Holds(std::mem::take(holding)),
        Completion::Same(result) => result.clone(),
        Completion::Done => unreachable!("a command without callers has a check"),
    }
}

/// True for the error of a server that has only some of a command's keys because their slot is migrating.
pub(crate) fn cannot_count_together(error: &str) -> bool {
    error.starts_with("TRYAGAIN")
}

/// The largest integer of Redis instead of its overflow error.
fn or_most(count: Result<i64, String>) -> Result<i64, String> {
    count.or_else(|error| if error.contains("would overflow") { Ok(i64::MAX) } else { Err(error) })
}

/// A counter's value; 0 for a missing key and a negative number.
fn number(reply: Reply) -> Result<u64, String> {
    match reply {
        Reply::Nil => Ok(0),
        Reply::Text(_) => {
            let number = reply.text().and_then(|text| text.parse::<i64>().ok());
            let number = number.ok_or("ERR value is not an integer or out of range")?;
            Ok(number.max(0).cast_unsigned())
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
