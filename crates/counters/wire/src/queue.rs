//! The queue of one connection.
//!
//! Checks join pipelines in the order of their callers. While the connection keeps up there is one open pipeline. If the
//! window holds them back they are several, so that those that have waited too long can be dropped unsent.

#![expect(clippy::expect_used, reason = "counts of checks in memory; asserts that each is removed once")]

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use clock::timer::{Timer, after};
use counters::{Lowered, StoreError};
use metrics::FailureReason;
use tokio::sync::oneshot;

use super::{
    backend::Pipeline,
    callers::{Answered, Patience},
    window::Window,
};

/// Maximum number of empty pipelines kept for reuse.
const SPARE: usize = 4;

/// How long a pipeline stays open for more callers while others are in flight.
const OPEN: Duration = Duration::from_millis(1);

pub(super) struct Queued<P> {
    pub(super) pipeline: P,
    pub(super) waits: Waits,
}

/// For whom a pipeline waits: first for this worker, then for the server.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    /// When its first caller was added.
    pub(super) since: Instant,
    /// When it was sent, or the window began to hold it back.
    pub(super) for_server: Option<Instant>,
}

impl Waits {
    /// How long it has waited for the server.
    pub(super) fn for_server(&self, now: Instant) -> Duration {
        self.for_server.map_or(Duration::ZERO, |from| now.saturating_duration_since(from))
    }

    /// True if most of its time was this worker's.
    fn is_worker_late(&self, now: Instant) -> bool {
        self.for_server(now) < now.saturating_duration_since(self.since) / 2
    }

    /// Why a deadline has passed: that of the caller, or that of all redirections.
    pub(super) fn error(&self, store: &str, now: Instant) -> StoreError {
        let (reason, message) = if self.is_worker_late(now) {
            (FailureReason::WorkerLate, "the deadline passed while this process was short of CPU")
        } else {
            (FailureReason::Timeout, "no reply before the deadline")
        };
        StoreError::new(reason, format!("{store}: {message}"))
    }
}

pub(super) struct Queue<P> {
    /// Oldest first. Callers join the last one.
    pipelines: VecDeque<Queued<P>>,
    /// The last one accepts no more callers.
    sealed: bool,
    pub(super) checks: usize,
    /// Checks sent and not answered yet.
    pub(super) in_flight: usize,
    last_sent: Option<Instant>,
    pub(super) window: Window,
    spare: Vec<P>,
}

impl<P: Pipeline> Queue<P> {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            pipelines: VecDeque::new(),
            sealed: false,
            checks: 0,
            in_flight: 0,
            last_sent: None,
            window: Window::new(timeout),
            spare: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pipelines.is_empty()
    }

    /// What the oldest queued pipeline waits for.
    pub(super) fn waits(&self) -> Option<Waits> {
        self.pipelines.front().map(|queued| queued.waits)
    }

    /// True if at most `max` checks are queued with these. One caller is always admitted.
    pub(super) fn admits(&self, checks: usize, max: usize) -> bool {
        self.checks == 0 || self.checks.saturating_add(checks) <= max
    }

    /// Adds a caller; returns its pending reply.
    pub(super) fn add_caller(
        &mut self,
        patience: Patience,
        lowered: Option<Lowered>,
        fill: impl FnOnce(&mut P),
        timer: &dyn Timer,
    ) -> oneshot::Receiver<Answered<P::CheckResult>> {
        let pipeline = &mut self.last(timer).pipeline;
        let before = pipeline.checks();
        let reply = pipeline.add_caller(patience, lowered, fill);
        let after = pipeline.checks();
        self.checks += after - before;
        self.sealed = after >= self.window.pipeline();
        reply
    }

    pub(super) fn last(&mut self, timer: &dyn Timer) -> &mut Queued<P> {
        if self.sealed || self.pipelines.is_empty() {
            self.sealed = false;
            let pipeline = self.spare.pop().unwrap_or_default();
            let waits = Waits { since: timer.now(), for_server: None };
            self.pipelines.push_back(Queued { pipeline, waits });
        }
        self.pipelines.back_mut().expect("one was added where there was none")
    }

    /// Removes the oldest pipeline if it may be sent: if the window has room and, with others in flight, if it accepts no
    /// more callers.
    pub(super) fn take(&mut self, now: Instant) -> Option<Queued<P>> {
        let checks = self.pipelines.front()?.pipeline.checks();
        let is_only = self.pipelines.len() == 1;
        self.sealed |= is_only && self.last_sent.is_some_and(|sent| now >= after(sent, OPEN));
        if !self.window.admits(self.in_flight, checks) {
            // Those before one that is held are held for longer.
            let fresh = |queued: &&mut Queued<P>| queued.waits.for_server.is_none();
            let newest = self.pipelines.iter_mut().rev().take_while(fresh);
            newest.for_each(|queued| queued.waits.for_server = Some(now));
            return None;
        }
        if self.in_flight > 0 && is_only && !self.sealed {
            return None;
        }
        self.in_flight += checks;
        self.last_sent = Some(now);
        self.pop()
    }

    /// Fails the callers that the window has held back for too long; returns the number of their checks. With them go those of
    /// the same pipeline that soon would: it is sent whole, and the server would count for callers that have left.
    pub(super) fn reject_held(&mut self, now: Instant, error: impl Fn() -> StoreError) -> usize {
        let mut rejected = 0;
        for Queued { pipeline, waits } in &mut self.pipelines {
            let Some(held) = waits.for_server.filter(|held| *held < now) else { break };
            let has_waited =
                |until, eighths: u32| now >= after(held, self.window.longest_hold(held, until) / 8 * eighths);
            let may_be_due = has_waited(pipeline.callers().earliest(), 8) || has_waited(None, 8);
            if may_be_due && pipeline.callers().any(|patience| has_waited(patience.until(), 8)) {
                let is_rejected = |patience: Patience| has_waited(patience.until(), 7);
                rejected += pipeline.callers_mut().fail_if(&error, is_rejected);
            }
        }
        self.drop_abandoned();
        rejected
    }

    /// Fails the callers whose own deadlines have passed; returns the number of checks that need not be sent.
    pub(super) fn expire(&mut self, store: &str, now: Instant) -> usize {
        for Queued { pipeline, waits } in &mut self.pipelines {
            pipeline.callers_mut().expire(now, || waits.error(store, now));
        }
        self.drop_abandoned()
    }

    /// Removes the oldest pipelines if nobody waits for them any more; returns the number of their checks.
    fn drop_abandoned(&mut self) -> usize {
        let before = self.checks;
        while self.pipelines.front().is_some_and(|queued| queued.pipeline.callers().is_abandoned()) {
            self.pop();
        }
        before - self.checks
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
        (self.checks, self.sealed, self.in_flight) = (0, false, 0);
        mem::take(&mut self.pipelines)
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

#[cfg(test)]
mod tests;
