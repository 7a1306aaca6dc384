//! How far this process has followed the overrides in Redis: `follower` advances it, and callers of changes wait for it.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use clock::timer::Timer;
use faults::mutex::lock;
use tokio::sync::{Notify, watch};

use super::history::{Change, History};

#[derive(Default)]
pub struct Progress {
    history: Mutex<History>,
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
    pub(super) async fn reaches(&self, version: &str, patience: Duration, timer: &dyn Timer) -> bool {
        let reached = async {
            loop {
                let changed = self.changed.notified();
                if self.history().has(version) {
                    return;
                }
                changed.await;
            }
        };
        timer.timeout(patience, reached).await.is_some()
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// This change, which follows from the version in force, is in force too.
    pub(super) fn advance(&self, change: Change) {
        self.history().push(change);
        self.changed.notify_waiters();
    }

    /// This version is in force, to which these changes led.
    pub(super) fn adopt(&self, version: &str, path: Vec<Change>) {
        *self.history() = History::of(version, path);
        self.changed.notify_waiters();
    }
}
