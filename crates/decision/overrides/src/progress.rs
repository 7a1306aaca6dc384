//! How far this process has followed the overrides in Redis: `follower` advances it, and callers of changes wait for it.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use clock::{Time, timer::Timer};
use faults::mutex::lock;
use tokio::sync::{Notify, watch};

use super::versions::Versions;

#[derive(Default)]
pub struct Progress {
    /// Held while overrides change with their versions, so that a change that is owed is neither replaced by an earlier one
    /// from Redis nor left out of the versions.
    followed: Mutex<Followed>,
    /// Wakes in the order of waiting, unlike a `watch` channel.
    changed: Notify,
    /// The identifiers of overrides that have expired here and may still be in Redis, and the seconds of their ends.
    pub(super) expired: Mutex<Vec<(String, u32)>>,
    /// True once the overrides were read, or Redis was unreachable.
    settled: watch::Sender<bool>,
}

#[derive(Default)]
struct Followed {
    versions: Versions,
    /// The identifiers of overrides that changed here while Redis was away.
    owed: BTreeSet<String>,
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
        lock(&self.followed).versions.at
    }

    pub(super) fn is_at(&self, version: u64) -> bool {
        lock(&self.followed).versions.is_of(version)
    }

    pub(super) fn versions(&self) -> Versions {
        lock(&self.followed).versions.clone()
    }

    /// The number of changes that Redis lacks because it was away.
    pub(super) fn owed(&self) -> usize {
        lock(&self.followed).owed.len()
    }

    /// Puts a change in force here that Redis lacks, since it is away. The follower writes it back. False if too many are owed.
    pub(super) fn owe(
        &self,
        now: Time,
        id: &str,
        change: impl FnOnce() -> Result<(), String>,
    ) -> Result<bool, String> {
        let mut followed = lock(&self.followed);
        let mut versions = followed.versions.clone();
        if !versions.advance_alone(now.micros(), id) {
            return Ok(false);
        }
        change()?;
        followed.versions = versions;
        followed.owed.insert(id.to_owned());
        Ok(true)
    }

    /// Puts a change in force that follows from the version `before`. False if that is not the version in force.
    pub(super) fn advance(
        &self,
        before: u64,
        to: u64,
        ids: Vec<String>,
        change: impl FnOnce() -> Result<(), String>,
    ) -> Result<bool, String> {
        self.follow(|versions| versions.is_of(before), change, |versions| versions.advance(to, ids))
    }

    /// Puts overrides in force with their versions, which were merged when the version in force was `own`. False if it is
    /// another one now.
    pub(super) fn adopt(
        &self,
        own: u64,
        merged: Versions,
        change: impl FnOnce() -> Result<(), String>,
    ) -> Result<bool, String> {
        self.follow(|versions| versions.at == own, change, |versions| *versions = merged)
    }

    fn follow(
        &self,
        is_expected: impl FnOnce(&Versions) -> bool,
        change: impl FnOnce() -> Result<(), String>,
        advance: impl FnOnce(&mut Versions),
    ) -> Result<bool, String> {
        let mut followed = lock(&self.followed);
        if !is_expected(&followed.versions) {
            return Ok(false);
        }
        change()?;
        advance(&mut followed.versions);
        if !followed.versions.is_ahead() {
            followed.owed.clear();
        }
        drop(followed);
        self.changed.notify_waiters();
        Ok(true)
    }
}
