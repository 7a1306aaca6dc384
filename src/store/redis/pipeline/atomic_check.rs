//! All checks of a request in one step on the server: as long as none would be over its limit all count, else
//! only those that would be, and of a group none.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    ScriptCall, complete, reply_state,
    script_call::{Run, write_argument},
    within_bounds,
};
use crate::{
    clock::Time,
    limiter::algorithm::{Hits, fixed_window},
    store::{
        Member, Outcome, looking,
        redis::{
            resp::{self, Reply},
            script::{self, Form},
        },
        table::Key,
    },
};

/// One of them.
pub(in crate::store::redis) struct Guarded<'a> {
    pub(in crate::store::redis) key: Cow<'a, str>,
    pub(in crate::store::redis) by: AtomicCheck,
    pub(in crate::store::redis) hits: Hits,
    pub(in crate::store::redis) member: Member,
}

/// What a check is held against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::redis) enum AtomicCheck {
    /// A fixed window's limit, and for how many seconds its counter lives. `unsure` has what stands for the key, and
    /// when the window ends, where it may be that the key lives shorter.
    Count { limit: u32, seconds: u32, unsure: Option<(Key, Time)> },
    /// A limit that a script knows.
    ScriptCall(ScriptCall),
}

/// All of a request.
pub(super) struct PendingAtomicCheck {
    keys: Vec<Box<str>>,
    checks: Vec<(AtomicCheck, Hits, Member)>,
}

impl<'a> FromIterator<Guarded<'a>> for PendingAtomicCheck {
    fn from_iter<I: IntoIterator<Item = Guarded<'a>>>(checks: I) -> Self {
        let of = |check: Guarded<'_>| (check.key.into(), (check.by, check.hits, check.member));
        let (keys, checks) = checks.into_iter().map(of).unzip();
        Self { keys, checks }
    }
}

impl PendingAtomicCheck {
    /// How many keys there are.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The hits of each check.
    pub(super) fn hits(&self) -> impl Iterator<Item = Hits> {
        self.checks.iter().map(|(_, hits, _)| *hits)
    }

    /// Counters alone need no moment, and are told by their counts.
    fn only_counts(&self) -> bool {
        self.checks.iter().all(|(by, ..)| matches!(by, AtomicCheck::Count { .. }))
    }

    /// Writes the command.
    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let only_counts = self.only_counts();
        if only_counts {
            script::COUNT_GUARDED.begin(into, form, self.keys(), 4 * self.keys());
        } else {
            script::ASK_GUARDED.begin(into, form, self.keys(), self.keys() + 1);
        }
        for key in &self.keys {
            resp::write_word(into, key.as_bytes());
        }
        for (by, hits, member) in &self.checks {
            let run = Run { hits: within_bounds(*hits), times: 1 };
            let mut argument = Vec::with_capacity(48);
            match by {
                AtomicCheck::Count { limit, seconds, .. } if only_counts => {
                    resp::write_word(into, run.signed().to_string().as_bytes());
                    resp::write_number(into, u64::from(*limit));
                    resp::write_number(into, u64::from(*seconds));
                    resp::write_word(into, &[by.letter(*member)]);
                    continue;
                }
                by => by.write(&[run], &mut argument),
            }
            resp::write_word(into, &argument);
        }
        if !only_counts {
            let members: SmallVec<[u8; 8]> =
                self.checks.iter().map(|(by, _, member)| by.letter(*member)).collect();
            resp::write_word(into, &members);
        }
    }

    /// Reads what came of each check, and notes the keys that live long enough.
    ///
    /// # Errors
    /// When the command failed.
    pub(super) fn read(
        &self,
        told: Reply,
        expiring: &mut Vec<(Key, Time)>,
    ) -> Result<SmallVec<[Outcome; 4]>, String> {
        let (now, told) = if self.only_counts() {
            (Time::default(), complete::list(told, 2 * self.keys())?)
        } else {
            reply_state::at_one_moment(told, 2 * self.keys())?
        };
        // Of each check, what is told of its key, and what became of it.
        let mut told = told.into_iter();
        let mut next = || told.next().unwrap_or(Reply::Nil);
        let outcome = |(by, hits, _): &(AtomicCheck, Hits, Member)| {
            let (told, became) = (next(), next());
            if became == Reply::Integer(0) && hits.taken() > 0 {
                expiring.extend(by.unsure());
            }
            by.outcome(told, &became, *hits, now)
        };
        self.checks.iter().map(outcome).collect()
    }
}

impl AtomicCheck {
    /// Writes an argument that asks these runs.
    pub(super) fn write(&self, runs: &[Run], into: &mut Vec<u8>) {
        match self {
            Self::Count { limit, seconds, .. } => {
                write_argument(b'c', *seconds, [u64::from(*limit), 0, 0], runs, into);
            }
            Self::ScriptCall(judge) => judge.write(runs, into),
        }
    }

    /// True when both hold hits against the same limit; for how long a key lives is drawn anew for each.
    pub(super) fn is_same_limit(self, other: Self) -> bool {
        match (self, other) {
            (Self::Count { limit, .. }, Self::Count { limit: other, .. }) => limit == other,
            (Self::ScriptCall(judge), Self::ScriptCall(other)) => judge.is_same_limit(other),
            _ => false,
        }
    }

    fn unsure(&self) -> Option<(Key, Time)> {
        match self {
            Self::Count { unsure, .. } => *unsure,
            Self::ScriptCall(_) => None,
        }
    }

    /// By which the scripts tell members of a group.
    fn letter(&self, member: Member) -> u8 {
        match (member, self) {
            (Member::Alone, Self::Count { unsure: Some(_), .. }) => b'3',
            (Member::Alone, _) => b'0',
            (Member::First, _) => b'1',
            (Member::Next, _) => b'2',
        }
    }

    fn outcome(&self, told: Reply, became: &Reply, hits: Hits, now: Time) -> Result<Outcome, String> {
        match self {
            Self::Count { .. } if *became == Reply::Integer(2) => {
                complete::integer(told).map(Outcome::NotCounted)
            }
            Self::Count { .. } if *became == Reply::Integer(1) => {
                complete::integer(told).map(Outcome::Counted)
            }
            Self::Count { .. } => Ok(Outcome::Counted(with_all(complete::integer(told)?, hits))),
            Self::ScriptCall(judge) => {
                let hits = if *became == Reply::Integer(1) { looking(hits) } else { hits };
                Ok(Outcome::Decided(judge.read(told)?.judge(0, within_bounds(hits), now)))
            }
        }
    }
}

/// A count with those hits as well that the server was spared. So many are over every limit, and were counted.
fn with_all(count: u64, hits: Hits) -> u64 {
    let counted = hits.taken().min(fixed_window::MAX_HITS);
    count.saturating_add(counted.saturating_sub(within_bounds(hits).taken()))
}
