//! How often a key is hit, and when a key without a lease becomes hot.

use super::{
    HOT, LONGEST,
    numbers::{float, seconds, single},
};
use crate::clock::Time;

/// How often a key is hit: moving averages of this replica's hits and requests per second.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store::lease) struct Pace {
    hits: f32,
    requests: f32,
    pub(super) at: Time,
    /// For how many seconds requests have come without a long pause.
    age: f32,
}

impl Pace {
    /// Adds a request.
    pub(super) fn add(&mut self, hits: u64, now: Time, duration: f64) {
        let pause = seconds(self.at, now);
        let decay = decay(self.at, now, duration);
        self.hits = single(f64::from(self.hits) * decay + float(hits) / duration);
        self.requests = single(f64::from(self.requests) * decay + 1.0 / duration);
        self.age = if pause > duration { 0.0 } else { single(f64::from(self.age) + pause) };
        // Also if the clock was set back.
        self.at = now;
    }

    /// Hits per second.
    pub(super) fn hits(&self, now: Time, duration: f64) -> f64 {
        f64::from(self.hits) * self.weight(now, duration)
    }

    /// Requests per second.
    pub(super) fn requests(&self, now: Time, duration: f64) -> f64 {
        f64::from(self.requests) * self.weight(now, duration)
    }

    /// What an average is worth now. It began at 0, so at first it counts by the time in which the requests came.
    fn weight(&self, now: Time, duration: f64) -> f64 {
        let time = f64::from(self.age).max(LONGEST[0]).min(duration);
        decay(self.at, now, duration) * duration / time
    }
}

/// A key without a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store::lease) struct Cold {
    pace: Pace,
    /// Requests in a row at which it was hot.
    hot: u32,
}

impl Cold {
    /// Adds a request. Returns the pace if the key is hot.
    pub(in crate::store::lease) fn visit(&mut self, hits: u64, now: Time, duration: f64) -> Option<Pace> {
        self.pace.add(hits, now, duration);
        let is_hot = f64::from(self.pace.requests) * duration >= HOT;
        self.hot = if is_hot { self.hot.saturating_add(1) } else { 0 };
        (self.hot >= 2).then_some(self.pace)
    }
}

/// The part of an average that is left after some time.
fn decay(from: Time, to: Time, duration: f64) -> f64 {
    (-seconds(from, to) / duration).exp()
}
