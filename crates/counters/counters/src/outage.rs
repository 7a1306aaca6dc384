//! Since when the store is out of service, and why: for health checks, status and the log of changes.
//!
//! Maintenance calls [`Outages::note`] several times a second. The words of the error are those that the store logged.

use std::sync::{Arc, Mutex};

use clock::Time;
use faults::mutex::lock;

use crate::Store;

/// The store cannot be reached, or fails most requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outage {
    pub since: Time,
    /// The store can be reached, and fails most requests.
    pub is_connected: bool,
    /// The last error of the store: its address, what was seen, and advice. Contains no secret.
    pub error: Arc<str>,
}

#[derive(Default)]
pub struct Outages(Mutex<Option<Outage>>);

impl Outages {
    /// Notes whether the store works; `fails_most` if it is connected and most requests fail.
    pub fn note(&self, store: &dyn Store, fails_most: bool, now: Time) {
        let mut current = lock(&self.0);
        let is_connected = store.is_reachable();
        if is_connected && !fails_most {
            *current = None;
            return;
        }
        let mut pools = store.pools();
        pools.sort_by_key(|pool| pool.breakers_open == 0);
        let error = pools.into_iter().find_map(|pool| pool.last_error);
        let error = error.unwrap_or_else(|| "not connected yet".into());
        let since = current.as_ref().map_or(now, |outage| outage.since);
        *current = Some(Outage { since, is_connected, error });
    }

    pub fn current(&self) -> Option<Outage> {
        lock(&self.0).clone()
    }
}
