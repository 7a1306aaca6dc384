//! The five algorithms behind one interface.

use clock::Time;
use limit::{Bucket, FixedWindow, Hits, SlidingLog, SlidingWindow, State, Window, sliding_log::Log};

/// One algorithm with a limit, and its state for one key.
pub(crate) enum Counter {
    Fixed(FixedWindow, State),
    Sliding(SlidingWindow, State),
    Exact(SlidingLog, Log),
    Bucket(Bucket, State),
}

/// The names of the algorithms in rules.
pub(crate) const NAMES: [&str; 5] =
    ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"];

/// A new counter of each algorithm, in the order of [`NAMES`].
pub(crate) fn counters(limit: u64, window: Window) -> [Counter; 5] {
    [
        Counter::Fixed(FixedWindow { limit, period: window.into() }, State::default()),
        Counter::Sliding(SlidingWindow { limit, window }, State::default()),
        Counter::Exact(SlidingLog { limit, window }, Log::default()),
        Counter::Bucket(Bucket::token(limit, window, None), State::default()),
        Counter::Bucket(Bucket::leaky(limit, window, None), State::default()),
    ]
}

impl Counter {
    /// True if a hit at this microsecond is admitted.
    pub(crate) fn admits(&mut self, micros: u64) -> bool {
        let (hit, now) = (Hits::Take(1), Time::from_micros(micros));
        let (state, verdict) = match self {
            Self::Exact(limit, log) => return limit.apply(log, hit, now).admitted,
            // The key contains the window's start, so each window has its own state.
            Self::Fixed(limit, state) => {
                let before = if state.end <= now { State::default() } else { *state };
                let (after, count) = limit.apply(before, hit, now);
                (after, limit.verdict(count, hit, now))
            }
            Self::Sliding(limit, state) => limit.apply(*state, hit, now),
            Self::Bucket(bucket, state) => bucket.apply(*state, hit, now),
        };
        match self {
            Self::Fixed(_, kept) | Self::Sliding(_, kept) | Self::Bucket(_, kept) => *kept = state,
            Self::Exact(..) => {}
        }
        verdict.admitted
    }
}
