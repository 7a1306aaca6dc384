//! The commands of a pipeline: their bytes, and the number of their replies.

use std::ops::Range;

use super::{
    Expire, Expiry, RedisPipeline, atomic_check::PendingAtomicCheck, lease::Leasing, rule_limits::RuleLimits,
    script_call::PendingScriptCall,
};
use crate::{
    redis::{
        permissions::Needs,
        resp::{self, Reply},
        script::{self, Form},
        write_check,
    },
    table::Key,
};

pub(super) struct Command {
    pub(super) key: Range<u32>,
    /// The server is importing the key's slot.
    pub(super) asking: bool,
    pub(super) kind: CommandKind,
}

pub(super) enum CommandKind {
    /// `INCRBY`, or `GET` if nothing is added; then `EXPIRE` if it must be set.
    Count {
        id: Key,
        added: u64,
        expiry: Expiry,
    },
    /// Subtracts hits, but never below 0.
    Refund {
        hits: u64,
    },
    Lease {
        id: Key,
        hits: u64,
        limit: u64,
        expiry: Expiry,
        leasing: Leasing,
    },
    /// Subtracts hits of a lease if the counter has them, and at least `own`.
    ReturnHits {
        hits: u64,
        own: u64,
        leasing: Leasing,
    },
    ScriptCall(PendingScriptCall),
    AtomicCheck(PendingAtomicCheck),
    RuleLimits(RuleLimits),
    /// Sets the expiry of a key without one.
    Expire {
        seconds: u32,
        set: Expire,
    },
    Check(Needs),
    /// Tests whether the server accepts writes.
    ProbeWrites,
}

/// A command whose script the server does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnknownScript {
    command: usize,
    pub replies: Range<usize>,
}

impl Command {
    pub(super) fn replies(&self) -> usize {
        let once = if self.asking { 2 } else { 1 };
        match &self.kind {
            CommandKind::Count { added, expiry, .. } if *added > 0 && expiry.set != Expire::Known => {
                if self.asking { 4 } else { 2 }
            }
            CommandKind::Check(needs) => needs.count(),
            _ => once,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match &self.kind {
            CommandKind::Count { added: 0, .. } => "get",
            CommandKind::Count { .. } | CommandKind::ProbeWrites => "incrby",
            CommandKind::Expire { set: Expire::Set, .. } => "expire",
            _ => "evalsha",
        }
    }

    pub(super) fn keys(&self) -> usize {
        match &self.kind {
            CommandKind::ScriptCall(call) => call.keys(),
            CommandKind::AtomicCheck(check) => check.keys(),
            CommandKind::RuleLimits(limits) => limits.keys(),
            _ => 1,
        }
    }

    fn is_scripted(&self) -> bool {
        match self.kind {
            CommandKind::Count { added, expiry, .. } => added > 0 && expiry.set == Expire::Extend,
            CommandKind::Expire { set, .. } => set == Expire::Extend,
            CommandKind::Check(_) => false,
            _ => true,
        }
    }
}

impl RedisPipeline {
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        for command in &self.commands {
            self.write_command(command, into, Form::Hash);
        }
    }

    /// Writes these commands with the source of their scripts.
    pub(crate) fn write_with_scripts(&self, unknown: &[UnknownScript], into: &mut Vec<u8>) {
        for command in unknown.iter().filter_map(|unknown| self.commands.get(unknown.command)) {
            match &command.kind {
                // The hits have been counted.
                CommandKind::Count { expiry, .. } => {
                    self.write_expire(command, expiry.seconds, expiry.set, into, Form::Source);
                }
                _ => self.write_command(command, into, Form::Source),
            }
        }
    }

    fn write_expire(&self, command: &Command, seconds: u32, set: Expire, into: &mut Vec<u8>, form: Form) {
        let key = self.key(command);
        if command.asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        if set == Expire::Extend {
            script::EXTEND.call(into, form, &[key], &[seconds.into()]);
        } else {
            resp::write_command(into, &[b"EXPIRE", key, itoa::Buffer::new().format(seconds).as_bytes()]);
        }
    }

    fn write_command(&self, command: &Command, into: &mut Vec<u8>, form: Form) {
        let key = self.key(command);
        if command.asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        match &command.kind {
            CommandKind::Count { added: 0, .. } => resp::write_command(into, &[b"GET", key]),
            CommandKind::Count { added, expiry, .. } => {
                resp::write_command(into, &[b"INCRBY", key, itoa::Buffer::new().format(*added).as_bytes()]);
                if expiry.set != Expire::Known {
                    self.write_expire(command, expiry.seconds, expiry.set, into, form);
                }
            }
            CommandKind::Refund { hits } => script::REFUND.call(into, form, &[key], &[*hits]),
            CommandKind::Lease { hits, limit, expiry, leasing, .. } => {
                leasing.write_lease(into, form, key, (*hits, *limit, *expiry));
            }
            CommandKind::ReturnHits { hits, own, leasing } => {
                leasing.write_return(into, form, key, (*hits, *own));
            }
            CommandKind::ScriptCall(call) => call.write(into, form),
            CommandKind::AtomicCheck(check) => check.write(into, form),
            CommandKind::RuleLimits(limits) => limits.write(into, form),
            // Never after ASKING.
            CommandKind::Expire { seconds, set } => self.write_expire(command, *seconds, *set, into, form),
            CommandKind::Check(needs) => needs.write(into),
            CommandKind::ProbeWrites => write_check::write_probe(key, into),
        }
    }

    pub(crate) fn replies(&self) -> usize {
        self.commands.iter().map(Command::replies).sum()
    }

    /// The commands whose script the server does not know.
    pub(crate) fn unknown_scripts(&self, replies: &[Reply]) -> Vec<UnknownScript> {
        let mut unknown = Vec::new();
        let mut first = 0_usize;
        for (index, command) in self.commands.iter().enumerate() {
            let end = first.saturating_add(command.replies());
            let is_unknown = || match replies.get(end.saturating_sub(1)) {
                Some(Reply::Error(error)) => error.starts_with("NOSCRIPT"),
                _ => false,
            };
            if command.is_scripted() && is_unknown() {
                let from = match command.kind {
                    CommandKind::Count { .. } => end.saturating_sub(if command.asking { 2 } else { 1 }),
                    _ => first,
                };
                unknown.push(UnknownScript { command: index, replies: from..end });
            }
            first = end;
        }
        unknown
    }

    pub(super) fn key(&self, command: &Command) -> &[u8] {
        self.keys.get(command.key.start as usize..command.key.end as usize).unwrap_or_default()
    }
}
