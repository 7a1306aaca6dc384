//! A pipeline of Redis commands. Hits on the same key share a command, keys that a script counts share one too, and each
//! caller gets the outcome that it would have got alone.
//!
//! There is no I/O here: a connection fills a pipeline, sends the bytes of [`RedisPipeline::write`], and passes all
//! replies to [`RedisPipeline::complete`]. `command` writes commands, `complete` reads replies. `script_call` does both
//! for keys that a script counts (`reply_state` has their states), `lease` for hits that are added ahead of time.

mod command;
mod complete;
mod hold;
mod lease;
mod reply_state;
mod script_call;

use std::{slice, sync::Arc};

use hashbrown::HashMap;

use super::{failure::Failure, login::CurrentLogin};
use clock::Time;
use command::{Command, CommandKind};
use counters::{Check, CounterId};
pub use lease::Receipt;
use limit::{Hits, Verdict, lease::Grant};
use script_call::{CountMode, ScriptCall, is_log};
use wire::{Callers, Keys, Pipeline, at, at_mut, index};
pub(super) use {
    complete::{Learned, cannot_count_together},
    hold::{CloseCall, HOLDS_OF, HoldCall, HoldPart, Holding, Left, ToClose},
    lease::LeaseCall,
    script_call::ScriptCheck,
};

#[derive(Clone, Debug)]
pub(super) enum CheckResult {
    Counted(Counted),
    /// The counter after hits were added ahead of time, and whether they were.
    Leased(u64, Grant),
    Holds(Holding),
    Closed(Left),
    /// Not counted: the server redirected it, or cannot count it together with others. Contains the error reply.
    Redirected(Arc<str>),
    Failed(Arc<Failure>),
}

/// What the server has found of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// A fixed window's count after the hits.
    After(u64),
    /// A fixed window's count; the hits were not added because they, or others of their group, do not fit.
    Without(u64),
    Decided(Verdict),
}

impl Counted {
    pub(super) fn verdict(self, check: &Check, now: Time) -> Verdict {
        match self {
            Self::After(count) => check.counted(count, now),
            Self::Without(count) => check.not_counted(count, now),
            Self::Decided(verdict) => verdict,
        }
    }
}

/// The maximum that one caller adds on the server, though its outcome includes all of its hits. It is above every
/// limit, 1,000 such hits do not overflow a counter of Redis, and Lua numbers are exact up to it.
const MAX_HITS: u64 = 1 << 53;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expiry {
    /// Seconds from now.
    pub(super) seconds: u32,
    pub(super) end: Time,
    pub(super) set: Expire,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Expire {
    /// Not at all: this process has set it in this window.
    Known,
    Set,
}

#[derive(Default)]
pub(super) struct RedisPipeline {
    /// The keys of commands with one key.
    keys: Keys,
    commands: Vec<Command>,
    /// The last command of each key, or of the first key of a rule with several limits: later hits may join it.
    latest: HashMap<CounterId, CommandKey>,
    /// The script call that the next key of a slot joins: one for logs, one for other state.
    filling: HashMap<(bool, u16), u32>,
    callers: Callers<PendingCheck, CheckResult>,
}

/// A command and the index of one of its keys.
#[derive(Clone, Copy)]
struct CommandKey {
    command: u32,
    key: u32,
}

pub(super) struct PendingCheck {
    command: u32,
    /// The indexes of the key and of its run, if a script counts it.
    key: u32,
    run: u32,
    hits: Hits,
}

impl Pipeline for RedisPipeline {
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
        self.barrier();
        self.callers.clear();
    }
}

impl RedisPipeline {
    pub(super) fn count(&mut self, key: &str, id: CounterId, hits: u64, expiry: Expiry) {
        let added = hits.min(MAX_HITS);
        let latest = self.latest.get(&id).map(|latest| latest.command);
        let command = latest.filter(|command| self.join(*command, added, expiry)).unwrap_or_else(|| {
            let command = self.push(key, CommandKind::Count { id, added, expiry });
            self.latest.insert(id, CommandKey { command, key: 0 });
            command
        });
        self.callers.push(PendingCheck { command, key: 0, run: 0, hits: Hits::Take(hits) });
    }

    /// Adds or returns hits of a lease.
    pub(super) fn lease(&mut self, key: &str, call: LeaseCall) {
        let command = self.push(key, CommandKind::Lease(call));
        self.callers.push(PendingCheck { command, key: 0, run: 0, hits: Hits::Take(0) });
    }

    /// Holds the parts of a request in a slot; `asking` if the server is importing it.
    pub(super) fn hold(&mut self, call: HoldCall, asking: bool) {
        self.push_holding(CommandKind::Hold(call), asking);
    }

    pub(super) fn close(&mut self, call: CloseCall, asking: bool) {
        self.push_holding(CommandKind::Close(call), asking);
    }

    fn push_holding(&mut self, kind: CommandKind, asking: bool) {
        let command = self.push("", kind);
        at_mut(&mut self.commands, command).asking = asking;
        self.callers.push(PendingCheck { command, key: 0, run: 0, hits: Hits::Take(0) });
    }

