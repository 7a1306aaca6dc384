//! Whether the service is fit to be asked, for probes over HTTP and gRPC alike.
//!
//! Each part that can fail has a say; the service is healthy while all agree.

use std::{fmt, sync::Mutex};

use crate::mutex::lock;
use tokio::sync::watch;

/// The name under which gRPC health checks ask for the service.
pub const GRPC_SERVICE: &str = "ratelimit";

/// What has a say in the service's health.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Rules are loaded; has a say with `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`.
    Rules,
    /// The service is not about to end.
    Running,
    /// The counters can be asked; has a say with `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`.
    Store,
    /// The overrides in Redis were read once, or Redis is not reached; has a say with `REPLICA_SYNC`.
    Overrides,
}

impl Part {
    /// Every part, each at its own number.
    pub const ALL: [Self; 4] = [Self::Rules, Self::Running, Self::Store, Self::Overrides];
}

/// What is wrong while this part is not well, in a line for whoever looks into a failed probe.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rules => "rules: none loaded (HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED); see the log",
            Self::Running => "running: shutting down",
            Self::Store => {
                "store: no connection to Redis (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION); see the log"
            }
            Self::Overrides => "overrides: being read from Redis for the first time",
        })
    }
}

/// The service's health.
#[derive(Debug)]
pub struct Health {
    parts: Mutex<[bool; Part::ALL.len()]>,
    changed: watch::Sender<bool>,
}

impl Health {
    /// Healthy in every part.
    #[must_use]
    pub fn new() -> Self {
        Self { parts: Mutex::new([true; Part::ALL.len()]), changed: watch::Sender::new(true) }
    }

    /// Says whether a part is well.
    pub fn set(&self, part: Part, well: bool) {
        let mut parts = lock(&self.parts);
        if let Some(known) = parts.get_mut(part as usize) {
            *known = well;
        }
        let healthy = parts.iter().all(|well| *well);
        self.changed.send_if_modified(|was| std::mem::replace(was, healthy) != healthy);
    }

    /// The parts that are not well; none while the service is healthy.
    #[must_use]
    pub fn unwell(&self) -> Vec<Part> {
        let parts = *lock(&self.parts);
        Part::ALL.into_iter().filter(|part| parts.get(*part as usize) == Some(&false)).collect()
    }

    /// Notifies of every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.changed.subscribe()
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unwell_part_is_enough() {
        let health = Health::new();
        for part in Part::ALL {
            health.set(part, false);
        }
        assert_eq!(health.unwell(), Part::ALL);
        for part in [Part::Rules, Part::Store, Part::Overrides] {
            health.set(part, true);
        }
        assert_eq!(health.unwell(), [Part::Running]);
        assert!(!*health.changes().borrow());
        health.set(Part::Running, true);
        assert!(health.unwell().is_empty() && *health.changes().borrow());
    }
}
