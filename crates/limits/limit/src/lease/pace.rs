//! The rate at which a key is hit, when a key without a lease becomes hot, and the arithmetic of times and hits.

use super::HOT;
use clock::Time;

/// The maximum duration of a lease in seconds: the first value, or for long windows a part of the window, up to the
/// second value.
pub(super) const LONGEST: [f64; 2] = [0.5, 5.0];

/// Moving averages of this replica's hits and requests per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    hits: f32,
    requests: f32,
    pub at: Time,
    /// Seconds since the last long pause.
    age: f32,
}

impl Pace {
    pub fn add(&mut self, hits: u64, now: Time, duration: f64) {
        let pause = seconds(self.at, now);
        let decay = decay(self.at, now, duration);
        self.hits = single(f64::from(self.hits) * decay + float(hits) / duration);
        self.requests = single(f64::from(self.requests) * decay + 1.0 / duration);
        self.age = if pause > duration { 0.0 } else { single(f64::from(self.age) + pause) };
        // Even if the clock was set back.
        self.at = now;
    }

    pub fn hits(&self, now: Time, duration: f64) -> f64 {
        f64::from(self.hits) * self.weight(now, duration)
    }

    pub fn requests(&self, now: Time, duration: f64) -> f64 {
        f64::from(self.requests) * self.weight(now, duration)
    }

    /// The factor that turns an average into the rate now. Averages begin at 0, so young ones are divided by their age.
    fn weight(&self, now: Time, duration: f64) -> f64 {
        let time = f64::from(self.age).max(LONGEST[0]).min(duration);
        decay(self.at, now, duration) * duration / time
    }
}

/// A key without a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cold {
    pace: Pace,
    hot: u32,
}

impl Cold {
    /// Adds a request. Returns the pace if the key is hot.
    pub fn visit(&mut self, hits: u64, now: Time, duration: f64) -> Option<Pace> {
        self.pace.add(hits, now, duration);
        let is_hot = f64::from(self.pace.requests) * duration >= HOT;
        self.hot = if is_hot { self.hot.saturating_add(1) } else { 0 };
        (self.hot >= 2).then_some(self.pace)
    }
}

/// The part of an average that is left after some time.
fn decay(from: Time, to: Time, duration: f64) -> f64 {
    libm::exp(-seconds(from, to) / duration)
}

/// Seconds from one time to a later one; 0 if it is not later.
pub(crate) fn seconds(from: Time, to: Time) -> f64 {
    float(to.micros().saturating_sub(from.micros())) / 1e6
}

/// The time this many seconds later.
pub(crate) fn after(time: Time, seconds: f64) -> Time {
    Time::from_micros(time.micros().saturating_add(whole(seconds * 1e6)))
}

pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, reason = "an average needs no more precision")]
pub(crate) fn single(number: f64) -> f32 {
    number as f32
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates and rounds down")]
pub(crate) fn whole(number: f64) -> u64 {
    number as u64
}
