//! The queue of one connection, and the admission of callers.
//!
//! Checks join pipelines in the order of their callers. While the connection keeps up there is one open pipeline; if the
//! server is slow a new one begins every millisecond, so that late ones can be dropped unsent.

#![expect(clippy::expect_used, reason = "counts of checks in memory; asserts that each is removed once")]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use clock::timer::{Timer, after};
use tokio::sync::oneshot;

use super::{backend::Pipeline, callers::Answered, limit::Bound, part};

/// Maximum number of empty pipelines kept for reuse.
const SPARE: usize = 4;

pub(super) struct Queued<P> {
    pub(super) pipeline: P,
    /// When its first caller was added.
    pub(super) since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// The configured bound on queued checks was reached.
    Queue,
    /// The server has more checks than it answers in time.
    Overloaded,
}

#[derive(Default)]
pub(super) struct Queue<P> {
    /// Oldest first. Callers join the last one.
    pipelines: VecDeque<Queued<P>>,
    /// The last one accepts no more callers.
    sealed: bool,
    pub(super) checks: usize,
    /// Checks sent and not answered yet.
    pub(super) in_flight: usize,
    pub(super) bound: Bound,
    /// Checks rejected since this was last read.
    pub(super) shed: usize,
    spare: Vec<P>,
}

impl<P: Pipeline> Queue<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.pipelines.is_empty()
    }

    /// True if callers wait for room in the window.
    pub(super) fn is_blocked(&self) -> bool {
        !self.is_empty() && self.in_flight >= self.bound.window
    }

    /// When the oldest queued caller was added.
    pub(super) fn since(&self) -> Option<Instant> {
        self.pipelines.front().map(|queued| queued.since)
    }

    /// Admits a caller with these checks that waits until `until`. At most `max` checks may be queued, but one caller is
    /// always admitted.
    pub(super) fn admit(
        &mut self,
        checks: usize,
        until: Option<Instant>,
        max: usize,
        timer: &dyn Timer,
    ) -> Result<(), Full> {
        let outstanding = self.checks + self.in_flight;
        let with_these = outstanding + checks;
        let full = if outstanding == 0 {
            return Ok(());
        } else if self.checks > 0 && self.checks + checks > max {
            Full::Queue
        } else if with_these > self.bound.outstanding || self.is_late(with_these, until, timer) {
            Full::Overloaded
        } else {
            return Ok(());
        };
        self.shed += checks;
        Err(full)
    }

    /// True if this many checks will probably not be answered before `until`.
    fn is_late(&self, checks: usize, until: Option<Instant>, timer: &dyn Timer) -> bool {
        let takes = self.bound.time(checks);
        // The clock is read only when there is a backlog.
        takes > MILLISECOND && until.is_some_and(|until| after(timer.now(), takes) > until)
    }

    /// Adds a caller. Returns its pending reply, and when the first caller of its pipeline was added.
    pub(super) fn add_caller(
        &mut self,
        fill: impl FnOnce(&mut P),
        timer: &dyn Timer,
    ) -> (oneshot::Receiver<Answered<P::CheckResult>>, Instant) {
        let queued = self.last(timer);
        let before = queued.pipeline.checks();
        let reply = queued.pipeline.add_caller(fill);
        let (since, after) = (queued.since, queued.pipeline.checks());
        self.checks += after - before;
        self.sealed = after >= self.bound.pipeline;
        (reply, since)
    }

    pub(super) fn last(&mut self, timer: &dyn Timer) -> &mut Queued<P> {
        if self.sealed || self.pipelines.is_empty() {
            self.sealed = false;
            let pipeline = self.spare.pop().unwrap_or_default();
            self.pipelines.push_back(Queued { pipeline, since: timer.now() });
        }
        self.pipelines.back_mut().expect("one was added where there was none")
    }

    /// Removes the oldest pipeline if it may be sent: at once with nothing in flight, else when it accepts no more
    /// callers and the window has room.
    pub(super) fn take(&mut self, now: Instant) -> Option<Queued<P>> {
        let front = self.pipelines.front()?;
        let checks = front.pipeline.checks();
        if self.in_flight > 0 {
            self.sealed |= self.pipelines.len() == 1 && now >= after(front.since, MILLISECOND);
            let is_sealed = self.sealed || self.pipelines.len() > 1;
            if !is_sealed || self.in_flight >= self.bound.window {
                return None;
            }
        }
        self.in_flight += checks;
        self.pop()
    }

    /// Removes the pipelines whose replies would arrive later than `timeout` after their first caller.
    pub(super) fn take_late(&mut self, now: Instant, timeout: Duration) -> Vec<Queued<P>> {
        let mut late = Vec::new();
        while let Some(front) = self.pipelines.front() {
            let takes = self.bound.time(self.in_flight + front.pipeline.checks());
            if after(now, takes.min(part(timeout, 2))) < after(front.since, timeout) {
                break;
            }
            late.extend(self.pop());
        }
        late
    }

    fn pop(&mut self) -> Option<Queued<P>> {
        let queued = self.pipelines.pop_front()?;
        let left = self.checks.checked_sub(queued.pipeline.checks());
        self.checks = left.expect("the checks of a queued pipeline were counted");
        self.sealed &= !self.pipelines.is_empty();
        Some(queued)
    }

    /// Removes everything; for a connection with nothing in flight.
    pub(super) fn drain(&mut self) -> VecDeque<Queued<P>> {
        (self.checks, self.sealed) = (0, false);
        (self.in_flight, self.bound) = (0, Bound::UNKNOWN);
        std::mem::take(&mut self.pipelines)
    }

    /// Removes a complete pipeline from those in flight, and keeps its memory.
    pub(super) fn complete(&mut self, mut pipeline: P) {
        let left = self.in_flight.checked_sub(pipeline.checks());
        self.in_flight = left.expect("the checks of a sent pipeline were counted");
        if self.spare.len() < SPARE {
            pipeline.clear();
            self.spare.push(pipeline);
        }
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
