//! What a script tells of a key: what was kept there, as everyone who asked finds it in turn.
//!
//! A window's or a bucket's state is told as it was before, and brought forward by the algorithm itself. Of
//! a log only as much is told as a verdict needs.

use smallvec::SmallVec;

use super::complete::unexpected;

use crate::{
    clock::Time,
    limiter::algorithm::{
        Bucket, Hits, SlidingLog, SlidingWindow, State, Verdict, fixed_window, sliding_log::LogSummary,
        sliding_window::Counts,
    },
    store::redis::resp::Reply,
};

/// What was kept, and what the next who asks finds.
#[derive(Debug)]
pub(super) enum ReplyState {
    Window(SlidingWindow, State),
    Bucket(Bucket, State),
    /// How many hits a log had, and what it was after each run.
    Log(SlidingLog, u64, SmallVec<[After; 1]>),
}

/// A log after one run: when its newest hits were taken, and the last of those that were in the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct After {
    newest: Option<u64>,
    blocking: Option<u64>,
}

impl ReplyState {
    /// Reads a state: the second at which the present window began, its hits, and those of the last.
    pub(super) fn window(limit: SlidingWindow, told: &Reply) -> Option<Self> {
        let counts = |[a, b, c, d, e, f, g, h, i, j, k, l, m]: [u8; 13]| Counts {
            start: Time::from_seconds(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])),
            this: u32::from_le_bytes([f, g, h, i]),
            last: u32::from_le_bytes([j, k, l, m]),
        };
        state(told, |told| limit.state(counts(told))).map(|state| Self::Window(limit, state))
    }

    /// Reads a state: the second and the tick at which the bucket is full, and more that is the script's own.
    pub(super) fn bucket(limit: Bucket, told: &Reply) -> Option<Self> {
        let full_at = |[a, b, c, d, e, f, g, h, i, j, k, l, ..]: [u8; 19]| {
            let second = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
            limit.full_at(second, u64::from_le_bytes([h, i, j, k, l, 0, 0, 0]))
        };
        state(told, full_at).map(|state| Self::Bucket(limit, state))
    }

    /// Reads how many hits there were and, for each run, the two moments, which are 0 where there is none.
    pub(super) fn log(limit: SlidingLog, told: &Reply) -> Option<Self> {
        let number = |told: &Reply| match told {
            Reply::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let moment = |told: &Reply| number(told).map(|moment| Some(moment).filter(|moment| *moment > 0));
        let after = |run: &[Reply]| match run {
            [newest, blocking] => Some(After { newest: moment(newest)?, blocking: moment(blocking)? }),
            _ => None,
        };
        let Reply::List(told) = told else { return None };
        let (total, runs) = told.split_first()?;
        Some(Self::Log(limit, number(total)?, runs.chunks(2).map(after).collect::<Option<_>>()?))
    }

    /// What the next who asks is told, whose hits are in this run.
    pub(super) fn judge(&mut self, run: u32, hits: Hits, now: Time) -> Verdict {
        let verdict;
        match self {
            Self::Window(limit, state) => (*state, verdict) = limit.apply(*state, hits, now),
            Self::Bucket(limit, state) => (*state, verdict) = limit.apply(*state, hits, now),
            Self::Log(limit, total, runs) => {
                let after = fixed_window::count(*total, hits);
                let admitted = hits.taken() == 0 || after <= u64::from(limit.limit);
                if admitted {
                    *total = after;
                }
                let told = runs.get(run as usize);
                let told = LogSummary {
                    total: *total,
                    newest: told.and_then(|after| after.newest),
                    blocking: told.and_then(|after| after.blocking).filter(|_| !admitted),
                };
                verdict = limit.verdict(told, admitted, hits, now);
            }
        }
        verdict
    }

    /// True when these hits would be admitted; what is given back always is.
    pub(super) fn fits(&self, hits: Hits, now: Time) -> bool {
        let Hits::Take(taken) = hits else { return true };
        let look = Hits::Take(0);
        match self {
            Self::Window(limit, state) => taken <= limit.apply(*state, look, now).1.remaining.into(),
            Self::Bucket(limit, state) => taken <= limit.apply(*state, look, now).1.remaining.into(),
            Self::Log(limit, total, _) => taken == 0 || total.saturating_add(taken) <= limit.limit.into(),
        }
    }
}

/// A state of so many bytes; where there is nothing, that of a key that was never seen.
fn state<const BYTES: usize>(told: &Reply, read: impl FnOnce([u8; BYTES]) -> State) -> Option<State> {
    match told {
        Reply::Nil => Some(State::default()),
        Reply::Text(text) => text.as_slice().try_into().ok().map(read),
        _ => None,
    }
}

/// Takes apart so many answers and the moment of which they tell, a second and the microseconds behind it.
///
/// # Errors
/// When this is an error, or something else.
pub(super) fn at_one_moment(told: Reply, expected: usize) -> Result<(Time, Vec<Reply>), String> {
    let mut told = match told {
        Reply::List(told) => told,
        other => return Err(unexpected("a list", other)),
    };
    let number = |told: &Reply| match told {
        Reply::Text(text) => str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()),
        _ => None,
    };
    let now = match told.get(expected..) {
        Some([second, micros]) => number(second).zip(number(micros)),
        _ => None,
    };
    let (second, micros) = now
        .ok_or_else(|| unexpected(&format!("a list of {expected} and the time"), Reply::List(Vec::new())))?;
    told.truncate(expected);
    Ok((Time::from_micros(Time::from_seconds(second).micros().saturating_add(micros)), told))
}
