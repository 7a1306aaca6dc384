//! What waits for one connection, made into one pipeline: hits on one key are one command, keys that a script
//! counts are one command together, and what came of it is dealt out in the order of asking, so that every
//! caller sees what it would have seen alone.
//!
//! Nothing here waits or knows a socket: a connection fills a pipeline, sends what [`RedisPipeline::write`] writes, and
//! hands what came back to [`RedisPipeline::complete`]. `command` is what is sent, `deal` what is made of the answers;
//! `judge` is both for keys that a script counts (`kept` reads what it tells), `together` for the limits of one
//! rule, `guard` for all checks of a request in one step.

mod atomic_check;
mod command;
mod complete;
mod reply_state;
mod rule_limits;
mod script_call;

use std::{ops::Range, sync::Arc};

use hashbrown::HashMap;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{failure::Failure, permissions::Needs};
use crate::{
    clock::Time,
    limiter::algorithm::Hits,
    store::{
        self, StoreError,
        remote::{self, Pipeline},
        table::Key,
    },
};
use atomic_check::PendingAtomicCheck;
use command::{Command, CommandKind};
use rule_limits::RuleLimits;
use script_call::PendingScriptCall;
pub(super) use {
    atomic_check::{AtomicCheck, Guarded},
    complete::{Learned, cannot_count_together},
    script_call::ScriptCall,
};

/// What became of one check.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// What the counter says.
    Told(store::Outcome),
    /// Not counted here: the server named another, or cannot count it together with others, in these words.
    Elsewhere(Arc<str>),
    /// Not counted.
    Failed(Arc<Failure>),
}

/// What a caller hears.
pub(super) type Answered = remote::Answered<Outcome>;

/// Adding more than this is adding this, though each caller sees all of its own hits: it is beyond every limit,
/// and 1,000 such hits do not overflow a counter of Redis. It is also the largest number to which a script
/// counts exactly.
const MAX_HITS: u64 = 1 << 53;

/// How long a counter lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expiry {
    /// Seconds from now.
    pub(super) seconds: u32,
    /// When its window ends.
    pub(super) end: Time,
    /// Whether the server has to set it.
    pub(super) set: Expire,
}

/// How a counter gets its expiry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Expire {
    /// It has one: this process has set it in this window.
    Known,
    /// It is set.
    Set,
    /// It is set unless there is a longer one: that of a longer window, which may have begun at the same moment.
    Extend,
}

/// A pipeline in the making.
#[derive(Default)]
pub(super) struct RedisPipeline {
    /// The keys of commands that have one, one behind the other.
    keys: Vec<u8>,
    commands: Vec<Command>,
    /// What counts a key, while later hits may still join it.
    counting: HashMap<Key, Place>,
    /// The command that the next key of a slot joins, if it is a log's or if it is not.
    filling: HashMap<(bool, u16), u32>,
    /// The command that asks the limits of a rule, by the first of their keys, while later callers may still join.
    joining: HashMap<Key, u32>,
    /// One for each check; what answers it.
    asks: Vec<PendingCheck>,
    callers: Vec<Caller>,
    /// How many checks were asked.
    checks: usize,
}

/// A command, and which of its keys.
#[derive(Clone, Copy)]
struct Place {
    command: u32,
    key: u32,
}

struct PendingCheck {
    place: Place,
    /// Which of the key's runs, where a script counts it.
    run: u32,
    hits: Hits,
}

struct Caller {
    asks: Range<u32>,
    answer: oneshot::Sender<Answered>,
}

impl Pipeline for RedisPipeline {
    type Outcome = Outcome;

    fn checks(&self) -> usize {
        self.checks
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.commands.clear();
        self.part();
        self.asks.clear();
        self.callers.clear();
        self.checks = 0;
    }

    fn add_caller(&mut self, fill: impl FnOnce(&mut Self)) -> oneshot::Receiver<Answered> {
        let first = at(self.asks.len());
        fill(self);
        let (answer, answered) = oneshot::channel();
        let asks = first..at(self.asks.len());
        self.checks += asks.len();
        self.callers.push(Caller { asks, answer });
        answered
    }

    fn fail(&mut self, error: &StoreError) {
        for caller in self.callers.drain(..) {
            let _ = caller.answer.send(Err(error.clone()));
        }
    }
}

impl RedisPipeline {
    /// Adds hits to a counter; none looks at it.
    pub(super) fn count(&mut self, key: &str, id: Key, hits: u64, expiry: Expiry) {
        let added = hits.min(MAX_HITS);
        let known = self.counting.get(&id).copied().filter(|place| self.join(*place, added, expiry));
        let place = known.unwrap_or_else(|| {
            let place = self.push(key, CommandKind::Count { id, added, expiry });
            self.counting.insert(id, place);
            place
        });
        self.asks.push(PendingCheck { place, run: 0, hits: Hits::Take(hits) });
    }

    /// Gives hits back to a counter.
    pub(super) fn refund(&mut self, key: &str, id: Key, hits: u64) {
        // Hits that come later are counted later, so that each sees what it would have seen alone.
        self.counting.remove(&id);
        let hits = hits.min(MAX_HITS);
        let place = self.push(key, CommandKind::Refund { hits });
        self.asks.push(PendingCheck { place, run: 0, hits: Hits::Refund(hits) });
    }

