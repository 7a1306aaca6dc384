//! The algorithms over random histories: each verdict is compared with later results, and each algorithm with a slow,
//! obvious model. Time also stops, and runs backwards.

use proptest::prelude::*;

use super::{sliding_log::Log, *};

mod buckets;
mod doubles;
mod windows;

/// The start of most histories: an odd moment of 2026.
pub(crate) const BEGIN: u64 = 1_795_276_800_123_457;

/// The end of histories, in 2079: some states overflow in 2106.
const LATEST: u64 = BEGIN + 53 * 365 * 86_400_000_000;

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
keeps_a_state!(SlidingWindow, |limit| u64::from(limit.limit));

impl Limit for SlidingLog {
    type Kept = Log;

    fn apply(self, kept: &mut Log, hits: Hits, now: Time) -> Verdict {
        Self::apply(self, kept, hits, now)
    }

    fn end(self, kept: &Log) -> Time {
        Self::end(self, kept).unwrap_or_default()
    }

    fn most(self) -> u64 {
        u64::from(self.limit)
    }
}

/// One step of a history: a kind and a number, to be interpreted with a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) pause: (u64, u64),
    pub(crate) hits: (u64, u64),
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = any::<(u64, u64)>()
        .prop_map(|(pause, hits)| Step { pause: (pause % 12, pause / 12), hits: (hits % 10, hits / 10) });
    prop::collection::vec(step, 1..most)
}

impl Step {
    /// The time of this step, after one at `now`.
    pub(crate) fn moment(self, now: u64, window: Window, most: u64) -> u64 {
        let (long, micros) = (self.pause.1, window.micros());
        let up_to = |most: u64| long % most.max(1);
        let then = match self.pause.0 {
            0 | 1 => now,
            2 => now + up_to(1000),
            3..=5 => now + up_to(2 * micros / most.max(1)),
            6 => now + up_to(micros),
            7 => now + up_to(3 * micros),
            8 => window.end(Time::from_micros(now)).micros() - 1 + up_to(3),
            9 => now + micros - 1 + up_to(3),
            10 => now.saturating_sub(up_to(LEEWAY)),
            _ => now.saturating_sub(up_to(3 * micros)),
        };
        if then > LATEST { BEGIN } else { then }
    }

    /// The same with a clock that is set back by at most half the leeway.
    fn moment_of_a_good_clock(self, latest: u64, window: Window, most: u64) -> (u64, u64) {
        match self.pause {
            (10.., long) => (latest, latest - long % (LEEWAY / 2)),
            _ => [self.moment(latest, window, most).max(latest); 2].into(),
        }
    }

    pub(crate) fn hits(self, most: u64) -> Hits {
        let many = self.hits.1;
        match self.hits.0 {
            0..=3 => Hits::Take(1),
            4 => Hits::Take(0),
            5 => Hits::Take(many % 4),
            6 | 7 => Hits::Take(many % most.saturating_add(2)),
            8 => Hits::Refund(many % most.max(1)),
            _ if many.is_multiple_of(2) => Hits::Take(many),
            _ => Hits::Refund(many % 3),
        }
    }
}

pub(crate) fn windows() -> impl Strategy<Value = Window> {
    let usual = prop::sample::select(vec![1, 7, 60, 900, 3600, 86_400, 315_360_000]);
    prop_oneof![3 => usual, 1 => 1..=315_360_000_u64].prop_map(|seconds| Window::of_seconds(seconds).unwrap())
}

pub(crate) fn requests() -> impl Strategy<Value = u32> {
    let usual = prop::sample::select(vec![0, 1, 2, 3, 7, 10, 100, 1000, 1_000_000, 4_294_967_291, u32::MAX]);
    prop_oneof![3 => usual, 1 => 1..200_u32, 1 => any::<u32>()]
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
    let remaining = u64::from(verdict.remaining);
    prop_assert!(at(now, Hits::Take(remaining)).admitted, "{verdict:?}");
    prop_assert!(!at(now, Hits::Take(remaining + 1)).admitted, "{verdict:?}");
    // The full limit is available then, and not before, unless time overflows.
    let left_at = |time| u64::from(at(time, Hits::Take(0)).remaining);
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
