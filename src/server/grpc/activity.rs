//! What a gRPC connection reports to the registry: whether it has sent its preface, and whether a request is under
//! way.
//!
//! `worker` makes an [`Activity`] for each connection. `driver` knows both by itself; the tonic `reference` reports the
//! preface, and holds an [`UnderWay`] for each request.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::OpenConnection;
use crate::{server::connections::Handle, telemetry::metrics::ConnectionClosed};

/// How long a peer may take to send its preface and its first SETTINGS.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a connection reports to the registry: whether any request is under way.
pub(super) struct Activity {
    open: OpenConnection,
    requests: AtomicUsize,
}

impl Activity {
    pub(super) fn new(open: OpenConnection) -> Self {
        Self { open, requests: AtomicUsize::new(0) }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.open.handle
    }

    /// Completes, and is counted, when no preface came in time.
    pub(super) async fn preface_timeout(&self) {
        sleep(PREFACE_TIMEOUT).await;
        if !self.handle().is_silent() {
            future::pending::<()>().await;
        }
        self.handle().count(ConnectionClosed::PrefaceTimeout);
    }
}

/// A request that is under way, until this is dropped.
pub(super) struct UnderWay(Arc<Activity>);

impl UnderWay {
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Ordering::Relaxed);
        activity.handle().busy();
        Self(activity)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // The last of them: requests of one connection begin and end on one thread.
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.handle().idle(Instant::now());
        }
    }
}
