//! How much may wait for one connection: as much as its server answers in time, measured while it is busy.
//!
//! The connection reports every pipeline that was answered; callers are held against the [`Bound`] that follows.
//! Plain arithmetic on moments that are passed in.

use std::{cmp, time::Duration};

use smallvec::SmallVec;
use tokio::time::Instant;

/// What may wait takes at most this share of the time that an answer has. The rest is for pauses of the server
/// and of this process.
const SHARE: f64 = 0.6;

/// What is on its way takes at most this share of it.
const WINDOW: f64 = 0.4;

/// Measurements fade within about so many times the time that an answer has, within these bounds in seconds: long
/// enough that a stall, and the haste after it, are one.
const MEMORY: f64 = 5.0;
const MIN_MEMORY: f64 = 0.05;
const MAX_MEMORY: f64 = 5.0;

/// So many checks in that time are a measurement. Fewer were held up by something else than their number.
const ENOUGH: f64 = 16.0;

/// A server that was not busy for so long is measured anew: it may have become faster.
const FORGET: Duration = Duration::from_secs(1);

/// A pipeline of so many checks costs per check what a longer one does.
const LONGEST: usize = 128;

/// Bounds in checks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Bound {
    /// That wait or are on their way, together.
    pub(super) outstanding: usize,
    /// That are on their way. While they are as many, nothing more is written, so that what is late can still be
    /// dropped.
    pub(super) window: usize,
    /// In one pipeline, the last of which may be larger.
    pub(super) pipeline: usize,
    /// Seconds that a check takes, where that is known; else 0.
    pub(super) seconds_each: f64,
}

impl Bound {
    /// While the server was never found busy.
    pub(super) const UNKNOWN: Self =
        Self { outstanding: usize::MAX, window: 2 * LONGEST, pipeline: LONGEST, seconds_each: 0.0 };

    /// What so many checks take; nothing where that is not known.
    #[expect(clippy::cast_precision_loss, reason = "a queue is bounded")]
    pub(super) fn time(&self, checks: usize) -> Duration {
        Duration::from_secs_f64((self.seconds_each * checks as f64).min(60.0))
    }
}

/// Measures how fast a server answers this connection.
pub(super) struct Capacity {
    timeout: Duration,
    /// The first measurements, of which the middle one counts: one may have met a stall, or none of the work.
    first: SmallVec<[Sample; 3]>,
    /// Checks answered, and the seconds that they took, both fading. By Little's law what is outstanding takes
    /// as long as its number divided by the one and multiplied by the other.
    sum: Option<Sample>,
    /// When the last pipeline was answered.
    last: Option<Instant>,
    measured: Option<Instant>,
    /// The pipeline that took least of those that were alone.
    alone: Option<Sample>,
    bound: Bound,
}

#[derive(Clone, Copy)]
struct Sample {
    checks: f64,
    seconds: f64,
}

impl Sample {
    fn seconds_each(self) -> f64 {
        self.seconds / self.checks.max(1.0)
    }
}

impl Capacity {
    pub(super) fn new(timeout: Duration) -> Self {
        let first = SmallVec::new();
        Self { timeout, first, sum: None, last: None, measured: None, alone: None, bound: Bound::UNKNOWN }
    }

    pub(super) fn bound(&self) -> Bound {
        self.bound
    }

    /// So many checks were sent together at `sent` and answered `now`. `has_shed` when callers were refused
    /// since the last pipeline.
    pub(super) fn answered(&mut self, checks: usize, sent: Instant, now: Instant, has_shed: bool) {
        let last = self.last.replace(now);
        // The server takes up a pipeline when it has answered the one before.
        let behind = last.filter(|last| *last > sent);
        let took = now.saturating_duration_since(behind.unwrap_or(sent));
        #[expect(clippy::cast_precision_loss, reason = "a pipeline is small")]
        let mut sample = Sample { checks: checks as f64, seconds: took.as_secs_f64() };
        if behind.is_none() {
            self.note_alone(sample);
            let Some(each) = self.sum.map(Sample::seconds_each).filter(|_| has_shed) else {
                return self.forget(now);
            };
            sample.seconds = (sample.seconds - self.way(each)).max(0.0);
        }
        let before = self.measured.replace(now).unwrap_or(sent);
        self.add(sample, now.saturating_duration_since(before).as_secs_f64());
    }

    /// Notes a pipeline that was alone: its time is mostly the way there and back. The shortest counts, and is
    /// forgotten over a hundred of them.
    fn note_alone(&mut self, sample: Sample) {
        let alone = self.alone.get_or_insert(sample);
        if sample.seconds < alone.seconds {
            *alone = sample;
        } else {
            alone.seconds += (sample.seconds - alone.seconds) / 100.0;
        }
    }

    fn forget(&mut self, now: Instant) {
        if self.measured.is_some_and(|measured| now.saturating_duration_since(measured) > FORGET) {
            *self = Self { last: self.last, alone: self.alone, ..Self::new(self.timeout) };
        }
    }

    /// Adds a measurement, so many seconds after the last.
    fn add(&mut self, mut new: Sample, elapsed: f64) {
        let timeout = self.timeout.as_secs_f64();
        let memory = (timeout * MEMORY).clamp(MIN_MEMORY, MAX_MEMORY);
        let Some(sum) = &mut self.sum else {
            self.first.push(new);
            let seconds: f64 = self.first.iter().map(|sample| sample.seconds).sum();
            if self.first.len() == 3 || seconds > memory {
                self.first.sort_by(|one, other| one.seconds_each().total_cmp(&other.seconds_each()));
                self.sum = self.first.get(self.first.len().saturating_sub(1) / 2).copied();
                self.measure();
            }
            return;
        };
        // A stall says little of what comes after it.
        let expected = sum.seconds_each() * new.checks;
        new.seconds = new.seconds.min(f64::max(4.0 * expected, timeout / 4.0));
        let kept = memory / (memory + elapsed);
        sum.checks = sum.checks * kept + new.checks;
        sum.seconds = sum.seconds * kept + new.seconds;
        self.measure();
    }

    /// The seconds of the way there and back, as far as they are known.
    fn way(&self, each: f64) -> f64 {
        let way = self.alone.map_or(0.0, |alone| alone.seconds - alone.checks * each);
        way.clamp(0.0, self.timeout.as_secs_f64() / 2.0)
    }

    fn measure(&mut self) {
        let Some(sum) = self.sum.filter(|sum| sum.checks >= ENOUGH) else {
            self.bound = Bound::UNKNOWN;
            return;
        };
        let each = sum.seconds_each();
        let timeout = self.timeout.as_secs_f64();
        let pipeline = within(f64::min(timeout / 10.0, 0.005), each).min(LONGEST);
        // Above the time of the way there and back, so that the server never waits for us: what it is measured to
        // answer would shrink with the window, and the window with that.
        let window = f64::max(timeout * WINDOW, 1.5 * self.way(each));
        let outstanding = f64::max(timeout * SHARE, window);
        let window = within(window, each).max(pipeline.saturating_mul(2));
        let outstanding = cmp::max(within(outstanding, each), window);
        self.bound = Bound { outstanding, window, pipeline, seconds_each: each };
    }
}

/// Checks that take so many seconds together; at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast to an integer saturates")]
fn within(seconds: f64, each: f64) -> usize {
    ((seconds / each.max(1e-9)) as usize).max(1)
}

#[cfg(test)]
mod tests;
