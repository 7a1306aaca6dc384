//! The algorithms as one type: [`Kind`] is the name in rules files, [`Algorithm`] is an algorithm with its limit.
//!
//! The rules compiler creates each [`Algorithm`] once, so no request computes ticks. Stores match on the variants,
//! because each keeps different state.

use std::num::NonZeroU64;

use super::{Bucket, FixedWindow, Hits, MAX_LIMIT, Period, SlidingLog, SlidingWindow, Verdict, Window};
use clock::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// Keeps a count under a key per window.
    FixedWindow(FixedWindow),
    /// Keeps two counts in a [`State`](super::State).
    SlidingWindow(SlidingWindow),
    /// Keeps a [`Log`](super::sliding_log::Log).
    SlidingLog(SlidingLog),
    /// Keeps a tick in a [`State`](super::State).
    Bucket(Bucket),
    /// Counts nothing: requests hold a place while they are under way, as in [`holds`](super::holds). At most as many.
    Concurrency(u64),
}

text::named! {
    #[derive(Default)]
    pub enum Kind {
        /// A count per window, aligned to the Unix epoch or by a calendar.
        #[default]
        FixedWindow = "fixed_window",
        /// A window that ends now, estimated from two counts.
        SlidingWindow = "sliding_window",
        /// A window that ends now, exact.
        SlidingLog = "sliding_log",
        /// A bucket that holds a window's requests, or `burst`.
        TokenBucket = "token_bucket",
        /// A bucket that holds one request, or `burst`.
        LeakyBucket = "leaky_bucket",
        /// Requests under way.
        Concurrency = "concurrency",
    }
}

impl Kind {
    /// The algorithm with this name; case is ignored.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// True for buckets. Other algorithms have no burst.
    pub const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The largest limit. A longer log would delay other checks, in memory and in Redis.
    pub const fn most(self) -> u64 {
        match self {
            Self::FixedWindow | Self::Concurrency => MAX_LIMIT,
            Self::SlidingWindow => SlidingWindow::MOST,
            Self::SlidingLog => 100_000,
            Self::TokenBucket | Self::LeakyBucket => Bucket::MOST,
        }
    }

    /// The algorithm with this limit, which is at most [`most`](Self::most). Only buckets use `burst`.
    pub fn at(self, limit: u64, window: Window, burst: Option<NonZeroU64>) -> Algorithm {
        match self {
            Self::FixedWindow => Algorithm::FixedWindow(FixedWindow { limit, period: window.into() }),
            Self::SlidingWindow => Algorithm::SlidingWindow(SlidingWindow { limit, window }),
            Self::SlidingLog => Algorithm::SlidingLog(SlidingLog { limit, window }),
            Self::TokenBucket => Algorithm::Bucket(Bucket::token(limit, window, burst)),
            Self::LeakyBucket => Algorithm::Bucket(Bucket::leaky(limit, window, burst)),
            Self::Concurrency => Algorithm::Concurrency(limit),
        }
    }
}

impl Algorithm {
    pub const fn kind(self) -> Kind {
        match self {
            Self::FixedWindow(_) => Kind::FixedWindow,
            Self::SlidingWindow(_) => Kind::SlidingWindow,
            Self::SlidingLog(_) => Kind::SlidingLog,
            Self::Bucket(bucket) if bucket.leaky => Kind::LeakyBucket,
            Self::Bucket(_) => Kind::TokenBucket,
            Self::Concurrency(_) => Kind::Concurrency,
        }
    }

    /// The hits that an unused counter admits at once.
    pub const fn capacity(self) -> u64 {
        match self {
            Self::FixedWindow(FixedWindow { limit, .. })
            | Self::SlidingWindow(SlidingWindow { limit, .. })
            | Self::SlidingLog(SlidingLog { limit, .. })
            | Self::Concurrency(limit) => limit,
            Self::Bucket(bucket) => bucket.burst(),
        }
    }

    /// The same algorithm with another limit, whose counters are the same; `None` if its state depends on the limit.
    pub fn with_limit(self, limit: u64) -> Option<Self> {
        Some(match self {
            Self::FixedWindow(fixed) => Self::FixedWindow(FixedWindow { limit, ..fixed }),
            Self::SlidingWindow(sliding) => Self::SlidingWindow(SlidingWindow { limit, ..sliding }),
            Self::SlidingLog(log) => Self::SlidingLog(SlidingLog { limit, ..log }),
            Self::Concurrency(_) => Self::Concurrency(limit),
            Self::Bucket(_) => return None,
        })
    }

    /// Identifies the format of its state. A limit can continue with the state of another one with the same tag, and of
    /// two that count the same hits only the smaller one ever rejects.
    pub fn tag(self) -> String {
        match self {
            Self::FixedWindow(FixedWindow { period: Period::Length(window), .. }) => {
                format!("/{}", window.seconds())
            }
            Self::FixedWindow(FixedWindow { period: Period::Calendar(calendar), .. }) => {
                format!("/{}", calendar.tag())
            }
            Self::SlidingWindow(SlidingWindow { window, .. }) => format!("sw/{}", window.seconds()),
            Self::SlidingLog(SlidingLog { window, .. }) => format!("sl/{}", window.seconds()),
            // States are numbers of ticks, so the tick's length is part of the format.
            Self::Bucket(bucket) => format!("b/{}/{}", bucket.ticks_per_second(), bucket.ticks_per_hit()),
            Self::Concurrency(_) => "c".to_owned(),
        }
    }

    /// Microseconds until these hits would be admitted, by a verdict on other hits at the same moment; `None` if they never
    /// fit. A verdict has no hits of a sliding window or log, so of those it is the latest time.
    pub fn wait_after(self, verdict: Verdict, hits: u64) -> Option<u64> {
        let rest = self.capacity().checked_sub(hits)?;
        Some(match self {
            _ if hits <= verdict.remaining => 0,
            Self::Bucket(bucket) => verdict.reset.saturating_sub(bucket.micros_of(rest)).max(1),
            _ => verdict.reset.max(1),
        })
    }

    /// The verdict of an unused counter, or of one that has just been exhausted.
    pub fn assumed(self, spent: bool, hits: Hits, now: Time) -> Verdict {
        let wait = match self {
            Self::FixedWindow(limit) => {
                let count = if spent { limit.limit.saturating_add(1) } else { 0 };
                return limit.verdict(count, hits, now);
            }
            Self::Bucket(bucket) => {
                let missing = if spent { bucket.depth() } else { 0 };
                return bucket.verdict(missing, !spent, hits, now);
            }
            Self::SlidingWindow(SlidingWindow { window, .. })
            | Self::SlidingLog(SlidingLog { window, .. }) => window.micros(),
            // Until a request ends, which nobody knows.
            Self::Concurrency(_) => 1_000_000,
        };
        Verdict {
            admitted: !spent,
            consumed: false,
            count: if spent { self.capacity() } else { 0 },
            remaining: if spent { 0 } else { self.capacity() },
            reset: if spent { wait } else { 0 },
            retry_after: (!spent || hits.taken() <= self.capacity()).then_some(if spent { wait } else { 0 }),
        }
    }
}
