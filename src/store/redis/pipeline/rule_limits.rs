//! The limits of one rule that has several: hits that one of them refuses are counted by none.
//!
//! One command changes all of them in one step on the server. Callers who ask the same limits of the same keys join
//! it, in runs as in `judge`; the script answers what was kept before, and from that everyone is told in turn what
//! it would have been told alone.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    AtomicCheck, Guarded, at, complete,
    reply_state::{self, ReplyState},
    script_call::Run,
};
use crate::{
    clock::Time,
    limiter::algorithm::{Hits, fixed_window},
    store::{
        Outcome, looking,
        redis::{
            resp::{self, Reply},
            script::{self, Form},
        },
    },
};

/// A script takes no more runs: each puts two numbers on its stack, which holds 8,000.
const MOST_RUNS: usize = 1000;

/// The limits of a rule, and what is asked of them.
pub(super) struct RuleLimits {
    /// All keys, one behind the other.
    keys: Vec<u8>,
    limits: SmallVec<[(Range<u32>, AtomicCheck); 2]>,
    runs: SmallVec<[Run; 1]>,
}

/// What one limit of the rule keeps, as the next caller finds it.
pub(super) enum Limit {
    /// A fixed window: its limit, and its count.
    Count(u32, u64),
    ScriptCall(ReplyState),
}

impl<'a> FromIterator<Guarded<'a>> for RuleLimits {
    fn from_iter<I: IntoIterator<Item = Guarded<'a>>>(checks: I) -> Self {
        let (mut keys, mut limits) = (Vec::new(), SmallVec::new());
        for check in checks {
            let start = at(keys.len());
            keys.extend_from_slice(check.key.as_bytes());
            limits.push((start..at(keys.len()), check.by));
        }
        Self { keys, limits, runs: SmallVec::new() }
    }
}

impl RuleLimits {
    /// How many keys there are.
    pub(super) fn keys(&self) -> usize {
        self.limits.len()
    }

    /// True when these checks ask the same limits of the same keys, and one more run fits.
    pub(super) fn may_join<'a>(&self, mut checks: impl Iterator<Item = Guarded<'a>>) -> bool {
        let mut own = self.limits.iter();
        let alike = |check: Guarded<'_>| {
            own.next()
                .is_some_and(|(key, by)| self.key(key) == check.key.as_bytes() && by.is_same_limit(check.by))
        };
        self.runs.len() < MOST_RUNS && checks.all(alike) && own.next().is_none()
    }

    /// Adds a caller with so many hits, and returns in which run.
    pub(super) fn join(&mut self, hits: Hits) -> u32 {
        match self.runs.last_mut() {
            // Each who gives back to a log finds another to be the newest.
            Some(run) if run.hits == hits && matches!(hits, Hits::Take(_)) => run.times += 1,
            _ => self.runs.push(Run { hits, times: 1 }),
        }
        at(self.runs.len() - 1)
    }

    /// Counters alone need no moment, and are told by their counts.
    fn only_counts(&self) -> bool {
        self.limits.iter().all(|(_, by)| matches!(by, AtomicCheck::Count { .. }))
    }

    /// Writes the command.
    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let only_counts = self.only_counts();
        if only_counts {
            let arguments = 2 * self.keys() + 2 * self.runs.len();
            script::COUNT_TOGETHER.begin(into, form, self.keys(), arguments);
        } else {
            script::ASK_TOGETHER.begin(into, form, self.keys(), self.keys() + 1);
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
        for (_, by) in &self.limits {
            argument.clear();
            by.write(&[], &mut argument);
            resp::write_word(into, &argument);
        }
    }

    fn write_counts(&self, into: &mut Vec<u8>) {
        for (_, by) in &self.limits {
            if let AtomicCheck::Count { limit, seconds, .. } = by {
                resp::write_number(into, u64::from(*limit));
                resp::write_number(into, u64::from(*seconds));
            }
        }
        for run in &self.runs {
            resp::write_word(into, itoa::Buffer::new().format(run.signed()).as_bytes());
            resp::write_number(into, u64::from(run.times));
        }
    }

    /// Reads what was kept before, and when that was where it matters.
    ///
    /// # Errors
    /// When the command failed.
    pub(super) fn read(&self, told: Reply) -> Result<(Time, SmallVec<[Limit; 2]>), String> {
        let (now, told) = if self.only_counts() {
            (Time::default(), complete::list(told, self.keys())?)
        } else {
            reply_state::at_one_moment(told, self.keys())?
        };
        let limit = |(told, (_, by)): (Reply, &(Range<u32>, AtomicCheck))| match by {
            AtomicCheck::Count { limit, .. } => {
                complete::integer(told).map(|count| Limit::Count(*limit, count))
            }
            AtomicCheck::ScriptCall(judge) => judge.read(told).map(Limit::ScriptCall),
        };
        let limits: Result<_, String> = told.into_iter().zip(&self.limits).map(limit).collect();
        limits.map(|limits| (now, limits))
    }

    fn key(&self, key: &Range<u32>) -> &[u8] {
        self.keys.get(key.start as usize..key.end as usize).unwrap_or_default()
    }
}

/// What the next caller is told, whose hits are in this run: all limits count them, or none.
pub(super) fn apply(limits: &mut [Limit], run: u32, hits: Hits, now: Time) -> SmallVec<[Outcome; 2]> {
    let is_refused = !limits.iter().all(|limit| limit.fits(hits, now));
    limits.iter_mut().map(|limit| limit.apply(run, hits, now, is_refused)).collect()
}

impl Limit {
    fn fits(&self, hits: Hits, now: Time) -> bool {
        match (self, hits) {
            (Self::ScriptCall(kept), _) => kept.fits(hits, now),
            (Self::Count(limit, count), Hits::Take(hits)) => count.saturating_add(hits) <= (*limit).into(),
            (Self::Count(..), Hits::Refund(_)) => true,
        }
    }

    /// Counts the hits, unless a limit of the rule refuses them.
    fn apply(&mut self, run: u32, hits: Hits, now: Time, is_refused: bool) -> Outcome {
        let fits = self.fits(hits, now);
        match self {
            Self::ScriptCall(kept) => {
                let hits = if is_refused && fits { looking(hits) } else { hits };
                Outcome::Decided(kept.judge(run, hits, now))
            }
            Self::Count(_, count) if is_refused && !fits => Outcome::NotCounted(*count),
            Self::Count(_, count) => {
                *count = fixed_window::count(*count, if is_refused { Hits::Take(0) } else { hits });
                Outcome::Counted(*count)
            }
        }
    }
}
