//! The algorithms over random histories: each verdict is compared with later results, and each algorithm with a slow,
//! obvious model. Time also stops, and runs backwards.

use proptest::prelude::*;

use super::{
    sliding_log::Log,
    steps::{BEGIN, Step, large_requests, requests, steps, windows},
    *,
};

mod buckets;
mod doubles;
mod lists;
mod windows;

/// An algorithm with any kind of state.
trait Limit: Copy {
    type Kept: Clone + Default + PartialEq + std::fmt::Debug;

    fn apply(self, kept: &mut Self::Kept, hits: Hits, now: Time) -> Verdict;
    fn end(self, kept: &Self::Kept) -> Time;
    fn most(self) -> u64;
}

macro_rules! keeps_a_state {
    ($limit:ty, $most:expr) => {
        impl Limit for $limit {
            type Kept = State;

            fn apply(self, kept: &mut State, hits: Hits, now: Time) -> Verdict {
                let (state, verdict) = <$limit>::apply(self, *kept, hits, now);
                *kept = state;
                verdict
            }

            fn end(self, kept: &State) -> Time {
                kept.end
            }

            fn most(self) -> u64 {
                let most: fn(Self) -> u64 = $most;
                most(self)
            }
        }
    };
}

keeps_a_state!(Bucket, Self::burst);
keeps_a_state!(SlidingWindow, |limit| limit.limit);

impl Limit for SlidingLog {
    type Kept = Log;

    fn apply(self, kept: &mut Log, hits: Hits, now: Time) -> Verdict {
        Self::apply(self, kept, hits, now)
    }

    fn end(self, kept: &Log) -> Time {
        Self::end(self, kept).unwrap_or_default()
    }

    fn most(self) -> u64 {
        self.limit
    }
}

/// Applies hits, and at every fourth step compares the verdict with later results.
fn apply<L: Limit>(
    limit: L,
    kept: &mut L::Kept,
    step: Step,
    hits: Hits,
    now: u64,
) -> Result<Verdict, TestCaseError> {
    let before = kept.clone();
    let verdict = limit.apply(kept, hits, Time::from_micros(now));
    prop_assert_eq!(verdict.consumed, verdict.admitted && hits.taken() > 0);
    prop_assert!(verdict.admitted || hits.taken() > 0);
    if step.pause.1.is_multiple_of(4) {
        matches_later_results(limit, kept, hits, now, verdict)?;
        can_be_undone(limit, before, kept.clone(), hits, now)?;
    }
    Ok(verdict)
}

fn matches_later_results<L: Limit>(
    limit: L,
    kept: &L::Kept,
    hits: Hits,
    now: u64,
    verdict: Verdict,
) -> Result<(), TestCaseError> {
    let at = |time: u64, hits| limit.apply(&mut kept.clone(), hits, Time::from_micros(time));
    // Exactly the remaining hits are admitted.
    let remaining = verdict.remaining;
    prop_assert!(at(now, Hits::Take(remaining)).admitted, "{verdict:?}");
    prop_assert!(!at(now, Hits::Take(remaining + 1)).admitted, "{verdict:?}");
    // The full limit is available then, and not before, unless time overflows.
    let left_at = |time| at(time, Hits::Take(0)).remaining;
    if verdict.reset < u64::MAX - now {
        prop_assert_eq!(left_at(now + verdict.reset), limit.most(), "{:?}", verdict);
        prop_assert!(verdict.reset == 0 || left_at(now + verdict.reset - 1) < limit.most(), "{verdict:?}");
    }
    // The hits are admitted then, and not before.
    match verdict.retry_after {
        Some(0) => prop_assert!(verdict.admitted),
        Some(wait) if wait >= u64::MAX - now => prop_assert!(!verdict.admitted),
        Some(wait) => {
            prop_assert!(!verdict.admitted);
            prop_assert!(at(now + wait, hits).admitted, "{verdict:?}");
            prop_assert!(!at(now + wait - 1, hits).admitted, "{verdict:?}");
        }
        None => prop_assert!(hits.taken() > limit.most()),
    }
    // At its end a state can be dropped, unless time overflows.
    let end = limit.end(kept).max(Time::from_micros(now));
    let forgotten = limit.apply(&mut L::Kept::default(), hits, end);
    prop_assert!(end.micros() == u64::MAX || at(end.micros(), hits) == forgotten);
    Ok(())
}

/// A refund restores the state, so several limits can be checked as one.
fn can_be_undone<L: Limit>(
    limit: L,
    mut before: L::Kept,
    mut after: L::Kept,
    hits: Hits,
    now: u64,
) -> Result<(), TestCaseError> {
    let now = Time::from_micros(now);
    if let Hits::Take(taken) = hits
        && limit.apply(&mut before.clone(), hits, now).consumed
    {
        let undone = limit.apply(&mut after, Hits::Refund(taken), now);
        let never = limit.apply(&mut before, Hits::Take(0), now);
        prop_assert_eq!((undone.remaining, undone.reset), (never.remaining, never.reset));
    }
    Ok(())
}
