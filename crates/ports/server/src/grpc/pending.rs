//! The state of calls that are not answered: a message that arrives in pieces, and streaming calls. `calls` holds it,
//! and `unfinished`, `health_checks`, `reflection` and `streaming` advance it.

use std::{future::Future, pin::Pin, sync::Arc, task::Context, time::Instant};

use budget::{Budget, Share};
use http2::meter::{Work, count};
use tokio::sync::watch;
use tonic::Status;

use super::status::Failure;
use metrics::{RejectReason, Stats};

pub(super) struct Partial {
    pub(super) bytes: Vec<u8>,
    pub(super) share: Share,
    pub(super) granted: bool,
}

impl Partial {
    pub(super) fn new(share: Share) -> Self {
        Self { bytes: Vec::new(), share, granted: false }
    }

    /// Replaces the bytes by the end of them.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        self.bytes = if bytes.is_empty() { Vec::new() } else { bytes };
        self.share.resize(self.bytes.capacity());
    }

    /// Adds data to the bytes, for which at most `whole` bytes of capacity are needed.
    pub(super) fn append(&mut self, data: &[u8], whole: Option<usize>, stats: &Stats) -> Result<(), Failure> {
        let length = self.bytes.len() + data.len();
        if self.bytes.capacity() < length {
            let capacity = length.next_power_of_two().max(64).min(whole.unwrap_or(usize::MAX).max(length));
            if !self.share.resize(capacity) {
                stats.service().refused(RejectReason::InflightBytes).increment();
                let message = "unfinished messages have reached the memory limit (GRPC_MAX_INFLIGHT_BYTES)";
                return Err(Status::resource_exhausted(message).into());
            }
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(data);
        count(Work::Copied, data.len());
        Ok(())
    }
}

/// A stream of questions about the descriptors.
pub(super) struct Reflection {
    /// Messages that are not answered; the last one may be incomplete.
    pub(super) unanswered: Partial,
    /// The arrival of the first of these bytes.
    pub(super) since: Instant,
    pub(super) ended: bool,
}

impl Reflection {
    pub(super) fn new(share: Share, now: Instant) -> Self {
        Self { unanswered: Partial::new(share), since: now, ended: false }
    }

    /// True while no message is pending: nothing is owed to the peer.
    pub(super) fn is_quiet(&self) -> bool {
        self.unanswered.bytes.is_empty() && !self.ended
    }

    /// The arrival of the message that is incomplete, if there is one.
    pub(super) fn since(&self) -> Option<Instant> {
        (!self.unanswered.bytes.is_empty()).then_some(self.since)
    }
}

/// The maximum number of streaming calls on a connection. A client needs one to
/// watch the health and one to read the descriptors, and an Envoy one for each domain whose limits it divides.
pub(super) const MAX_STREAMING: usize = 16;

pub(super) struct Streaming {
    /// The streams; some may have ended.
    pub(super) ids: Vec<u32>,
    pub(super) share: Share,
}

impl Streaming {
    pub(super) fn new(all: &Arc<Budget>) -> Self {
        Self { ids: Vec::new(), share: Share::new(all) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The health of the service, and its next change.
pub(super) struct HealthWatch {
    changes: watch::Receiver<bool>,
    changed: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl HealthWatch {
    pub(super) fn new(changes: &watch::Receiver<bool>) -> Self {
        Self { changes: changes.clone(), changed: None }
    }

    pub(super) fn is_healthy(&mut self) -> bool {
        *self.changes.borrow_and_update()
    }

    /// Arranges for `context` to be woken by the next change.
    pub(super) fn register(&mut self, context: &mut Context<'_>) {
        loop {
            let changed = self.changed.get_or_insert_with(|| {
                let mut changes = self.changes.clone();
                Box::pin(async move {
                    if changes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                })
            });
            if changed.as_mut().poll(context).is_pending() {
                return;
            }
            self.is_healthy();
            self.changed = None;
        }
    }
}
