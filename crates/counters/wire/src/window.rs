//! How many checks may be in flight on one connection: as many as there are, until the server is known to be slow.
//!
//! A worker that is late must not take itself for a slow server. So nothing is measured by when replies are *read*: at a
//! tick the connection notes the time, polls the sockets, and reads what has arrived. What is missing then had not
//! arrived at the noted time, which is all that [`Window::look`] is told.
//!
//! The shares of the timeout below leave the round trip aside ([`Window::within`]), so that a far server is not slow. They
//! were chosen by simulating late workers, and slow, stalling and far servers.

use std::{
    cmp,
    time::{Duration, Instant},
};

/// The checks in flight while the server is not known to be slow: 100 ms away, it answers 650,000 a second.
const OPEN: usize = 1 << 16;

/// The largest pipeline: longer ones are not cheaper per check.
const MAX_PIPELINE: usize = 128;

/// Pipelines that fill the window, so that a far server always has one to work on.
const PIPELINES: usize = 8;

/// Sixteenths of the timeout. A backlog at three times the server's rate grows by 2 ms a millisecond: if it is noticed at
/// `SLOW`, what was sent meanwhile is still answered in time.
const SLOW: u32 = 6;

/// A server that was slow gets as many checks as it answers in half of that.
const REDUCED: u32 = 3;

/// Replies within this time have waited for few others, so the window may grow.
const PROMPT: u32 = 2;

/// The window holds checks back for at most this part of the time that their caller gives. What is sent after a quarter is
/// answered well before the caller leaves, also by a server that was slow a moment ago.
const HELD: u32 = 4;

pub(super) struct Window {
    timeout: Duration,
    size: usize,
    /// The shortest time of a pipeline.
    trip: Option<Duration>,
    /// When a reply was last known to be missing.
    looked: Option<Instant>,
    reduced: Option<Instant>,
    is_full: bool,
    /// How long nothing was held back, as far as replies show.
    calm: Duration,
    answered: Option<Instant>,
}

impl Window {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            size: OPEN,
            trip: None,
            looked: None,
            reduced: None,
            is_full: false,
            calm: Duration::ZERO,
            answered: None,
        }
    }

    /// Checks in flight.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Checks in one pipeline; the last caller's may exceed it. The first of all shows the round trip: with many checks it
    /// would show how long a slow server takes for them.
    pub(super) fn pipeline(&self) -> usize {
        match self.trip {
            Some(_) => (self.size / PIPELINES).clamp(1, MAX_PIPELINE),
            None => 1,
        }
    }

    /// True if these checks may join those in flight.
    pub(super) fn admits(&mut self, in_flight: usize, checks: usize) -> bool {
        self.is_full = in_flight > 0 && in_flight.saturating_add(checks) > self.size;
        if self.is_full {
            self.calm = Duration::ZERO;
        }
        !self.is_full
    }

    /// How long checks may be held back from `held` on, whose callers wait until `until`; by default, for the timeout.
    pub(super) fn longest_hold(&self, held: Instant, until: Option<Instant>) -> Duration {
        until.map_or(self.timeout, |until| until.saturating_duration_since(held)) / HELD
    }

    /// The oldest pipeline in flight, sent at `sent`, had not been answered at `looked`.
    pub(super) fn look(&mut self, looked: Instant, sent: Instant, in_flight: usize) {
        self.looked = Some(looked);
        let is_known = self.reduced.is_some_and(|reduced| sent <= reduced);
        let slow = self.within(SLOW);
        if is_known || looked.saturating_duration_since(sent) <= slow {
            return;
        }
        let share = self.within(REDUCED).as_secs_f64() / slow.as_secs_f64();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a number below 2^17"
        )]
        let part = (in_flight as f64 * share) as usize;
        self.size = cmp::max(part, 1);
        (self.reduced, self.calm) = (Some(looked), Duration::ZERO);
    }

    /// A pipeline sent at `sent` was answered; `was_alone` if nothing was in flight before it.
    pub(super) fn answered(&mut self, checks: usize, sent: Instant, now: Instant, was_alone: bool) {
        let took = now.saturating_duration_since(sent);
        self.trip = match self.trip {
            Some(trip) if took < trip => Some(took),
            // Rises slowly: of a hundred lone pipelines most wait for nothing but the network.
            Some(trip) if was_alone => Some(trip + took.saturating_sub(trip) / 100),
            None => Some(took),
            known => known,
        };
        let missing = self.looked.map_or(Duration::ZERO, |looked| looked.saturating_duration_since(sent));
        let is_newer = self.reduced.is_none_or(|reduced| sent > reduced);
        if self.is_full && is_newer && missing <= self.within(PROMPT) {
            self.size = self.size.saturating_add(checks).min(OPEN);
        }
        // A stall among few checks must not delay the next burst. A pause counts by half of the timeout: it may be this
        // worker's, and many callers wait at its end.
        let pause =
            self.answered.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.calm += cmp::min(pause, self.timeout / 2);
        if self.calm >= self.timeout {
            self.size = OPEN;
        }
    }

    /// The time of a reply: the round trip, and these sixteenths of the rest.
    fn within(&self, sixteenths: u32) -> Duration {
        self.trip.unwrap_or_default() + self.rest() * sixteenths / 16
    }

    /// The timeout without the round trip; a quarter at least, also if the server is too far away.
    fn rest(&self) -> Duration {
        cmp::max(self.timeout.saturating_sub(self.trip.unwrap_or_default()), self.timeout / 4)
    }
}

#[cfg(test)]
mod tests;
