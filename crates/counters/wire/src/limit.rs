//! The adaptive limit on one connection's outstanding checks: as many as its server answers in time, measured while it
//! is busy.
//!
//! The connection records every complete pipeline; the resulting [`Bound`] admits callers.

use std::{
    cmp,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

/// Outstanding checks take at most this share of the timeout. The rest is for pauses of the server and of this
/// process.
const OUTSTANDING_SHARE: f64 = 0.6;

/// Checks in flight take at most this share of the timeout.
const WINDOW_SHARE: f64 = 0.4;

/// Measurements decay within about this many timeouts, between these bounds in seconds: long enough to average a stall
/// with the burst after it.
const MEMORY: f64 = 5.0;
const MIN_MEMORY: f64 = 0.05;
const MAX_MEMORY: f64 = 5.0;

/// Minimum number of checks in that time for a measurement. Fewer do not delay each other.
const MIN_CHECKS: f64 = 16.0;

/// A server that was not busy for this long is measured again from the start: it may have become faster.
const FORGET: Duration = Duration::from_secs(1);

/// Replies that took no longer than this many lone ones waited for no other check: networks jitter.
const UNHURRIED: f64 = 3.0;

/// The largest pipeline: longer ones are not cheaper per check.
const MAX_PIPELINE: usize = 128;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Bound {
    pub(super) outstanding: usize,
    /// Checks in flight. At the bound nothing more is written, so that late checks can still be dropped.
    pub(super) window: usize,
    /// Checks in one pipeline; the last caller's may exceed it.
    pub(super) pipeline: usize,
    /// Seconds per check; 0 if unknown.
    pub(super) seconds_each: f64,
}

impl Default for Bound {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl Bound {
    /// The bounds while the server has not been busy.
    pub(super) const UNKNOWN: Self =
        Self { outstanding: usize::MAX, window: 2 * MAX_PIPELINE, pipeline: MAX_PIPELINE, seconds_each: 0.0 };

    /// The time that this many checks take; 0 if unknown.
    #[expect(clippy::cast_precision_loss, reason = "a queue is bounded")]
    pub(super) fn time(&self, checks: usize) -> Duration {
        Duration::from_secs_f64((self.seconds_each * checks as f64).min(60.0))
    }
}

/// Measures how fast a server answers on this connection.
pub(super) struct Capacity {
    timeout: Duration,
    /// The first measurements. Their median counts: one may include a stall, another almost no work.
    first: SmallVec<[Sample; 3]>,
    /// Checks answered and their seconds, both decaying. By Little's law, outstanding checks take their number times
    /// seconds per check.
    sum: Option<Sample>,
    /// When the last pipeline completed.
    last: Option<Instant>,
    measured: Option<Instant>,
    /// The fastest pipeline that was alone in flight.
    alone: Option<Sample>,
    pub(super) bound: Bound,
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

    /// Records a pipeline that was sent at `sent` and completed `now`. `is_pressed` if callers were rejected since the
    /// last one, or wait for room in the window.
    pub(super) fn record(&mut self, checks: usize, sent: Instant, now: Instant, is_pressed: bool) {
        let last = self.last.replace(now);
        // The server starts on a pipeline when it has finished the one before.
        let behind = last.filter(|last| *last > sent);
        let took = now.duration_since(behind.unwrap_or(sent));
        #[expect(clippy::cast_precision_loss, reason = "a pipeline is small")]
        let mut sample = Sample { checks: checks as f64, seconds: took.as_secs_f64() };
        if behind.is_none() {
            self.record_alone(sample);
        }
        let in_flight = now.duration_since(sent).as_secs_f64();
        let unhurried = self.alone.map_or(0.0, |alone| UNHURRIED * alone.seconds);
        let is_busy = is_pressed || behind.is_some() && in_flight > unhurried;
        if !is_busy || behind.is_none() && self.sum.is_none() {
            // The time between two replies is that between two callers.
            return self.forget(now);
        }
        // A server that is not busy answers within a round trip, however long after the last reply that is.
        let each = self.sum.map_or(0.0, Sample::seconds_each);
        sample.seconds = sample.seconds.min((in_flight - self.round_trip(each)).max(0.0));
        let before = self.measured.replace(now).unwrap_or(sent);
        self.add(sample, now.duration_since(before).as_secs_f64());
    }

    /// Records a pipeline that was alone in flight: its time is mostly the round trip. The fastest counts, and decays
    /// over a hundred of them.
    fn record_alone(&mut self, sample: Sample) {
        let alone = self.alone.get_or_insert(sample);
        if sample.seconds < alone.seconds {
            *alone = sample;
        } else {
            alone.seconds += (sample.seconds - alone.seconds) / 100.0;
        }
    }

    fn forget(&mut self, now: Instant) {
        if self.measured.is_some_and(|measured| now.duration_since(measured) > FORGET) {
            *self = Self { last: self.last, alone: self.alone, ..Self::new(self.timeout) };
        }
    }

    /// Adds a measurement, `elapsed` seconds after the last.
    fn add(&mut self, mut new: Sample, elapsed: f64) {
        let timeout = self.timeout.as_secs_f64();
        let memory = (timeout * MEMORY).clamp(MIN_MEMORY, MAX_MEMORY);
        let Some(sum) = &mut self.sum else {
            self.first.push(new);
            let seconds: f64 = self.first.iter().map(|sample| sample.seconds).sum();
            if self.first.len() == 3 || seconds > memory {
                self.first.sort_by(|a, b| a.seconds_each().total_cmp(&b.seconds_each()));
                let middle = self.first.len().checked_sub(1).map(|last| last / 2);
                self.sum = middle.and_then(|middle| self.first.get(middle)).copied();
                self.measure();
            }
            return;
        };
        // A stall does not predict the time after it.
        let expected = sum.seconds_each() * new.checks;
        new.seconds = new.seconds.min(f64::max(4.0 * expected, timeout / 4.0));
        let decay = memory / (memory + elapsed);
        sum.checks = sum.checks * decay + new.checks;
        sum.seconds = sum.seconds * decay + new.seconds;
        self.measure();
    }

    /// The seconds of a round trip, as far as known.
    fn round_trip(&self, each: f64) -> f64 {
        let round_trip = self.alone.map_or(0.0, |alone| alone.seconds - alone.checks * each);
        round_trip.clamp(0.0, self.timeout.as_secs_f64() / 2.0)
    }

    fn measure(&mut self) {
        let Some(sum) = self.sum.filter(|sum| sum.checks >= MIN_CHECKS) else {
            self.bound = Bound::UNKNOWN;
            return;
        };
        let each = sum.seconds_each();
        let timeout = self.timeout.as_secs_f64();
        let pipeline = checks_within(f64::min(timeout / 10.0, 0.005), each).min(MAX_PIPELINE);
        // Above the round trip, so that the server never waits for us: otherwise the measured rate would shrink with
        // the window, and the window with the rate.
        let window = f64::max(timeout * WINDOW_SHARE, 1.5 * self.round_trip(each));
        let outstanding = f64::max(timeout * OUTSTANDING_SHARE, window);
        let window = checks_within(window, each).max(2 * pipeline);
        let outstanding = cmp::max(checks_within(outstanding, each), window);
        self.bound = Bound { outstanding, window, pipeline, seconds_each: each };
    }
}

/// The number of checks that fit into these seconds; at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast to an integer saturates")]
fn checks_within(seconds: f64, each: f64) -> usize {
    ((seconds / each.max(1e-9)) as usize).max(1)
}

#[cfg(test)]
mod tests;
