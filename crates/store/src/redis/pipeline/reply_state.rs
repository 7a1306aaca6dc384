//! The state of a key in a script's reply, to which the hits of each caller are applied in turn.
//!
//! For windows and buckets the script replies with the state before, and the algorithm updates it here. For logs it
//! replies only with the inputs of verdicts.

use smallvec::SmallVec;

use crate::redis::resp::Reply;
use algorithms::{
    Bucket, Hits, SlidingLog, SlidingWindow, State, Verdict, fixed_window, sliding_log::LogSummary,
    sliding_window::Counts,
};
use clock::Time;

/// The state before the next caller's hits.
#[derive(Debug)]
pub(super) enum ReplyState {
    Window(SlidingWindow, State),
    Bucket(Bucket, State),
    /// The number of hits in a log, and its state after each run.
    Log(SlidingLog, u64, SmallVec<[After; 1]>),
}

/// A log after one run: the times of its newest entry and of the last one that blocks rejected hits.
#[derive(Clone, Copy, Debug)]
pub(super) struct After {
    newest: Option<u64>,
    blocking: Option<u64>,
}

impl ReplyState {
    /// Decodes the second at which the current window began, its hits, and those of the previous one.
    pub(super) fn window(limit: SlidingWindow, reply: &Reply) -> Option<Self> {
        let counts = |[a, b, c, d, e, f, g, h, i, j, k, l, m]: [u8; 13]| Counts {
            start: Time::from_seconds(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])),
            this: u32::from_le_bytes([f, g, h, i]),
            last: u32::from_le_bytes([j, k, l, m]),
        };
        state(reply, |bytes| limit.state(counts(bytes))).map(|state| Self::Window(limit, state))
    }

    /// Decodes the second and the tick at which the bucket is full; the rest is used by the script only.
    pub(super) fn bucket(limit: Bucket, reply: &Reply) -> Option<Self> {
        let full_at = |[a, b, c, d, e, f, g, h, i, j, k, l, ..]: [u8; 19]| {
            let second = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
            limit.full_at(second, u64::from_le_bytes([h, i, j, k, l, 0, 0, 0]))
        };
        state(reply, full_at).map(|state| Self::Bucket(limit, state))
    }

    /// Decodes the number of hits and, for each run, two times, which are 0 for none.
    pub(super) fn log(limit: SlidingLog, reply: &Reply) -> Option<Self> {
        let number = |reply: &Reply| match reply {
            Reply::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let time = |reply: &Reply| number(reply).map(|time| Some(time).filter(|time| *time > 0));
        let after = |run: &[Reply]| match run {
            [newest, blocking] => Some(After { newest: time(newest)?, blocking: time(blocking)? }),
            _ => None,
        };
        let Reply::List(reply) = reply else { return None };
        let (total, runs) = reply.split_first()?;
        Some(Self::Log(limit, number(total)?, runs.chunks(2).map(after).collect::<Option<_>>()?))
    }

    /// The verdict for the next caller, whose hits are in this run.
    pub(super) fn apply(&mut self, run: u32, hits: Hits, now: Time) -> Verdict {
        let verdict;
        match self {
            Self::Window(limit, state) => (*state, verdict) = limit.apply(*state, hits, now),
            Self::Bucket(limit, state) => (*state, verdict) = limit.apply(*state, hits, now),
            Self::Log(limit, total, runs) => {
                let count = fixed_window::count(*total, hits);
                let admitted = hits.taken() == 0 || count <= u64::from(limit.limit);
                if admitted {
                    *total = count;
                }
                let after = runs.get(run as usize);
                let summary = LogSummary {
                    total: *total,
                    newest: after.and_then(|after| after.newest),
                    blocking: after.and_then(|after| after.blocking).filter(|_| !admitted),
                };
                verdict = limit.verdict(summary, admitted, hits, now);
            }
        }
        verdict
    }

    /// True if these hits would be admitted; refunds always are.
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

/// A state of this many bytes; that of an unused key for null.
fn state<const BYTES: usize>(reply: &Reply, read: impl FnOnce([u8; BYTES]) -> State) -> Option<State> {
    match reply {
        Reply::Nil => Some(State::default()),
        Reply::Text(text) => text.as_slice().try_into().ok().map(read),
        _ => None,
    }
}

/// Splits a reply into this many elements and the time after them, a second and microseconds.
pub(super) fn with_time(reply: Reply, expected: usize) -> Result<(Time, Vec<Reply>), String> {
    let mut list = match reply {
        Reply::List(list) => list,
        other => return Err(other.unexpected("an array")),
    };
    let number = |reply: &Reply| reply.text()?.parse::<u64>().ok();
    let now = match list.get(expected..) {
        Some([second, micros]) => number(second).zip(number(micros)),
        _ => None,
    };
    let (second, micros) = now
        .ok_or_else(|| Reply::List(Vec::new()).unexpected(&format!("an array of {expected} and the time")))?;
    list.truncate(expected);
    Ok((Time::from_micros(Time::from_seconds(second).micros().saturating_add(micros)), list))
}
