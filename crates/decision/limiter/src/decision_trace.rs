//! The trace of a decision, for span attributes. Only traced requests have one.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Instant};

use counters::{StoreError, StoreFuture};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct DecisionTrace {
    /// The full key of each descriptor's rule, in the request's order; `None` without a rule, or with the request's own limit.
    pub rules: Vec<Option<Arc<str>>>,
    /// The wait for the store, if it did not answer at once.
    pub wait: Option<Wait>,
    /// The policy that decided because the store failed, and the reason of the failure.
    pub failure: Option<(&'static str, &'static str)>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    pub times: [Instant; 2],
    pub checks: usize,
    pub error: Option<Arc<str>>,
}

/// Waits for a store, and adds the wait to the trace.
pub(super) async fn wait(
    trace: Option<&mut DecisionTrace>,
    mut applied: StoreFuture<'_>,
    checks: usize,
) -> Result<(), StoreError> {
    let Some(trace) = trace else { return applied.await };
    let start = Instant::now();
    // A failure without a wait has no span.
    let first = poll_fn(|context| Poll::Ready(applied.as_mut().poll(context))).await;
    if let Poll::Ready(result) = first {
        return result;
    }
    let result = applied.await;
    let error = result.as_ref().err().map(|error| error.message.clone());
    trace.wait = Some(Wait { times: [start, Instant::now()], checks, error });
    result
}
