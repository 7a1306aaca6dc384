//! How far this process has followed the overrides in Redis: `follower` advances it, and callers of changes wait for it.

use std::{sync::Mutex, time::Duration};

use clock::timer::Timer;
use faults::mutex::lock;
use tokio::sync::{Notify, watch};

use super::versions::Versions;

#[derive(Default)]
pub struct Progress {
    versions: Mutex<Versions>,
    /// Wakes in the order of waiting, unlike a `watch` channel.
    changed: Notify,
    /// The identifiers of overrides that have expired here and may still be in Redis, and the seconds of their ends.
    pub(super) expired: Mutex<Vec<(String, u32)>>,
    /// True once the overrides were read, or Redis was unreachable.
    settled: watch::Sender<bool>,
}

impl Progress {
    /// Waits until the overrides were read, or Redis was unreachable. Before that, a service does not apply overrides, and
    /// allows clients that one of them blocks.
    pub async fn settled(&self) {
        // The sender is a field of `self`, so it exists.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    pub(super) fn settle(&self) {
        self.settled.send_replace(true);
    }

    /// Waits until a version or a later one is in force in this process, at most this long. Returns false if it is not.
    pub(super) async fn reaches(&self, version: u64, patience: Duration, timer: &dyn Timer) -> bool {
        let reached = async {
            loop {
                let changed = self.changed.notified();
                if self.at() >= version {
                    return;
                }
                changed.await;
            }
        };
        timer.timeout(patience, reached).await.is_some()
    }

    /// The version in force in this process.
    pub(super) fn at(&self) -> u64 {
        lock(&self.versions).at
    }

    pub(super) fn is_at(&self, version: u64) -> bool {
        lock(&self.versions).is_of(version)
    }

    pub(super) fn versions(&self) -> Versions {
        lock(&self.versions).clone()
    }

    /// A change follows from the version in force, and is in force too.
    pub(super) fn advance(&self, to: u64, ids: Vec<String>) {
        lock(&self.versions).advance(to, ids);
        self.changed.notify_waiters();
    }

    pub(super) fn adopt(&self, versions: Versions) {
        *lock(&self.versions) = versions;
        self.changed.notify_waiters();
    }
}
