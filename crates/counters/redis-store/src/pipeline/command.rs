//! The commands of a pipeline: their bytes, and the number of their replies.

use std::{ops::Range, ptr, sync::Arc};

use smallvec::SmallVec;

use super::{
    Expire, Expiry, RedisPipeline,
    hold::{CloseCall, HoldCall},
    lease::LeaseCall,
    script_call::ScriptCall,
};
use crate::{
    login::CurrentLogin,
    resp::{self, Reply},
    script::{Form, HOLD, Script},
    write_check,
};
use counters::CounterId;
use wire::at;

pub(super) struct Command {
    pub(super) key: Range<u32>,
    /// The server is importing the key's slot.
    pub(super) asking: bool,
    pub(super) kind: CommandKind,
}

pub(super) enum CommandKind {
    /// `INCRBY`, or `GET` if nothing is added; then `EXPIRE` if it must be set.
    Count {
        id: CounterId,
        added: u64,
        expiry: Expiry,
    },
    Script(ScriptCall),
    Lease(LeaseCall),
    Hold(HoldCall),
    Close(CloseCall),
    /// Sets the expiry of a key without one.
    Expire {
        seconds: u32,
    },
    ProbeWrites,
    /// `AUTH` with changed credentials.
    LogIn(Arc<CurrentLogin>),
}

/// A command whose script the server does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnknownScript {
    command: u32,
    pub(crate) replies: Range<usize>,
}

impl Command {
    pub(super) fn replies(&self) -> usize {
        let once = if self.asking { 2 } else { 1 };
        match &self.kind {
            CommandKind::Count { added, expiry, .. } if *added > 0 && expiry.set != Expire::Known => {
                if self.asking { 4 } else { 2 }
            }
            _ => once,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match &self.kind {
            CommandKind::Count { added: 0, .. } => "get",
            CommandKind::Count { .. } | CommandKind::ProbeWrites => "incrby",
            CommandKind::Expire { .. } => "expire",
            CommandKind::LogIn(_) => "auth",
            _ => "evalsha",
        }
    }

    pub(super) fn keys(&self) -> usize {
        match &self.kind {
            CommandKind::Script(call) => call.keys(),
            CommandKind::Hold(call) => call.keys(),
            _ => 1,
        }
    }

    fn script(&self) -> Option<&'static Script> {
        match &self.kind {
            CommandKind::Script(call) => Some(call.script()),
            CommandKind::Lease(call) => Some(call.script()),
            CommandKind::Hold(_) => Some(&HOLD),
            CommandKind::Close(call) => Some(call.script()),
            CommandKind::Count { .. }
            | CommandKind::Expire { .. }
            | CommandKind::ProbeWrites
            | CommandKind::LogIn(_) => None,
        }
    }
}

impl RedisPipeline {
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        for command in &self.commands {
            self.write_command(command, into, Form::Hash);
        }
    }

    /// Writes these commands, the first of each script with its source: then the server knows it.
    pub(crate) fn write_with_scripts(&self, unknown: &[UnknownScript], into: &mut Vec<u8>) {
        let mut sent = SmallVec::<[*const Script; 2]>::new();
        for command in unknown.iter().map(|unknown| at(&self.commands, unknown.command)) {
            let script = command.script().map_or(ptr::null(), ptr::from_ref);
            let form = if sent.contains(&script) { Form::Hash } else { Form::Source };
            sent.push(script);
            self.write_command(command, into, form);
        }
    }

    fn write_expire(&self, command: &Command, seconds: u32, into: &mut Vec<u8>) {
        if command.asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        let key = self.key(command);
        resp::write_command(into, &[b"EXPIRE", key, itoa::Buffer::new().format(seconds).as_bytes()]);
    }

    pub(super) fn write_command(&self, command: &Command, into: &mut Vec<u8>, form: Form) {
        let key = self.key(command);
        if command.asking {
            resp::write_command(into, &[b"ASKING"]);
        }
        match &command.kind {
            CommandKind::Count { added: 0, .. } => resp::write_command(into, &[b"GET", key]),
            CommandKind::Count { added, expiry, .. } => {
                resp::write_command(into, &[b"INCRBY", key, itoa::Buffer::new().format(*added).as_bytes()]);
                if expiry.set != Expire::Known {
                    self.write_expire(command, expiry.seconds, into);
                }
            }
            CommandKind::Script(call) => call.write(into, form),
            CommandKind::Lease(call) => call.write(into, form, key),
            CommandKind::Hold(call) => call.write(into, form),
            CommandKind::Close(call) => call.write(into, form),
            // Never after ASKING.
            CommandKind::Expire { seconds } => self.write_expire(command, *seconds, into),
            CommandKind::ProbeWrites => write_check::write_probe(key, into),
            CommandKind::LogIn(login) => login.write(into),
        }
    }

    pub(crate) fn replies(&self) -> usize {
        self.commands.iter().map(Command::replies).sum()
    }

    /// The commands whose script the server does not know.
    pub(crate) fn unknown_scripts(&self, replies: &[Reply]) -> Vec<UnknownScript> {
        let mut unknown = Vec::new();
        let mut rest = 0..replies.len();
        for (command, number) in self.commands.iter().zip(0..) {
            let own = rest.by_ref().take(command.replies());
            // The script is in the last reply, after `OK` to ASKING.
            let count = if command.asking { 2 } else { 1 };
            let own = own.last().filter(|_| command.script().is_some());
            let is_unknown = |last: &usize| match replies.get(*last) {
                Some(Reply::Error(error)) => error.starts_with("NOSCRIPT"),
                _ => false,
            };
            if let Some(last) = own.filter(is_unknown) {
                unknown.push(UnknownScript { command: number, replies: last + 1 - count..last + 1 });
            }
        }
        unknown
    }

    pub(super) fn key(&self, command: &Command) -> &[u8] {
        self.keys.get(&command.key)
    }
}
