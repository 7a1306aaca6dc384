//! All checks of a request in one step on the server: all count if none would be over its limit, else only those that
//! would be, and no group.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{ScriptCall, reply_state, script_call::Run, within_bounds};
use crate::{
    Member, Outcome,
    redis::{
        resp::{self, Reply},
        script::{self, Form},
    },
    table::Key,
    without_taking,
};
use algorithms::{Algorithm, Hits, fixed_window};
use clock::Time;

/// A check that counts together with others.
pub(crate) struct Guarded<'a> {
    pub key: Cow<'a, str>,
    pub call: ScriptCall,
    /// The hash of a fixed window's key and the end of the window, if the key may expire earlier.
    pub uncached: Option<(Key, Time)>,
    pub hits: Hits,
    pub member: Member,
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
        self.0.iter().all(|check| check.call.window_limit().is_some())
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
        for check in &self.0 {
            let run = Run { hits: within_bounds(check.hits), times: 1 };
            match check.call.window_limit() {
                Some(limit) if only_counts => {
                    resp::write_word(into, run.signed().to_string().as_bytes());
                    resp::write_number(into, limit.into());
                    resp::write_number(into, check.call.seconds.into());
                    resp::write_word(into, &[check.letter()]);
                }
                _ => {
                    let mut argument = Vec::with_capacity(48);
                    check.call.write(&[run], &mut argument);
                    resp::write_word(into, &argument);
                }
            }
        }
        if !only_counts {
            let members: SmallVec<[u8; 8]> = self.0.iter().map(Guarded::letter).collect();
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
            (Time::default(), reply.into_list(answers)?)
        } else {
            reply_state::with_time(reply, answers)?
        };
        // Two replies per check: its key's state, and the result.
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Reply::Nil);
        let outcome = |check: &Guarded<'_>| {
            let (state, result) = (next(), next());
            if result == Reply::Integer(0) && check.hits.taken() > 0 {
                expiring.extend(check.uncached);
            }
            check.outcome(state, &result, now)
        };
        self.0.iter().map(outcome).collect()
    }
}

impl Guarded<'_> {
    /// The group membership, as the scripts read it.
    fn letter(&self) -> u8 {
        match self.member {
            Member::Alone if self.uncached.is_some() => b'3',
            Member::Alone => b'0',
            Member::First => b'1',
            Member::Next => b'2',
        }
    }

    fn outcome(&self, state: Reply, result: &Reply, now: Time) -> Result<Outcome, String> {
        match (self.call.algorithm, result) {
            (Algorithm::FixedWindow(_), Reply::Integer(2)) => state.into_integer().map(Outcome::NotCounted),
            (Algorithm::FixedWindow(_), Reply::Integer(1)) => state.into_integer().map(Outcome::Counted),
            (Algorithm::FixedWindow(_), _) => {
                Ok(Outcome::Counted(with_all(state.into_integer()?, self.hits)))
            }
            (_, result) => {
                let hits = if *result == Reply::Integer(1) { without_taking(self.hits) } else { self.hits };
                Ok(Outcome::Decided(self.call.read(state)?.apply(0, within_bounds(hits), now)))
            }
        }
    }
}

/// A count that includes the hits above [`MAX_HITS`](super::MAX_HITS), which were not sent to the server.
fn with_all(count: u64, hits: Hits) -> u64 {
    let counted = hits.taken().min(fixed_window::MAX_HITS);
    count.saturating_add(counted.saturating_sub(within_bounds(hits).taken()))
}
