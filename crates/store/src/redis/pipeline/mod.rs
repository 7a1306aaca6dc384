//! A pipeline of Redis commands. Hits on the same key share a command, keys that a script counts share one too, and each
//! caller gets the outcome that it would have got alone.
//!
//! There is no I/O here: a connection fills a pipeline, sends the bytes of [`RedisPipeline::write`], and passes all
//! replies to [`RedisPipeline::complete`]. `command` writes commands, `complete` reads replies. `script_call` does both
//! for keys that a script counts (`reply_state` decodes its reply), `rule_limits` for the limits of one rule,
//! `atomic_check` for all checks of a request in one step, `lease` for hits that are added ahead of time.

mod atomic_check;
mod command;
mod complete;
mod lease;
mod reply_state;
mod rule_limits;
mod script_call;

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::{failure::Failure, permissions::Needs};
use crate::{
    StoreError,
    remote::{Callers, Pipeline, index},
    table::Key,
};
use algorithms::Hits;
use algorithms::lease::Grant;
use atomic_check::PendingAtomicCheck;
use clock::Time;
use command::{Command, CommandKind};
pub(crate) use lease::Receipt;
use rule_limits::RuleLimits;
use script_call::PendingScriptCall;
pub(super) use {
    atomic_check::Guarded,
    complete::{Learned, cannot_count_together},
    lease::Leasing,
    script_call::ScriptCall,
};

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Counted(crate::Outcome),
    /// The counter after hits were added ahead of time, and whether they were.
    Leased(u64, Grant),
    /// Not counted: the server redirected it, or cannot count it together with others. Contains the error reply.
    Redirected(Arc<str>),
    Failed(Arc<Failure>),
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
    /// Unless there is a longer one, of a longer window that began at the same time.
    Extend,
}

#[derive(Default)]
pub(super) struct RedisPipeline {
    /// The keys of commands with one key, concatenated.
    keys: Vec<u8>,
    commands: Vec<Command>,
    /// The commands that later hits on the same key may join.
    counting: HashMap<Key, CommandKey>,
    /// The script call that the next key of a slot joins: one for logs, one for other state.
    filling: HashMap<(bool, u16), u32>,
    /// The commands that later callers of the same rule may join, by the first key.
    joining: HashMap<Key, u32>,
    callers: Callers<PendingCheck, Outcome>,
}

/// A command and the index of one of its keys.
#[derive(Clone, Copy)]
struct CommandKey {
    command: u32,
    key: u32,
}

pub(super) struct PendingCheck {
    target: CommandKey,
    /// The index of the key's run, if a script counts it.
    run: u32,
    hits: Hits,
}

impl Pipeline for RedisPipeline {
    type Check = PendingCheck;
    type Outcome = Outcome;

    fn callers(&self) -> &Callers<PendingCheck, Outcome> {
        &self.callers
    }

    fn callers_mut(&mut self) -> &mut Callers<PendingCheck, Outcome> {
        &mut self.callers
    }

    fn time_out(&mut self, error: &StoreError) {
        let commands = &self.commands;
        // The counter has the leased hits, whenever the reply arrives.
        let is_lease = |check: &PendingCheck| {
            let command = commands.get(check.target.command as usize);
            command.is_some_and(|command| matches!(command.kind, CommandKind::Lease { .. }))
        };
        self.callers.fail(error, is_lease);
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.commands.clear();
        self.barrier();
        self.callers.clear();
    }
}

impl RedisPipeline {
    /// Adds hits to a counter; 0 hits read it.
    pub(super) fn count(&mut self, key: &str, id: Key, hits: u64, expiry: Expiry) {
        let added = hits.min(MAX_HITS);
        let known = self.counting.get(&id).copied().filter(|target| self.join(*target, added, expiry));
        let target = known.unwrap_or_else(|| {
            let target = self.push(key, CommandKind::Count { id, added, expiry });
            self.counting.insert(id, target);
            target
        });
        self.callers.push(PendingCheck { target, run: 0, hits: Hits::Take(hits) });
    }

    pub(super) fn refund(&mut self, key: &str, id: Key, hits: u64) {
        // Later hits need a later command, so that each caller gets the outcome it would have got alone.
        self.counting.remove(&id);
        let hits = hits.min(MAX_HITS);
        let target = self.push(key, CommandKind::Refund { hits });
        self.callers.push(PendingCheck { target, run: 0, hits: Hits::Refund(hits) });
    }

    /// Adds hits to a counter if they are within its limit.
    pub(super) fn lease(
        &mut self,
        key: &str,
        id: Key,
        (hits, limit): (u64, u64),
        expiry: Expiry,
        leasing: Leasing,
    ) {
        let target = self.push(key, CommandKind::Lease { id, hits, limit, expiry, leasing });
        self.callers.push(PendingCheck { target, run: 0, hits: Hits::Take(hits) });
    }

    /// Returns unspent hits of a lease, of `own` that this replica has added.
    pub(super) fn return_hits(&mut self, key: &str, hits: u64, own: u64, leasing: Leasing) {
        let target = self.push(key, CommandKind::ReturnHits { hits, own, leasing });
        self.callers.push(PendingCheck { target, run: 0, hits: Hits::Refund(hits) });
    }

