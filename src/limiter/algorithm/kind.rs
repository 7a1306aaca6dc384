//! The algorithms behind one face: [`Kind`] is what rules call them, [`Algorithm`] is one at its limit,
//! ready to be asked.
//!
//! Rules make an [`Algorithm`] when they are loaded, so that no request computes a tick; stores take it
//! apart again, because what each keeps differs.

use std::num::NonZeroU32;

use super::{Bucket, FixedWindow, Hits, SlidingLog, SlidingWindow, Verdict, Window};
use crate::clock::Time;

/// An algorithm at its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// Keeps a count under a key of each window.
    FixedWindow(FixedWindow),
    /// Keeps two counts in a [`State`](super::State).
    SlidingWindow(SlidingWindow),
    /// Keeps a [`Log`](super::sliding_log::Log).
    SlidingLog(SlidingLog),
    /// Keeps a tick in a [`State`](super::State).
    Bucket(Bucket),
}

/// The algorithms as rules name them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Kind {
    /// So many in each window, cut from 1970.
    #[default]
    FixedWindow,
    /// So many in a window that ends now, told by two counts.
    SlidingWindow,
    /// So many in a window that ends now, exactly.
    SlidingLog,
    /// A bucket that holds a window's requests, or `burst`.
    TokenBucket,
    /// A bucket that holds one request, or `burst`.
    LeakyBucket,
}

impl Kind {
    /// Every algorithm.
    pub const ALL: [Self; 5] =
        [Self::FixedWindow, Self::SlidingWindow, Self::SlidingLog, Self::TokenBucket, Self::LeakyBucket];

    /// As files write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    /// The algorithm of this name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// True for buckets, which alone have a burst.
    #[must_use]
    pub const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The algorithm at this limit. Only a bucket looks at `burst`.
    #[must_use]
    pub fn at(self, limit: u32, window: Window, burst: Option<NonZeroU32>) -> Algorithm {
        match self {
            Self::FixedWindow => Algorithm::FixedWindow(FixedWindow { limit, window }),
            Self::SlidingWindow => Algorithm::SlidingWindow(SlidingWindow { limit, window }),
            Self::SlidingLog => Algorithm::SlidingLog(SlidingLog { limit, window }),
            Self::TokenBucket => Algorithm::Bucket(Bucket::token(limit, window, burst)),
            Self::LeakyBucket => Algorithm::Bucket(Bucket::leaky(limit, window, burst)),
        }
    }
}

impl Algorithm {
    /// What rules call it.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::FixedWindow(_) => Kind::FixedWindow,
            Self::SlidingWindow(_) => Kind::SlidingWindow,
            Self::SlidingLog(_) => Kind::SlidingLog,
            Self::Bucket(bucket) if bucket.is_leaky() => Kind::LeakyBucket,
            Self::Bucket(_) => Kind::TokenBucket,
        }
    }

    /// How many hits it admits at once where none came before.
    #[must_use]
    pub fn whole(self) -> u32 {
        match self {
            Self::FixedWindow(FixedWindow { limit, .. })
            | Self::SlidingWindow(SlidingWindow { limit, .. })
            | Self::SlidingLog(SlidingLog { limit, .. }) => limit,
            Self::Bucket(bucket) => u32::try_from(bucket.burst()).unwrap_or(u32::MAX),
        }
    }

    /// What tells its state from those of other algorithms, windows and rates. Two that agree in it can
    /// take over each other's state, and of two that see the same hits the smaller one alone refuses.
    #[must_use]
    pub fn tag(self) -> String {
        match self {
            Self::FixedWindow(FixedWindow { window, .. }) => format!("/{}", window.seconds()),
            Self::SlidingWindow(SlidingWindow { window, .. }) => format!("sw/{}", window.seconds()),
            Self::SlidingLog(SlidingLog { window, .. }) => format!("sl/{}", window.seconds()),
            // A tick of another length is another number.
            Self::Bucket(bucket) => format!("b/{}/{}", bucket.ticks_per_second(), bucket.ticks_per_hit()),
        }
    }

    /// What it would say if no hit had come before, or as many as it ever admits had come just now.
    #[must_use]
    pub fn supposed(self, spent: bool, hits: Hits, now: Time) -> Verdict {
        let wait = match self {
            Self::FixedWindow(limit) => {
                let count = if spent { u64::from(limit.limit) + 1 } else { 0 };
                return limit.verdict(count, hits, now);
            }
            Self::Bucket(bucket) => {
                let missing = if spent { bucket.depth() } else { 0 };
                return bucket.verdict(missing, !spent, hits, now);
            }
            Self::SlidingWindow(SlidingWindow { window, .. })
            | Self::SlidingLog(SlidingLog { window, .. }) => window.micros(),
        };
        let ever = hits.taken() <= u64::from(self.whole());
        if spent {
            let retry_after = ever.then_some(wait);
            Verdict { admitted: false, consumed: false, remaining: 0, reset: wait, retry_after }
        } else {
            Verdict {
                admitted: true,
                consumed: false,
                remaining: self.whole(),
                reset: 0,
                retry_after: Some(0),
            }
        }
    }
}
