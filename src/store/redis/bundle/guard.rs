//! Checks that count only together, in one step on the server: as long as none would be over its limit all
//! count, else only those that would be.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    Judge, deal,
    judge::{Run, write_argument},
    kept, within_bounds,
};
use crate::{
    algorithm::{Hits, fixed_window},
    clock::Time,
    store::{
        Outcome, looking,
        redis::{
            resp::{self, Reply},
            script::{self, Form},
        },
    },
};

/// One of them.
pub(in crate::store::redis) struct Guarded<'a> {
    pub(in crate::store::redis) key: Cow<'a, str>,
    pub(in crate::store::redis) by: Guard,
    pub(in crate::store::redis) hits: Hits,
}

/// What a check is held against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::redis) enum Guard {
    /// A fixed window's limit, and for how many seconds its counter lives.
    Count { limit: u32, seconds: u32 },
    /// A limit that a script knows.
    Judge(Judge),
}

/// All of a request.
pub(super) struct Guarding {
    keys: Vec<Box<str>>,
    checks: Vec<(Guard, Hits)>,
}

impl<'a> FromIterator<Guarded<'a>> for Guarding {
    fn from_iter<I: IntoIterator<Item = Guarded<'a>>>(checks: I) -> Self {
        let of = |check: Guarded<'_>| (check.key.into(), (check.by, check.hits));
        let (keys, checks) = checks.into_iter().map(of).unzip();
        Self { keys, checks }
    }
}

impl Guarding {
    /// How many keys there are.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The hits of each check.
    pub(super) fn hits(&self) -> impl Iterator<Item = Hits> {
        self.checks.iter().map(|(_, hits)| *hits)
    }

    /// Counters alone need no moment, and are told by their counts.
    fn only_counts(&self) -> bool {
        self.checks.iter().all(|(by, _)| matches!(by, Guard::Count { .. }))
    }

    /// Writes the command.
    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let only_counts = self.only_counts();
        if only_counts {
            script::COUNT_GUARDED.begin(into, form, self.keys(), 3 * self.keys());
        } else {
            script::ASK_GUARDED.begin(into, form, self.keys(), self.keys());
        }
        for key in &self.keys {
            resp::write_word(into, key.as_bytes());
        }
        for (by, hits) in &self.checks {
            let run = Run { hits: within_bounds(*hits), times: 1 };
            let mut argument = Vec::with_capacity(48);
            match by {
                Guard::Count { limit, seconds } if only_counts => {
                    resp::write_word(into, run.signed().to_string().as_bytes());
                    resp::write_number(into, u64::from(*limit));
                    resp::write_number(into, u64::from(*seconds));
                    continue;
                }
                Guard::Count { limit, seconds } => {
                    write_argument(b'c', *seconds, [u64::from(*limit), 0, 0], &[run], &mut argument);
                }
                Guard::Judge(judge) => judge.write(&[run], &mut argument),
            }
            resp::write_word(into, &argument);
        }
    }

    /// Reads what came of each check.
    ///
    /// # Errors
    /// When the command failed.
    pub(super) fn read(&self, told: Reply) -> Result<SmallVec<[Outcome; 4]>, String> {
        if self.only_counts() {
            let counts = deal::numbers(told, self.keys())?.into_iter().zip(&self.checks);
            return Ok(counts.map(|(count, (_, hits))| Outcome::Counted(with_all(count, *hits))).collect());
        }
        // Of each check, what is told of its key, and 1 where it only looked.
        let (now, told) = kept::at_one_moment(told, 2 * self.keys())?;
        let mut told = told.into_iter();
        let mut next = || told.next().unwrap_or(Reply::Nil);
        let outcome = |(by, hits): &(Guard, Hits)| {
            let (told, looked) = (next(), next() == Reply::Integer(1));
            by.outcome(told, if looked { looking(*hits) } else { *hits }, now)
        };
        self.checks.iter().map(outcome).collect()
    }
}

impl Guard {
    fn outcome(&self, told: Reply, hits: Hits, now: Time) -> Result<Outcome, String> {
        match self {
            Self::Count { .. } => Ok(Outcome::Counted(with_all(deal::number(told)?, hits))),
            Self::Judge(judge) => Ok(Outcome::Judged(judge.read(told)?.judge(0, within_bounds(hits), now))),
        }
    }
}

/// A count with those hits as well that the server was spared. So many are over every limit, and were counted.
fn with_all(count: u64, hits: Hits) -> u64 {
    let counted = hits.taken().min(fixed_window::MOST_HITS);
    count.saturating_add(counted.saturating_sub(within_bounds(hits).taken()))
}
