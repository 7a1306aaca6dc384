//! A decision that waits for its store. It runs to completion even if its caller disconnects: the store has counted its
//! hits, so the statistics, the caches and what the request settles must follow.

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

/// Maximum number of decisions without a caller, about 5 KB each.
const MAX_OWED: usize = 10_000;

/// The outcome of a decision that waited.
pub struct Concluded {
    pub decided: Result<Answer, RequestError>,
    /// Only traced requests have one.
    pub trace: Option<Box<DecisionTrace>>,
}

type Decision = Pin<Box<dyn Future<Output = Concluded> + Send>>;

#[must_use = "a decision does nothing unless it is polled"]
pub struct Waiting {
    limiter: Arc<Limiter>,
    /// `None` once it has ended.
    decision: Option<Decision>,
}

/// The decisions whose callers have disconnected.
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
        // A decision that panics must not be polled again, so it is put back only if it is pending.
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
    /// The same limiter, which completes abandoned decisions in a task on the runtime of their connection.
    pub fn owing(self, spawn: Arc<dyn Spawn>) -> Self {
        Self { owed: Owed { spawn: Some(spawn), ..Owed::default() }, ..self }
    }

    /// The number of abandoned decisions that still wait for the store.
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

/// Counts an abandoned decision until it is dropped.
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
