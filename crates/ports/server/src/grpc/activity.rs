//! The state that a gRPC connection reports to the registry: whether it has sent its preface, and whether a request is
//! open.
//!
//! `worker` makes a [`GrpcActivity`] for each connection. `driver` knows both states itself; the tonic `reference` reports
//! the preface, and holds an [`OpenRequest`] for each request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::connections::Handle;
use metrics::Stats;

/// The time limit for a peer's preface and first SETTINGS.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection's place in the registry and in the counts of open connections, until it is dropped.
pub(super) struct GrpcActivity {
    pub(super) handle: Handle,
    of_worker: Arc<AtomicUsize>,
    stats: Arc<Stats>,
    requests: AtomicUsize,
}

impl GrpcActivity {
    pub(super) fn new(handle: Handle, of_worker: Arc<AtomicUsize>, stats: Arc<Stats>) -> Self {
        of_worker.fetch_add(1, Ordering::Relaxed);
        stats.service().connections_accepted.increment();
        Self { handle, of_worker, stats, requests: AtomicUsize::new(0) }
    }
}

impl Drop for GrpcActivity {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Ordering::Relaxed);
        self.stats.service().connections_closed.increment();
    }
}

/// An open request, until this is dropped.
pub(super) struct OpenRequest(Arc<GrpcActivity>);

impl OpenRequest {
    pub(super) fn new(activity: Arc<GrpcActivity>) -> Self {
        activity.requests.fetch_add(1, Ordering::Relaxed);
        activity.handle.busy();
        Self(activity)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        // Requests of one connection begin and end on one thread, so the last one sees 1.
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.handle.idle(Instant::now());
        }
    }
}
