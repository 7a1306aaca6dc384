//! The checks of a pipeline and the callers that wait for their outcomes.

use std::ops::Range;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::indexes::{at, index};
use counters::StoreError;

/// The outcomes of a caller's checks, in the caller's order.
pub type Answered<O> = Result<SmallVec<[O; 2]>, StoreError>;

/// Checks and their callers. `C` is what a store needs to find a check's outcome among the replies.
pub struct Callers<C, O> {
    checks: Vec<C>,
    callers: Vec<Caller<O>>,
}

struct Caller<O> {
    checks: Range<u32>,
    reply: oneshot::Sender<Answered<O>>,
}

impl<C, O> Default for Callers<C, O> {
    fn default() -> Self {
        Self { checks: Vec::new(), callers: Vec::new() }
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
    pub(super) fn add(&mut self, first: usize) -> oneshot::Receiver<Answered<O>> {
        let (reply, receiver) = oneshot::channel();
        self.callers.push(Caller { checks: index(first)..index(self.checks.len()), reply });
        receiver
    }

    /// Answers all callers in order.
    pub fn complete(&mut self, mut outcome: impl FnMut(&C) -> O) {
        for caller in self.callers.drain(..) {
            let outcomes = caller.checks.map(|check| outcome(at(&self.checks, check))).collect();
            // A caller may have timed out.
            let _ = caller.reply.send(Ok(outcomes));
        }
    }

    /// Fails all callers except those for whose first check `keep` is true.
    pub fn fail(&mut self, error: &StoreError, keep: impl Fn(&C) -> bool) {
        let checks = &self.checks;
        let keep = |caller: &Caller<O>| checks.get(caller.checks.start as usize).is_some_and(&keep);
        for caller in self.callers.extract_if(.., |caller| !keep(caller)) {
            let _ = caller.reply.send(Err(error.clone()));
        }
    }

    /// Removes checks and callers, and keeps the memory.
    pub fn clear(&mut self) {
        self.checks.clear();
        self.callers.clear();
    }
}