    /// Holds hits against a limit that a script knows. A server counts keys of the same `slot` together.
    pub(super) fn judge(&mut self, key: &str, id: Key, slot: u16, judge: ScriptCall, hits: Hits) {
        let hits = within_bounds(hits);
        let place = self.counting.get(&id).copied().unwrap_or_else(|| {
            let place = self.place(key, slot, judge);
            self.counting.insert(id, place);
            place
        });
        let run = self.judging(place.command).map_or(0, |judging| judging.join(place.key, hits));
        self.asks.push(PendingCheck { place, run, hits });
    }

    /// Finds a place for a key that a script counts.
    fn place(&mut self, key: &str, slot: u16, judge: ScriptCall) -> Place {
        let filling = (judge.is_log(), slot);
        let known = self.filling.get(&filling).copied();
        let known = known.filter(|command| self.judging(*command).is_some_and(|judging| !judging.is_full()));
        let command = known.unwrap_or_else(|| {
            let new = self.push("", CommandKind::ScriptCall(PendingScriptCall::new(judge.is_log()))).command;
            self.filling.insert(filling, new);
            new
        });
        Place { command, key: self.judging(command).map_or(0, |judging| judging.push(key, judge)) }
    }

    fn judging(&mut self, command: u32) -> Option<&mut PendingScriptCall> {
        match self.commands.get_mut(command as usize) {
            Some(Command { kind: CommandKind::ScriptCall(judging), .. }) => Some(judging),
            _ => None,
        }
    }

    /// Asks the limits of a rule in one step on the server: hits that one of them refuses are counted by none.
    /// `id` stands for the first of their keys.
    pub(super) fn count_together<'a>(
        &mut self,
        id: Key,
        hits: Hits,
        checks: impl Iterator<Item = Guarded<'a>> + Clone,
    ) {
        let hits = within_bounds(hits);
        let known = self.joining.get(&id).copied();
        let known =
            known.filter(|at| self.together(*at).is_some_and(|together| together.may_join(checks.clone())));
        let command = known.unwrap_or_else(|| {
            let new = self.push("", CommandKind::RuleLimits(checks.collect())).command;
            self.joining.insert(id, new);
            new
        });
        let Some((run, keys)) = self.together(command).map(|together| (together.join(hits), together.keys()))
        else {
            return;
        };
        self.asks.extend((0..at(keys)).map(|key| PendingCheck { place: Place { command, key }, run, hits }));
    }

    fn together(&mut self, command: u32) -> Option<&mut RuleLimits> {
        match self.commands.get_mut(command as usize) {
            Some(Command { kind: CommandKind::RuleLimits(together), .. }) => Some(together),
            _ => None,
        }
    }

    /// Counts several checks in one step on the server: as long as none would be over its limit all
    /// count, else only those that would.
    pub(super) fn count_guarded<'a>(&mut self, checks: impl Iterator<Item = Guarded<'a>>) {
        // What was gathered before is counted before; what comes later must not join it.
        self.part();
        let guard: PendingAtomicCheck = checks.collect();
        let hits: SmallVec<[Hits; 4]> = guard.hits().collect();
        let Place { command, .. } = self.push("", CommandKind::AtomicCheck(guard));
        let asks = hits.into_iter().zip(0..);
        self.asks.extend(asks.map(|(hits, key)| PendingCheck {
            place: Place { command, key },
            run: 0,
            hits,
        }));
    }

    /// Lets `fill` add one check, or the limits of one rule, that no other joins; its slot may be on its way to the server that is asked.
    pub(super) fn ask_alone(&mut self, asking: bool, fill: impl FnOnce(&mut Self)) {
        self.part();
        fill(self);
        self.part();
        if let Some(command) = self.commands.last_mut() {
            command.asking = asking;
        }
    }

    /// Gives an expiry to a key that has none.
    pub(super) fn expire(&mut self, key: &str, seconds: u32, set: Expire) {
        self.push(key, CommandKind::Expire { seconds, set });
    }

    /// Checks that the user may run these commands.
    pub(super) fn check(&mut self, needs: Needs) {
        self.push("", CommandKind::Check(needs));
    }

    /// What comes later does not join what was gathered before.
    fn part(&mut self) {
        self.counting.clear();
        self.filling.clear();
        self.joining.clear();
    }

    fn push(&mut self, key: &str, kind: CommandKind) -> Place {
        let start = at(self.keys.len());
        self.keys.extend_from_slice(key.as_bytes());
        self.commands.push(Command { key: start..at(self.keys.len()), asking: false, kind });
        Place { command: at(self.commands.len() - 1), key: 0 }
    }

    /// Adds hits to a command that counts the key already, if they fit.
    fn join(&mut self, place: Place, hits: u64, expiry: Expiry) -> bool {
        let known = self.commands.get_mut(place.command as usize);
        let Some(Command { kind: CommandKind::Count { added, expiry: known, .. }, .. }) = known else {
            return false;
        };
        let together = added.saturating_add(hits);
        let fits = together <= MAX_HITS;
        if fits {
            *added = together;
            // Of two windows that share a key the longer one decides.
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

/// A pipeline never comes near four thousand million of anything: its queue is bounded.
fn at(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