    /// Counts hits by a script. Keys in the same `slot` share a command.
    pub(super) fn call_script(&mut self, key: &str, id: Key, slot: u16, call: ScriptCall, hits: Hits) {
        let hits = within_bounds(hits);
        let target = self.counting.get(&id).copied().unwrap_or_else(|| {
            let target = self.script_key(key, slot, call);
            self.counting.insert(id, target);
            target
        });
        let run =
            self.script_call(target.command).map_or(0, |script_call| script_call.join(target.key, hits));
        self.callers.push(PendingCheck { target, run, hits });
    }

    fn script_key(&mut self, key: &str, slot: u16, call: ScriptCall) -> CommandKey {
        let filling = (call.is_log(), slot);
        let known = self.filling.get(&filling).copied();
        let known = known
            .filter(|command| self.script_call(*command).is_some_and(|script_call| !script_call.is_full()));
        let command = known.unwrap_or_else(|| {
            let new = self.push("", CommandKind::ScriptCall(PendingScriptCall::new(call.is_log()))).command;
            self.filling.insert(filling, new);
            new
        });
        CommandKey {
            command,
            key: self.script_call(command).map_or(0, |script_call| script_call.push(key, call)),
        }
    }

    fn script_call(&mut self, command: u32) -> Option<&mut PendingScriptCall> {
        match self.commands.get_mut(command as usize) {
            Some(Command { kind: CommandKind::ScriptCall(script_call), .. }) => Some(script_call),
            _ => None,
        }
    }

    /// Counts the limits of a rule in one step on the server: if one rejects the hits, none counts them. `id` is the hash
    /// of their first key.
    pub(super) fn count_together<'a>(
        &mut self,
        id: Key,
        hits: Hits,
        checks: impl Iterator<Item = Guarded<'a>> + Clone,
    ) {
        let hits = within_bounds(hits);
        let known = self.joining.get(&id).copied();
        let known = known
            .filter(|index| self.rule_limits(*index).is_some_and(|limits| limits.may_join(checks.clone())));
        let command = known.unwrap_or_else(|| {
            let new = self.push("", CommandKind::RuleLimits(checks.collect())).command;
            self.joining.insert(id, new);
            new
        });
        let Some((run, keys)) = self.rule_limits(command).map(|limits| (limits.join(hits), limits.keys()))
        else {
            return;
        };
        for key in 0..index(keys) {
            self.callers.push(PendingCheck { target: CommandKey { command, key }, run, hits });
        }
    }

    fn rule_limits(&mut self, command: u32) -> Option<&mut RuleLimits> {
        match self.commands.get_mut(command as usize) {
            Some(Command { kind: CommandKind::RuleLimits(limits), .. }) => Some(limits),
            _ => None,
        }
    }

    /// Counts several checks in one step on the server: all if none would be over its limit, else only those that
    /// would.
    pub(super) fn count_guarded<'a>(&mut self, checks: impl Iterator<Item = Guarded<'a>>) {
        // Later hits must not join commands before this one.
        self.barrier();
        let check: PendingAtomicCheck = checks.collect();
        let hits: SmallVec<[Hits; 4]> = check.hits().collect();
        let CommandKey { command, .. } = self.push("", CommandKind::AtomicCheck(check));
        for (hits, key) in hits.into_iter().zip(0..) {
            self.callers.push(PendingCheck { target: CommandKey { command, key }, run: 0, hits });
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
    pub(super) fn expire(&mut self, key: &str, seconds: u32, set: Expire) {
        self.push(key, CommandKind::Expire { seconds, set });
    }

    /// Tests the user's permission for these commands.
    pub(super) fn check(&mut self, needs: Needs) {
        self.push("", CommandKind::Check(needs));
    }

    /// Tests whether the server accepts writes of this key.
    pub(super) fn probe_writes(&mut self, key: &str) {
        self.push(key, CommandKind::ProbeWrites);
    }

    /// Ends the joining of earlier commands.
    fn barrier(&mut self) {
        self.counting.clear();
        self.filling.clear();
        self.joining.clear();
    }

    fn push(&mut self, key: &str, kind: CommandKind) -> CommandKey {
        let (start, command) = (index(self.keys.len()), index(self.commands.len()));
        self.keys.extend_from_slice(key.as_bytes());
        self.commands.push(Command { key: start..index(self.keys.len()), asking: false, kind });
        CommandKey { command, key: 0 }
    }

    /// Adds hits to an earlier command, if the sum is in bounds.
    fn join(&mut self, target: CommandKey, hits: u64, expiry: Expiry) -> bool {
        let known = self.commands.get_mut(target.command as usize);
        let Some(Command { kind: CommandKind::Count { added, expiry: known, .. }, .. }) = known else {
            return false;
        };
        let together = added.saturating_add(hits);
        let fits = together <= MAX_HITS;
        if fits {
            *added = together;
            // If two windows share a key, the longer one sets the expiry.
            if expiry.set != Expire::Known && (known.set == Expire::Known || known.end < expiry.end) {
                *known = expiry;
            }
        }
        fits
    }
}

fn within_bounds(hits: Hits) -> Hits {
    match hits {
        Hits::Take(hits) => Hits::Take(hits.min(MAX_HITS)),
        Hits::Refund(hits) => Hits::Refund(hits.min(MAX_HITS)),
    }
}

#[cfg(test)]
mod tests;
