//! A decision that waits for its store. It is brought to its end also if its caller leaves: what the store has counted is
//! known to the statistics, the cache and other replicas.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use faults::panics::{Boundary, caught};
use net::edges::Spawn;

use super::{Limiter, answer::Answer, decision_trace::DecisionTrace, request::RequestError};
use metrics::CallerLeft;

/// Decisions without a caller at a time. Each has checks that a connection to the store bounds too.
const MAX_OWED: usize = 10_000;

/// A decision, and its trace if it has one.
pub type Concluded = (Result<Answer, RequestError>, Option<Box<DecisionTrace>>);

type Decision = Pin<Box<dyn Future<Output = Concluded> + Send>>;

#[must_use = "a decision does nothing unless it is polled"]
pub struct Waiting {
    limiter: Arc<Limiter>,
    /// `None` once it has ended.
    decision: Option<Decision>,
}

/// The decisions whose callers have left.
#[derive(Default)]
pub(super) struct Owed {
    spawn: Option<Arc<dyn Spawn>>,
    open: AtomicUsize,
}

impl Waiting {
    pub(super) fn new(
        limiter: Arc<Limiter>,
        decision: impl Future<Output = Concluded> + Send + 'static,
    ) -> Self {
        Self { limiter, decision: Some(Box::pin(decision)) }
    }
}

impl Future for Waiting {
    type Output = Concluded;

    #[expect(clippy::expect_used, reason = "asserts what every future requires")]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Concluded> {
        // One that panics has ended.
        let mut decision = self.decision.take().expect("it is not polled after its end");
        let concluded = decision.as_mut().poll(context);
        if concluded.is_pending() {
            self.decision = Some(decision);
        }
        concluded
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.limiter.owe(decision);
        }
    }
}

impl Limiter {
    /// The same limiter, which finishes what its callers leave by tasks of the runtimes that they leave.
    pub fn owing(self, spawn: Arc<dyn Spawn>) -> Self {
        Self { owed: Owed { spawn: Some(spawn), ..Owed::default() }, ..self }
    }

    /// Decisions that were left by their callers and wait for the store.
    pub fn owed(&self) -> usize {
        self.owed.open.load(Relaxed)
    }

    fn owe(self: &Arc<Self>, decision: Decision) {
        let Some(here) = self.owed.spawn.as_ref().and_then(|spawn| spawn.here()) else { return };
        let stats = self.stats.service();
        let open = Open::new(self.clone());
        if self.owed() > MAX_OWED {
            stats.callers_left(CallerLeft::Dropped).increment();
            return;
        }
        stats.callers_left(CallerLeft::Finished).increment();
        here(Box::pin(async move {
            let _ = caught(Boundary::GrpcRequest, decision).await;
            drop(open);
        }));
    }
}

/// Counts one of the open decisions.
struct Open(Arc<Limiter>);

impl Open {
    fn new(limiter: Arc<Limiter>) -> Self {
        limiter.owed.open.fetch_add(1, Relaxed);
        Self(limiter)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.owed.open.fetch_sub(1, Relaxed);
    }
}