    /// Counts a check by a script. Keys in the same `slot` share a command.
    pub(super) fn count_alone(&mut self, id: CounterId, slot: u16, check: &ScriptCheck<'_>) {
        let latest = self.latest.get(&id).copied();
        let joined = latest.filter(|latest| self.is_unit(*latest, slice::from_ref(check)));
        let target = joined.unwrap_or_else(|| {
            let filling = (is_log(check.algorithm), slot);
            // A call reads all of its keys first, so it has no key twice.
            let open = self.filling.get(&filling).copied().filter(|_| latest.is_none());
            let open = open.filter(|command| !self.script_call(*command).is_full());
            let command = open.unwrap_or_else(|| {
                let new = self.push_call(CountMode::Each);
                self.filling.insert(filling, new);
                new
            });
            let target = CommandKey { command, key: self.script_call(command).push(check) };
            self.latest.insert(id, target);
            target
        });
        self.add_check(target, check.hits);
    }

    /// Counts the limits of a rule in one step on the server: if one rejects the hits, none counts them. `id` is the hash
    /// of their first key.
    pub(super) fn count_together(&mut self, id: CounterId, checks: &[ScriptCheck<'_>]) {
        let joined = self.latest.get(&id).copied().filter(|latest| self.is_unit(*latest, checks));
        let CommandKey { command, key: first } = joined.unwrap_or_else(|| {
            let command = self.push_call(CountMode::Units);
            for check in checks {
                self.script_call(command).push(check);
            }
            self.latest.insert(id, CommandKey { command, key: 0 });
            CommandKey { command, key: 0 }
        });
        for (check, key) in checks.iter().zip(first..) {
            self.add_check(CommandKey { command, key }, check.hits);
        }
    }

    /// Counts several checks in one step on the server: all unless they refuse the request, else only those that would be
    /// over their limits. `codes` has what each means for the request.
    pub(super) fn count_guarded(&mut self, checks: &[ScriptCheck<'_>], codes: &[u64]) {
        // Later hits must not join commands before this one.
        self.barrier();
        let command = self.push_call(CountMode::Guarded(codes.into()));
        for check in checks {
            let key = self.script_call(command).push(check);
            self.add_check(CommandKey { command, key }, check.hits);
        }
    }

    fn add_check(&mut self, CommandKey { command, key }: CommandKey, hits: Hits) {
        let run = self.script_call(command).join(key, hits);
        self.callers.push(PendingCheck { command, key, run, hits });
    }

    fn is_unit(&self, first: CommandKey, checks: &[ScriptCheck<'_>]) -> bool {
        match &at(&self.commands, first.command).kind {
            CommandKind::Script(call) => call.is_unit(first.key, checks),
            _ => false,
        }
    }

    fn script_call(&mut self, command: u32) -> &mut ScriptCall {
        match &mut at_mut(&mut self.commands, command).kind {
            CommandKind::Script(call) => call,
            _ => unreachable!("the command was pushed as a script call"),
        }
    }

    /// Lets `fill` add one check, or the limits of one rule, as a command of its own. `asking` if its slot is being
    /// imported by the server.
    pub(super) fn add_alone(&mut self, asking: bool, fill: impl FnOnce(&mut Self)) {
        self.barrier();
        fill(self);
        self.barrier();
        if let Some(command) = self.commands.last_mut() {
            command.asking = asking;
        }
    }

    /// Sets the expiry of a key without one.
    pub(super) fn expire(&mut self, key: &str, seconds: u32) {
        self.push(key, CommandKind::Expire { seconds });
    }

    pub(super) fn probe_writes(&mut self, key: &str) {
        self.push(key, CommandKind::ProbeWrites);
    }

    pub(super) fn log_in(&mut self, login: &Arc<CurrentLogin>) {
        self.push("", CommandKind::LogIn(login.clone()));
    }

    /// Ends the joining of earlier commands.
    fn barrier(&mut self) {
        self.latest.clear();
        self.filling.clear();
    }

    fn push_call(&mut self, counts: CountMode) -> u32 {
        self.push("", CommandKind::Script(ScriptCall::new(counts)))
    }

    fn push(&mut self, key: &str, kind: CommandKind) -> u32 {
        let command = index(self.commands.len());
        self.commands.push(Command { key: self.keys.push(key), asking: false, kind });
        command
    }

    /// Adds hits to an earlier command, if it counts and the sum is in bounds.
    fn join(&mut self, command: u32, hits: u64, expiry: Expiry) -> bool {
        let CommandKind::Count { added, expiry: known, .. } = &mut at_mut(&mut self.commands, command).kind
        else {
            return false;
        };
        let Some(together) = added.checked_add(hits).filter(|together| *together <= MAX_HITS) else {
            return false;
        };
        *added = together;
        // If two windows share a key, the longer one sets the expiry.
        if expiry.set != Expire::Known && (known.set == Expire::Known || known.end < expiry.end) {
            *known = expiry;
        }
        true
    }
}

/// The hits that are sent.
fn clamped(hits: Hits) -> Hits {
    match hits {
        Hits::Take(hits) => Hits::Take(hits.min(MAX_HITS)),
        Hits::Refund(hits) => Hits::Refund(hits.min(MAX_HITS)),
    }
}

#[cfg(test)]
mod tests;
