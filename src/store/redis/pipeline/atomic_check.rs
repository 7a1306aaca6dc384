//! All checks of a request in one step on the server: all count if none would be over its limit, else only those that
//! would be, and no group.

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
        Member, Outcome,
        redis::{
            resp::{self, Reply},
            script::{self, Form},
        },
        table::Key,
        without_taking,
    },
};

pub(crate) struct Guarded<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) limit: AtomicCheck,
    pub(crate) hits: Hits,
    pub(crate) member: Member,
}

/// The limit of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtomicCheck {
    /// A fixed window's limit and its expiry in seconds. `uncached` has the hash of the key and the end of its window,
    /// if the key may expire before.
    Count { limit: u32, seconds: u32, uncached: Option<(Key, Time)> },
    /// A limit of another algorithm.
    ScriptCall(ScriptCall),
}

pub(super) struct PendingAtomicCheck(Vec<Guarded<'static>>);

impl<'a> FromIterator<Guarded<'a>> for PendingAtomicCheck {
    fn from_iter<I: IntoIterator<Item = Guarded<'a>>>(checks: I) -> Self {
        let owned = |check: Guarded<'_>| Guarded { key: Cow::Owned(check.key.into_owned()), ..check };
        Self(checks.into_iter().map(owned).collect())
    }
}

impl PendingAtomicCheck {
    pub(super) fn keys(&self) -> usize {
        self.0.len()
    }

    pub(super) fn hits(&self) -> impl Iterator<Item = Hits> {
        self.0.iter().map(|check| check.hits)
    }

    /// Fixed windows alone need no time, and reply with their counts.
    fn only_counts(&self) -> bool {
        self.0.iter().all(|check| matches!(check.limit, AtomicCheck::Count { .. }))
    }

    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form) {
        let only_counts = self.only_counts();
        if only_counts {
            script::COUNT_GUARDED.begin(into, form, self.keys(), self.keys().saturating_mul(4));
        } else {
            script::CHECK_GUARDED.begin(into, form, self.keys(), self.keys().saturating_add(1));
        }
        for check in &self.0 {
            resp::write_word(into, check.key.as_bytes());
        }
        for Guarded { limit, hits, member, .. } in &self.0 {
            let run = Run { hits: within_bounds(*hits), times: 1 };
            let mut argument = Vec::with_capacity(48);
            match limit {
                AtomicCheck::Count { limit: requests, seconds, .. } if only_counts => {
                    resp::write_word(into, run.signed().to_string().as_bytes());
                    resp::write_number(into, u64::from(*requests));
                    resp::write_number(into, u64::from(*seconds));
                    resp::write_word(into, &[limit.letter(*member)]);
                    continue;
                }
                limit => limit.write(&[run], &mut argument),
            }
            resp::write_word(into, &argument);
        }
        if !only_counts {
            let members: SmallVec<[u8; 8]> =
                self.0.iter().map(|check| check.limit.letter(check.member)).collect();
            resp::write_word(into, &members);
        }
    }

    /// Reads the outcomes, and adds the keys whose expiry is confirmed to `expiring`.
    pub(super) fn read(
        &self,
        reply: Reply,
        expiring: &mut Vec<(Key, Time)>,
    ) -> Result<SmallVec<[Outcome; 4]>, String> {
        let answers = self.keys().saturating_mul(2);
        let (now, replies) = if self.only_counts() {
            (Time::default(), complete::list(reply, answers)?)
        } else {
            reply_state::with_time(reply, answers)?
        };
        // Two replies per check: its key's state, and the result.
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        let outcome = |check: &Guarded<'_>| {
            let (state, result) = (next(), next());
            if result == Reply::Integer(0)
                && check.hits.taken() > 0
                && let AtomicCheck::Count { uncached, .. } = check.limit
            {
                expiring.extend(uncached);
            }
            check.limit.outcome(state, &result, check.hits, now)
        };
        self.0.iter().map(outcome).collect()
    }
}

impl AtomicCheck {
    pub(super) fn write(&self, runs: &[Run], into: &mut Vec<u8>) {
        match self {
            Self::Count { limit, seconds, .. } => {
                write_argument(b'c', *seconds, [u64::from(*limit), 0, 0], runs, into);
            }
            Self::ScriptCall(call) => call.write(runs, into),
        }
    }

    /// True for the same limit; the random expiry may differ.
    pub(super) fn is_same_limit(self, other: Self) -> bool {
        match (self, other) {
            (Self::Count { limit, .. }, Self::Count { limit: other, .. }) => limit == other,
            (Self::ScriptCall(call), Self::ScriptCall(other)) => call.is_same_limit(other),
            _ => false,
        }
    }

    /// The group membership, as the scripts read it.
    fn letter(&self, member: Member) -> u8 {
        match (member, self) {
            (Member::Alone, Self::Count { uncached: Some(_), .. }) => b'3',
            (Member::Alone, _) => b'0',
            (Member::First, _) => b'1',
            (Member::Next, _) => b'2',
        }
    }

    fn outcome(&self, state: Reply, result: &Reply, hits: Hits, now: Time) -> Result<Outcome, String> {
        match self {
            Self::Count { .. } if *result == Reply::Integer(2) => {
                complete::integer(state).map(Outcome::NotCounted)
            }
            Self::Count { .. } if *result == Reply::Integer(1) => {
                complete::integer(state).map(Outcome::Counted)
            }
            Self::Count { .. } => Ok(Outcome::Counted(with_all(complete::integer(state)?, hits))),
            Self::ScriptCall(call) => {
                let hits = if *result == Reply::Integer(1) { without_taking(hits) } else { hits };
                Ok(Outcome::Decided(call.read(state)?.apply(0, within_bounds(hits), now)))
            }
        }
    }
}

/// A count that includes the hits above [`MAX_HITS`](super::MAX_HITS), which were not sent to the server.
fn with_all(count: u64, hits: Hits) -> u64 {
    let counted = hits.taken().min(fixed_window::MAX_HITS);
    count.saturating_add(counted.saturating_sub(within_bounds(hits).taken()))
}
