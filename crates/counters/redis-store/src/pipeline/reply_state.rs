//! The state of a counter in a script's reply, to which the hits of each caller are applied in turn.
//!
//! For most algorithms the script replies with the state before, and the algorithm updates it here. For logs it replies
//! only with the inputs of verdicts.

use smallvec::SmallVec;

use super::Counted;
use crate::resp::Reply;
use clock::Time;
use limit::{
    Algorithm, Bucket, Hits, SlidingLog, SlidingWindow, State, fixed_window, sliding_log::LogSummary,
};
use wire::at;

/// The state before the next caller's hits.
#[derive(Debug)]
pub(super) enum ReplyState {
    /// A fixed window's limit and count.
    Count(u64, u64),
    Window(SlidingWindow, State),
    Bucket(Bucket, State),
    /// The number of hits in a log, and its state after each run.
    Log(SlidingLog, u64, SmallVec<[AfterRun; 1]>),
}

/// The times of a log's newest entry and of the last one that blocks rejected hits.
#[derive(Clone, Copy, Debug)]
pub(super) struct AfterRun {
    newest: Option<u64>,
    blocking: Option<u64>,
}

impl ReplyState {
    /// Decodes the state of a counter with this many runs. Fails if the key has a foreign value.
    #[expect(
        clippy::expect_used,
        reason = "a pipeline has fewer runs than 2³²; the length of the list is checked"
    )]
    pub(super) fn read(algorithm: Algorithm, reply: Reply, runs: usize) -> Result<Self, String> {
        let foreign = || format!("WRONGTYPE the value is not the state of a {}", algorithm.kind().name());
        match reply {
            Reply::Error(error) if error.starts_with("WRONGTYPE") => return Err(foreign()),
            Reply::Error(error) => return Err(error),
            _ => {}
        }
        match algorithm {
            Algorithm::FixedWindow(window) => {
                reply.into_count().map(|count| Self::Count(window.limit, count))
            }
            Algorithm::SlidingWindow(limit) => {
                state(reply, |bytes| window(limit, &bytes)).map(|state| Self::Window(limit, state))
            }
            Algorithm::Bucket(limit) => {
                state(reply, |bytes| bucket(limit, &bytes)).map(|state| Self::Bucket(limit, state))
            }
            Algorithm::Concurrency(_) => unreachable!("holds have a script of their own"),
            Algorithm::SlidingLog(limit) => {
                let mut numbers = reply.into_list(1 + 2 * runs)?.into_iter().map(Reply::into_count);
                let total = numbers.next().expect("the list has one number and two for each run")?;
                let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
                let time = |number: u64| Some(number).filter(|time| *time > 0);
                let (pairs, _) = numbers.as_chunks();
                let after = pairs
                    .iter()
                    .map(|[newest, blocking]| AfterRun { newest: time(*newest), blocking: time(*blocking) });
                Ok(Self::Log(limit, total, after.collect()))
            }
        }
    }

    /// The result for the next caller, whose hits are in this run.
    pub(super) fn apply(&mut self, run: u32, hits: Hits, now: Time) -> Counted {
        let verdict;
        match self {
            Self::Count(_, count) => {
                *count = fixed_window::count(*count, hits);
                return Counted::After(*count);
            }
            Self::Window(limit, state) => (*state, verdict) = limit.apply(*state, hits, now),
            Self::Bucket(limit, state) => (*state, verdict) = limit.apply(*state, hits, now),
            Self::Log(limit, total, runs) => {
                let count = fixed_window::count(*total, hits);
                let admitted = hits.taken() == 0 || count <= limit.limit;
                if admitted {
                    *total = count;
                }
                let AfterRun { newest, blocking } = *at(runs, run);
                let blocking = blocking.filter(|_| !admitted);
                verdict = limit.verdict(LogSummary { total: *total, newest, blocking }, admitted, hits, now);
            }
        }
        Counted::Decided(verdict)
    }

    /// The result of hits that do not fit and are not counted.
    pub(super) fn reject(&mut self, run: u32, hits: Hits, now: Time) -> Counted {
        match self {
            Self::Count(_, count) => Counted::Without(*count),
            Self::Window(..) | Self::Bucket(..) | Self::Log(..) => self.apply(run, hits, now),
        }
    }

    /// True if these hits would be admitted; refunds always are.
    pub(super) fn fits(&self, hits: Hits, now: Time) -> bool {
        let Hits::Take(taken) = hits else { return true };
        let look = Hits::Take(0);
        match self {
            Self::Count(limit, count) => fixed_window::count(*count, hits) <= *limit,
            Self::Window(limit, state) => taken <= limit.apply(*state, look, now).1.remaining,
            Self::Bucket(limit, state) => taken <= limit.apply(*state, look, now).1.remaining,
            Self::Log(limit, total, _) => taken == 0 || fixed_window::count(*total, hits) <= limit.limit,
        }
    }
}

/// The second at which the current window began, its hits, and those of the previous one.
fn window(limit: SlidingWindow, bytes: &[u8; 13]) -> State {
    let (start, counts) = bytes.split_at(5);
    limit.beginning(Time::from_seconds(little_endian(start)), little_endian(counts))
}

/// The second and the tick at which the bucket is full; the rest is used by the script only.
fn bucket(limit: Bucket, bytes: &[u8; 19]) -> State {
    let (full, _) = bytes.split_at(12);
    let (second, tick) = full.split_at(7);
    limit.full_at(little_endian(second), little_endian(tick))
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A state of this many bytes; that of an unused key for null.
fn state<const BYTES: usize>(reply: Reply, read: impl FnOnce([u8; BYTES]) -> State) -> Result<State, String> {
    match reply {
        Reply::Nil => Ok(State::default()),
        Reply::Text(text) => text
            .try_into()
            .map(read)
            .map_err(|text: Vec<u8>| Reply::Text(text).unexpected(&format!("a state of {BYTES} bytes"))),
        other => Err(other.unexpected("a state")),
    }
}
