//! The commands of a pipeline: how each is written, and how many answers it gets.

use std::ops::Range;

use super::{
    Expire, Expiry, RedisPipeline, atomic_check::PendingAtomicCheck, rule_limits::RuleLimits,
    script_call::PendingScriptCall,
};
use crate::store::{
    redis::{
        permissions::Needs,
        resp::{self, Reply},
        script::{self, Form},
    },
    table::Key,
};

pub(super) struct Command {
    /// Its key, where it has one.
    pub(super) key: Range<u32>,
    /// The key's slot is on its way to the server that is asked.
    pub(super) asking: bool,
    pub(super) kind: CommandKind,
}

pub(super) enum CommandKind {
    /// `INCRBY`, or `GET` when nothing is added; then `EXPIRE` where the server has to set it.
    Count { id: Key, added: u64, expiry: Expiry },
    /// Takes off, but never below 0.
    Refund { hits: u64 },
    /// Keys that a script counts, each for itself.
    ScriptCall(PendingScriptCall),
    /// All checks of a request in one step.
    AtomicCheck(PendingAtomicCheck),
    /// The limits of a rule in one step.
    RuleLimits(RuleLimits),
    /// Gives an expiry to a key that has none.
    Expire { seconds: u32, set: Expire },
    /// Tries commands that rules need.
    Check(Needs),
}

/// A command whose script the server did not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::redis) struct Unknown {
    command: usize,
    /// The places of its answers.
    first: usize,
    end: usize,
}

impl Unknown {
    /// The places of its answers.
    pub(in crate::store::redis) fn answers(self) -> Range<usize> {
        self.first..self.end
    }
}

impl Command {
    /// How many answers it gets.
    pub(super) fn answers(&self) -> usize {
        let once = if self.asking { 2 } else { 1 };
        match &self.kind {
            CommandKind::Count { added, expiry, .. } if *added > 0 && expiry.set != Expire::Known => {
                if self.asking { 4 } else { 2 }
            }
            CommandKind::Check(needs) => needs.count(),
            _ => once,
        }
    }

    /// The command of Redis that it is.
    pub(super) fn name(&self) -> &'static str {
        match &self.kind {
            CommandKind::Count { added: 0, .. } => "get",
            CommandKind::Count { .. } => "incrby",
            CommandKind::Expire { set: Expire::Set, .. } => "expire",
            _ => "evalsha",
        }
    }

    /// How many keys it has.
    pub(super) fn keys(&self) -> usize {
        match &self.kind {
            CommandKind::ScriptCall(judging) => judging.keys(),
            CommandKind::AtomicCheck(guarding) => guarding.keys(),
            CommandKind::RuleLimits(together) => together.keys(),
            _ => 1,
        }
    }

    fn is_scripted(&self) -> bool {
        match self.kind {
            CommandKind::Refund { .. }
            | CommandKind::ScriptCall(_)
            | CommandKind::AtomicCheck(_)
            | CommandKind::RuleLimits(_) => true,
            CommandKind::Count { added, expiry, .. } => added > 0 && expiry.set == Expire::Extend,
            CommandKind::Expire { set, .. } => set == Expire::Extend,
            CommandKind::Check(_) => false,
        }
    }
}

impl RedisPipeline {
    /// Writes the pipeline.
    pub(in crate::store::redis) fn write(&self, into: &mut Vec<u8>) {
        for command in &self.commands {
            self.write_command(command, into, Form::Hash);
        }
    }

    /// Writes these commands with the whole text of their scripts.
    pub(in crate::store::redis) fn write_with_scripts(&self, unknown: &[Unknown], into: &mut Vec<u8>) {
        for command in unknown.iter().filter_map(|unknown| self.commands.get(unknown.command)) {
            match &command.kind {
                // It has been counted.
                CommandKind::Count { expiry, .. } => self.write_expire(command, *expiry, into, Form::Text),
                _ => self.write_command(command, into, Form::Text),
            }
        }
    }

    /// Writes what gives a command's key its expiry.
    fn write_expire(&self, command: &Command, expiry: Expiry, into: &mut Vec<u8>, form: Form) {
        if command.asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        write_expire(into, self.key(command), expiry.seconds, expiry.set, form);
    }

    fn write_command(&self, command: &Command, into: &mut Vec<u8>, form: Form) {
        let key = self.key(command);
        if command.asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        match &command.kind {
            CommandKind::Count { added: 0, .. } => resp::write_command(into, &[b"GET", key]),
            CommandKind::Count { added, expiry, .. } => {
                resp::begin_command(into, 3);
                resp::write_word(into, b"INCRBY");
                resp::write_word(into, key);
                resp::write_number(into, *added);
                if expiry.set != Expire::Known {
                    self.write_expire(command, *expiry, into, form);
                }
            }
            CommandKind::Refund { hits } => {
                script::GIVE_BACK.begin(into, form, 1, 1);
                resp::write_word(into, key);
                resp::write_number(into, *hits);
            }
            CommandKind::ScriptCall(judging) => judging.write(into, form),
            CommandKind::AtomicCheck(guard) => guard.write(into, form),
            CommandKind::RuleLimits(together) => together.write(into, form),
            CommandKind::Expire { seconds, set } => write_expire(into, key, *seconds, *set, form),
            CommandKind::Check(needs) => needs.write(into),
        }
    }

    /// How many answers the pipeline gets.
    pub(in crate::store::redis) fn answers(&self) -> usize {
        self.commands.iter().map(Command::answers).sum()
    }

    /// The commands whose script the server did not know.
    pub(in crate::store::redis) fn unknown_scripts(&self, replies: &[Reply]) -> Vec<Unknown> {
        let mut unknown = Vec::new();
        let mut first = 0_usize;
        for (place, command) in self.commands.iter().enumerate() {
            let end = first.saturating_add(command.answers());
            let is_unknown = || match replies.get(end.saturating_sub(1)) {
                Some(Reply::Error(error)) => error.starts_with("NOSCRIPT"),
                _ => false,
            };
            if command.is_scripted() && is_unknown() {
                let from = match command.kind {
                    CommandKind::Count { .. } => end.saturating_sub(if command.asking { 2 } else { 1 }),
                    _ => first,
                };
                unknown.push(Unknown { command: place, first: from, end });
            }
            first = end;
        }
        unknown
    }

    /// The key of a command that has one.
    pub(super) fn key(&self, command: &Command) -> &[u8] {
        self.keys.get(command.key.start as usize..command.key.end as usize).unwrap_or_default()
    }
}

fn write_expire(into: &mut Vec<u8>, key: &[u8], seconds: u32, set: Expire, form: Form) {
    if set == Expire::Extend {
        script::EXTEND.begin(into, form, 1, 1);
    } else {
        resp::begin_command(into, 3);
        resp::write_word(into, b"EXPIRE");
    }
    resp::write_word(into, key);
    resp::write_number(into, u64::from(seconds));
}
