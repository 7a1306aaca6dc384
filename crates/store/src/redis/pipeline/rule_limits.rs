//! The limits of a rule with several: if one limit rejects hits, none counts them.
//!
//! One command updates all of them in one step on the server. Callers with the same limits and keys join it, in runs as
//! in `script_call`. The script replies with the state before, from which each caller's outcome is computed.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Guarded, ScriptCall,
    reply_state::{self, ReplyState},
    script_call::{self, Run},
};
use crate::{
    Outcome,
    redis::{
        resp::{self, Reply},
        script::{self, Form},
    },
    remote::index,
    without_taking,
};
use algorithms::{Hits, fixed_window};
use clock::Time;

/// Maximum number of runs in one call: each puts two numbers on Lua's stack, which holds 8,000.
const MAX_RUNS: usize = 1000;

pub(super) struct RuleLimits {
    keys: Vec<u8>,
    limits: SmallVec<[(Range<u32>, ScriptCall); 2]>,
    runs: SmallVec<[Run; 1]>,
}

/// The state of one limit before the next caller's hits.
pub(super) enum Limit {
    /// A fixed window: its limit, and its count.
    Count(u32, u64),
    ScriptCall(ReplyState),
}

impl<'a> FromIterator<Guarded<'a>> for RuleLimits {
    fn from_iter<I: IntoIterator<Item = Guarded<'a>>>(checks: I) -> Self {
        let (mut keys, mut limits) = (Vec::new(), SmallVec::new());
        for check in checks {
            let start = index(keys.len());
            keys.extend_from_slice(check.key.as_bytes());
            limits.push((start..index(keys.len()), check.call));
        }
        Self { keys, limits, runs: SmallVec::new() }
    }
}

impl RuleLimits {
    pub(super) fn keys(&self) -> usize {
        self.limits.len()
    }

    /// True for the same limits and keys, if one more run fits.
    pub(super) fn may_join<'a>(&self, mut checks: impl Iterator<Item = Guarded<'a>>) -> bool {
        let mut own = self.limits.iter();
        let is_same = |check: Guarded<'_>| {
            own.next().is_some_and(|(key, limit)| {
                self.key(key) == check.key.as_bytes() && limit.algorithm == check.call.algorithm
            })
        };
        self.runs.len() < MAX_RUNS && checks.all(is_same) && own.next().is_none()
    }

    pub(super) fn join(&mut self, hits: Hits) -> u32 {
        script_call::join(&mut self.runs, hits)
    }

    /// Fixed windows alone need no time, and reply with their counts.
    fn only_counts(&self) -> bool {
        self.limits.iter().all(|(_, call)| call.window_limit().is_some())
    }

    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let only_counts = self.only_counts();
        if only_counts {
            let arguments = self.keys().saturating_add(self.runs.len()).saturating_mul(2);
            script::COUNT_TOGETHER.begin(into, form, self.keys(), arguments);
        } else {
            script::CHECK_TOGETHER.begin(into, form, self.keys(), self.keys().saturating_add(1));
        }
        for (key, _) in &self.limits {
            resp::write_word(into, self.key(key));
        }
        if only_counts {
            self.write_counts(into);
            return;
        }
        let mut argument = Vec::with_capacity(48);
        for run in &self.runs {
            run.write(&mut argument);
        }
        resp::write_word(into, &argument);
        for (_, call) in &self.limits {
            argument.clear();
            call.write(&[], &mut argument);
            resp::write_word(into, &argument);
        }
    }

    fn write_counts(&self, into: &mut Vec<u8>) {
        for (_, call) in &self.limits {
            resp::write_number(into, call.window_limit().unwrap_or_default().into());
            resp::write_number(into, call.seconds.into());
        }
        for run in &self.runs {
            resp::write_word(into, itoa::Buffer::new().format(run.signed()).as_bytes());
            resp::write_number(into, u64::from(run.times));
        }
    }

    /// Reads the states before the hits, and their time.
    pub(super) fn read(&self, reply: Reply) -> Result<(Time, SmallVec<[Limit; 2]>), String> {
        let (now, states) = if self.only_counts() {
            (Time::default(), reply.into_list(self.keys())?)
        } else {
            reply_state::with_time(reply, self.keys())?
        };
        let limit = |(state, (_, call)): (Reply, &(Range<u32>, ScriptCall))| match call.window_limit() {
            Some(limit) => state.into_integer().map(|count| Limit::Count(limit, count)),
            None => call.read(state).map(Limit::ScriptCall),
        };
        let limits: Result<_, String> = states.into_iter().zip(&self.limits).map(limit).collect();
        limits.map(|limits| (now, limits))
    }

    fn key(&self, key: &Range<u32>) -> &[u8] {
        self.keys.get(key.start as usize..key.end as usize).unwrap_or_default()
    }
}

/// The outcomes of the next caller, whose hits are in this run: all limits count them, or none.
pub(super) fn apply(limits: &mut [Limit], run: u32, hits: Hits, now: Time) -> SmallVec<[Outcome; 2]> {
    let is_rejected = !limits.iter().all(|limit| limit.fits(hits, now));
    limits.iter_mut().map(|limit| limit.apply(run, hits, now, is_rejected)).collect()
}

impl Limit {
    fn fits(&self, hits: Hits, now: Time) -> bool {
        match (self, hits) {
            (Self::ScriptCall(state), _) => state.fits(hits, now),
            (Self::Count(limit, count), Hits::Take(hits)) => count.saturating_add(hits) <= (*limit).into(),
            (Self::Count(..), Hits::Refund(_)) => true,
        }
    }

    /// Counts the hits, unless a limit of the rule rejects them.
    fn apply(&mut self, run: u32, hits: Hits, now: Time, is_rejected: bool) -> Outcome {
        let fits = self.fits(hits, now);
        match self {
            Self::ScriptCall(state) => {
                let hits = if is_rejected && fits { without_taking(hits) } else { hits };
                Outcome::Decided(state.apply(run, hits, now))
            }
            Self::Count(_, count) if is_rejected && !fits => Outcome::NotCounted(*count),
            Self::Count(_, count) => {
                *count = fixed_window::count(*count, if is_rejected { Hits::Take(0) } else { hits });
                Outcome::Counted(*count)
            }
        }
    }
}
