//! The checks of a pipeline and the callers that wait for their outcomes.

use std::{cell::LazyCell, ops::Range, time::Instant};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::indexes::{at, index};
use counters::{Batch, Lowered, StoreError};

/// The outcomes of a caller's checks, in the caller's order.
pub type Answered<O> = Result<SmallVec<[O; 2]>, StoreError>;

/// How long a caller waits for a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Until its own deadline, while the server answers others.
    Until(Instant),
    /// For as long as the server may take.
    Timeout,
    /// For any reply, however late: it says what the server did.
    Unlimited,
}

impl Patience {
    /// How long the reply to what a batch asks is worth waiting for. A give-back must arrive even if its caller has left.
    pub fn of(batch: &Batch) -> Self {
        if batch.gives_back() { Self::Unlimited } else { batch.until.into() }
    }

    /// The caller's own deadline.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::Until(until) => Some(until),
            Self::Timeout | Self::Unlimited => None,
        }
    }
}

impl From<Option<Instant>> for Patience {
    fn from(until: Option<Instant>) -> Self {
        until.map_or(Self::Timeout, Self::Until)
    }
}

/// Checks and their callers. `C` is what a store needs to find a check's outcome among the replies.
pub struct Callers<C, O> {
    checks: Vec<C>,
    waiting: Vec<Caller<O>>,
    /// No caller's deadline is earlier.
    earliest: Option<Instant>,
    /// Dropped with the checks, not with their callers: a late reply still invalidates caches.
    lowered: Vec<Lowered>,
}

struct Caller<O> {
    checks: Range<u32>,
    patience: Patience,
    reply: oneshot::Sender<Answered<O>>,
}

impl<C, O> Default for Callers<C, O> {
    fn default() -> Self {
        Self { checks: Vec::new(), waiting: Vec::new(), earliest: None, lowered: Vec::new() }
    }
}

impl<C, O> Callers<C, O> {
    pub(super) fn checks(&self) -> usize {
        self.checks.len()
    }

    pub fn push(&mut self, check: C) {
        self.checks.push(check);
    }

    /// Adds the caller of all checks from index `first` on.
    pub(super) fn add(
        &mut self,
        first: usize,
        patience: Patience,
        lowered: Option<Lowered>,
    ) -> oneshot::Receiver<Answered<O>> {
        self.lowered.extend(lowered);
        let (reply, receiver) = oneshot::channel();
        self.earliest = [self.earliest, patience.until()].into_iter().flatten().min();
        self.waiting.push(Caller { checks: index(first)..index(self.checks.len()), patience, reply });
        receiver
    }

    /// Answers all callers in order.
    pub fn complete(&mut self, mut outcome: impl FnMut(&C) -> O) {
        for caller in self.waiting.drain(..) {
            let outcomes = caller.checks.map(|check| outcome(at(&self.checks, check))).collect();
            // A caller may have left.
            let _ = caller.reply.send(Ok(outcomes));
        }
    }

    pub fn fail(&mut self, error: &StoreError) {
        self.fail_if(|| error.clone(), |_| true);
    }

    /// Fails the callers for whom a late reply is useless.
    pub(super) fn time_out(&mut self, error: &StoreError) {
        self.fail_if(|| error.clone(), |patience| patience != Patience::Unlimited);
    }

    /// Fails the callers whose own deadlines have passed.
    pub(super) fn expire(&mut self, now: Instant, error: impl FnOnce() -> StoreError) {
        if self.earliest.is_some_and(|earliest| earliest <= now) {
            self.fail_if(error, |patience| patience.until().is_some_and(|until| until <= now));
        }
    }

    /// Fails these callers; returns the number of their checks.
    pub(super) fn fail_if(
        &mut self,
        error: impl FnOnce() -> StoreError,
        is_failed: impl Fn(Patience) -> bool,
    ) -> usize {
        let error = LazyCell::new(error);
        let mut checks = 0;
        for caller in self.waiting.extract_if(.., |caller| is_failed(caller.patience)) {
            checks += caller.checks.len();
            // A caller may have left.
            let _ = caller.reply.send(Err((*error).clone()));
        }
        let deadlines = self.waiting.iter().filter_map(|caller| caller.patience.until());
        self.earliest = deadlines.min();
        checks
    }

    pub(super) fn any(&self, is_meant: impl Fn(Patience) -> bool) -> bool {
        self.waiting.iter().any(|caller| is_meant(caller.patience))
    }

    pub(super) fn earliest(&self) -> Option<Instant> {
        self.earliest
    }

    /// True if nobody waits for its checks any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.waiting.is_empty() && !self.checks.is_empty()
    }

    /// Removes checks and callers, and keeps the memory.
    pub fn clear(&mut self) {
        self.checks.clear();
        self.waiting.clear();
        self.lowered.clear();
        self.earliest = None;
    }
}
