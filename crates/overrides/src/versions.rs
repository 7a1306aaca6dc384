//! The versions of the overrides in Redis that this process has seen, which `shared` follows and callers of changes wait for.

use std::{collections::VecDeque, time::Duration};

use super::history::{Change, History};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// The most versions that a caller can still wait for.
const RECENT: usize = 256;

/// The time for a message that fits, before the whole hash is read: of a million overrides it takes seconds.
const GRACE: Duration = Duration::from_millis(100);

/// State that the follower and the callers of changes share.
#[derive(Default)]
pub struct State {
    versions: watch::Sender<Versions>,
    /// True once the overrides were read, or Redis was unreachable.
    settled: watch::Sender<bool>,
}

#[derive(Default)]
struct Versions {
    /// The version in force; `None` until they were read, and while the hash does not exist.
    current: Option<String>,
    /// The changes that led to it, as far as they are known.
    history: History,
    /// The last versions that were adopted or skipped, the newest at the end.
    recent: VecDeque<String>,
    /// The time of the next read, if a change may be missing. Until then, versions that were skipped may not be in force.
    read_at: Option<Instant>,
}

impl State {
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
    pub(super) async fn in_force(&self, version: &str, patience: Duration) -> bool {
        let mut versions = self.versions.subscribe();
        let is_in_force = |versions: &Versions| {
            versions.read_at.is_none() && versions.recent.iter().any(|recent| recent == version)
        };
        timeout(patience, versions.wait_for(is_in_force)).await.is_ok()
    }

    pub(super) fn version(&self) -> Option<String> {
        self.versions.borrow().current.clone()
    }

    /// The version in force, if there is one, and the changes that led to it.
    pub(super) fn known(&self) -> (Option<String>, History) {
        let versions = self.versions.borrow();
        (versions.current.clone(), versions.history.clone())
    }

    /// The time to catch up with Redis, if a change may be missing.
    pub(super) fn read_at(&self) -> Option<Instant> {
        self.versions.borrow().read_at
    }

    /// This version is in force, and so are all that were skipped.
    pub(super) fn adopt(&self, version: Option<&str>) {
        self.versions.send_modify(|versions| {
            if versions.current.as_deref() != version {
                versions.note(version);
                versions.history = History::default();
            }
            versions.current = version.map(str::to_owned);
            versions.read_at = None;
        });
    }

    /// This change, which follows from the version in force, is in force too.
    pub(super) fn apply(&self, change: Change) {
        self.versions.send_modify(|versions| {
            versions.note(Some(&change.after));
            versions.current = Some(change.after.to_string());
            versions.history.push(change);
            versions.read_at = None;
        });
    }

    /// This version is in force, and so are all that were skipped. These changes led to it.
    pub(super) fn adopt_path(&self, version: &str, path: Vec<Change>) {
        self.versions.send_modify(|versions| {
            for change in &path {
                versions.note(Some(&change.after));
            }
            versions.note(Some(version));
            versions.current = Some(version.to_owned());
            versions.history = History::default();
            for change in path {
                versions.history.push(change);
            }
            versions.read_at = None;
        });
    }

    /// The message of this version does not follow from the version in force: it is older, or a change is missing.
    pub(super) fn skip(&self, version: &str) {
        // In one step, so that no caller finds it in force in between.
        self.versions.send_modify(|versions| {
            versions.note(Some(version));
            versions.miss();
        });
    }

    /// A change may be missing.
    pub(super) fn missed(&self) {
        self.versions.send_modify(Versions::miss);
    }

    pub(super) fn is_read(&self) {
        self.versions.send_modify(|versions| versions.read_at = None);
    }
}

impl Versions {
    fn miss(&mut self) {
        self.read_at = self.read_at.or_else(|| Instant::now().checked_add(GRACE));
    }

    fn note(&mut self, version: Option<&str>) {
        self.recent.extend(version.map(str::to_owned));
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}
