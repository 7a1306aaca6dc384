//! The bound on series made from callers' values.
//!
//! `directory` reserves a [`Place`] for each name. The name's counters reserve further series in it, and a dropped place
//! releases all of them. Once a name was refused, names idle for [`IDLE`] are evicted.

use std::{
    borrow::Cow,
    hash::Hasher as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use siphasher::sip::SipHasher13;

use super::names::RuleCounter;
use clock::Time;
use text::beginning;

/// Seconds after which an unused series may be forgotten.
const IDLE: u64 = 3600;

/// Seconds between two searches for idle series. A search visits every name.
const SEARCH_EVERY: u64 = 10;

/// The longest name made from a caller's values, in bytes and without the domain. No dashboard shows more.
const MAX_NAME_BYTES: usize = 200;

#[derive(Debug)]
pub(super) struct Room {
    pub(super) max: usize,
    taken: AtomicUsize,
    whole: Option<Arc<Room>>,
    /// A series was refused since the last search.
    refused: AtomicBool,
    /// The time of the last search for idle series, in seconds since 1970.
    searched: AtomicU64,
}

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Self::within(None, max)
    }

    /// Room for `max` series, which take part of the room `whole` too.
    pub(super) fn part(whole: &Arc<Self>, max: usize) -> Arc<Self> {
        Self::within(Some(whole.clone()), max)
    }

    fn within(whole: Option<Arc<Self>>, max: usize) -> Arc<Self> {
        let (taken, refused, searched) = Default::default();
        Arc::new(Self { max, taken, whole, refused, searched })
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// True if the room is full; then notes that a series was refused.
    pub(super) fn refuses(&self) -> bool {
        let is_full = self.taken() >= self.max || self.whole.as_ref().is_some_and(|whole| whole.refuses());
        if is_full {
            self.refused.store(true, Relaxed);
        }
        is_full
    }

    fn take(&self, series: usize) -> bool {
        let next = |taken: usize| taken.checked_add(series).filter(|next| *next <= self.max);
        let mut taken = self.taken.fetch_update(Relaxed, Relaxed, next).is_ok();
        if taken && self.whole.as_ref().is_some_and(|whole| !whole.take(series)) {
            self.taken.fetch_sub(series, Relaxed);
            taken = false;
        }
        if !taken {
            self.refused.store(true, Relaxed);
        }
        taken
    }

    fn refund(&self, series: usize) {
        self.taken.fetch_sub(series, Relaxed);
        if let Some(whole) = &self.whole {
            whole.refund(series);
        }
    }

    /// True if a series was refused and the last search for idle ones is long enough ago.
    pub(super) fn is_search_due(&self, now: Time) -> bool {
        let is_due = now.seconds().abs_diff(self.searched.load(Relaxed)) >= SEARCH_EVERY;
        let is_due = is_due && self.refused.swap(false, Relaxed);
        if is_due {
            self.searched.store(now.seconds(), Relaxed);
        }
        is_due
    }
}

/// The series of one name: one from the start, more as its counters leave zero.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    /// The counters whose series have room, a bit for each.
    series: AtomicU8,
    /// When a request last used the name, in seconds since 1970.
    touched: AtomicU64,
}

impl Place {
    pub(super) fn take(room: &Arc<Room>, now: Time) -> Option<Self> {
        let touched = AtomicU64::new(now.seconds());
        room.take(1).then(|| Self { room: room.clone(), series: AtomicU8::new(0), touched })
    }

    /// True if the series of this counter have room, which they take the first time.
    pub(super) fn has_series(&self, counter: RuleCounter) -> bool {
        let bit = 1_u8 << counter as u32;
        let mut series = self.series.load(Relaxed);
        while series & bit == 0 {
            // The place itself took room for the first.
            let takes = counter.series() - usize::from(series == 0);
            if takes > 0 && !self.room.take(takes) {
                return false;
            }
            match self.series.compare_exchange(series, series | bit, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(others) => series = others,
            }
            self.room.refund(takes);
        }
        true
    }

    pub(super) fn touch(&self, now: Time) {
        // Most touches are within the same second and do not write to a cache line that other cores read.
        if self.touched.load(Relaxed) != now.seconds() {
            self.touched.store(now.seconds(), Relaxed);
        }
    }

    /// True if no request used the name for [`IDLE`]. A clock that was set back does not keep it.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        now.seconds().abs_diff(self.touched.load(Relaxed)) >= IDLE
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let series = self.series.load(Relaxed);
        let counters = RuleCounter::ALL.into_iter().filter(|counter| series >> *counter as u32 & 1 == 1);
        self.room.refund(counters.map(RuleCounter::series).sum::<usize>().max(1));
    }
}

/// A name of at most [`MAX_NAME_BYTES`]. The end of a longer one is replaced by a hash of the name, which is equal on
/// every replica, so that two long names have two series.
pub(super) fn cut(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_NAME_BYTES {
        return Cow::Borrowed(name);
    }
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    let hash = format!("~{:016x}", hasher.finish());
    Cow::Owned([beginning(name, MAX_NAME_BYTES - hash.len()), &hash].concat())
}
