//! Keys that a script on the server counts, many in one command.
//!
//! Successive callers with the same key and hits form a run. The script applies all runs at one time of the server's
//! clock, and replies with that time and the states before, from which the algorithm computes each caller's verdict.

use std::ops::Range;

use smallvec::SmallVec;

use super::reply_state::{self, ReplyState};
use crate::{
    redis::{
        resp::{self, Reply},
        script::{self, Form, Script},
    },
    remote::index,
};
use algorithms::{Algorithm, FixedWindow, Hits, SlidingLog, SlidingWindow};
use clock::Time;

/// Maximum number of keys of one command: it blocks the server, and the index of an argument is one byte.
const MAX_KEYS: usize = 255;

/// Number of previous arguments that are searched for an equal one.
const ARGUMENT_WINDOW: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ScriptCall {
    pub algorithm: Algorithm,
    /// The expiry of a fixed window; for others the random jitter of the expiry.
    pub seconds: u32,
}

pub(super) struct PendingScriptCall {
    script: &'static Script,
    keys: Vec<u8>,
    calls: Vec<KeyCall>,
}

struct KeyCall {
    key: Range<u32>,
    call: ScriptCall,
    runs: SmallVec<[Run; 1]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// At most [`MAX_HITS`](super::MAX_HITS).
    pub(super) hits: Hits,
    pub(super) times: u32,
}

impl ScriptCall {
    pub(super) fn window_limit(self) -> Option<u32> {
        match self.algorithm {
            Algorithm::FixedWindow(window) => Some(window.limit),
            _ => None,
        }
    }

    /// Logs are too long to share a command with other state.
    pub(super) fn is_log(&self) -> bool {
        matches!(self.algorithm, Algorithm::SlidingLog(_))
    }

    pub(super) fn write(&self, runs: &[Run], into: &mut Vec<u8>) {
        let (letter, numbers) = match self.algorithm {
            Algorithm::FixedWindow(FixedWindow { limit, .. }) => (b'c', [limit.into(), 0, 0]),
            Algorithm::SlidingWindow(SlidingWindow { limit, window }) => {
                (b'w', [limit.into(), window.seconds(), 0])
            }
            Algorithm::SlidingLog(SlidingLog { limit, window }) => {
                (b'l', [limit.into(), window.seconds(), 0])
            }
            Algorithm::Bucket(limit) => {
                (b'b', [limit.ticks_per_second(), limit.ticks_per_hit(), limit.burst()])
            }
        };
        into.push(letter);
        into.extend(self.seconds.to_le_bytes());
        for number in numbers {
            into.extend(number.to_le_bytes());
        }
        for run in runs {
            run.write(into);
        }
    }

    /// Decodes a key's state; not for fixed windows. Fails if the key has another type.
    pub(super) fn read(&self, reply: Reply) -> Result<ReplyState, String> {
        let state = match self.algorithm {
            Algorithm::FixedWindow(_) => None,
            Algorithm::SlidingWindow(limit) => ReplyState::window(limit, &reply),
            Algorithm::SlidingLog(limit) => ReplyState::log(limit, &reply),
            Algorithm::Bucket(limit) => ReplyState::bucket(limit, &reply),
        };
        state.ok_or_else(|| match reply {
            Reply::Error(error) if !error.starts_with("WRONGTYPE") => error,
            _ => format!("WRONGTYPE the value is not the state of a {}", self.algorithm.kind().name()),
        })
    }
}

impl PendingScriptCall {
    pub(super) fn new(logs: bool) -> Self {
        let script = if logs { &script::LOGS } else { &script::STATES };
        Self { script, keys: Vec::new(), calls: Vec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.calls.len() >= MAX_KEYS
    }

    pub(super) fn push(&mut self, key: &str, call: ScriptCall) -> u32 {
        let (start, added) = (index(self.keys.len()), index(self.calls.len()));
        self.keys.extend_from_slice(key.as_bytes());
        self.calls.push(KeyCall { key: start..index(self.keys.len()), call, runs: SmallVec::new() });
        added
    }

    /// Adds a caller of a key, and returns the index of its run.
    pub(super) fn join(&mut self, key: u32, hits: Hits) -> u32 {
        self.calls.get_mut(key as usize).map_or(0, |call| join(&mut call.runs, hits))
    }

    pub(super) fn keys(&self) -> usize {
        self.calls.len()
    }

    /// Writes the command: the keys, a byte per key with the index of its argument, and the arguments.
    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let mut arguments: SmallVec<[&KeyCall; ARGUMENT_WINDOW]> = SmallVec::new();
        let indexes = self.calls.iter().map(|call| {
            let last = arguments.len().saturating_sub(ARGUMENT_WINDOW);
            let mut latest = arguments.iter().enumerate().skip(last);
            let known = latest.find(|(_, known)| known.is_same_call(call)).map(|(index, _)| index);
            let index = known.unwrap_or(arguments.len());
            if known.is_none() {
                arguments.push(call);
            }
            u8::try_from(index.saturating_add(1)).unwrap_or(u8::MAX)
        });
        let indexes: SmallVec<[u8; MAX_KEYS]> = indexes.collect();
        self.script.begin(into, form, self.calls.len(), arguments.len().saturating_add(1));
        for call in &self.calls {
            let key = self.keys.get(call.key.start as usize..call.key.end as usize);
            resp::write_word(into, key.unwrap_or_default());
        }
        resp::write_word(into, &indexes);
        let mut argument = Vec::with_capacity(48);
        for call in arguments {
            argument.clear();
            call.call.write(&call.runs, &mut argument);
            resp::write_word(into, &argument);
        }
    }

    /// Decodes the state of each key, and the time of the call.
    pub(super) fn read(&self, reply: Reply) -> Result<(Time, Vec<Result<ReplyState, String>>), String> {
        let (now, states) = reply_state::with_time(reply, self.calls.len())?;
        Ok((now, states.into_iter().zip(&self.calls).map(|(state, call)| call.call.read(state)).collect()))
    }
}

pub(super) fn join(runs: &mut SmallVec<[Run; 1]>, hits: Hits) -> u32 {
    match runs.last_mut() {
        // Each refund of a log sees another newest entry, so refunds do not share runs.
        Some(run) if run.hits == hits && matches!(hits, Hits::Take(_)) => {
            run.times = run.times.saturating_add(1);
        }
        _ => runs.push(Run { hits, times: 1 }),
    }
    index(runs.len().saturating_sub(1))
}

impl Run {
    pub(super) fn write(self, into: &mut Vec<u8>) {
        into.extend(self.signed().to_le_bytes());
        into.extend(self.times.to_le_bytes());
    }

    /// Negative for a refund.
    pub(super) const fn signed(self) -> i64 {
        match self.hits {
            Hits::Take(hits) => hits.cast_signed(),
            Hits::Refund(hits) => hits.cast_signed().wrapping_neg(),
        }
    }
}

impl KeyCall {
    /// True for the same limit and runs; the random expiry may differ.
    fn is_same_call(&self, other: &Self) -> bool {
        self.call.algorithm == other.call.algorithm && self.runs == other.runs
    }
}
