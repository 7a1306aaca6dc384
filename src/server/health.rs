//! Whether the service is fit to be asked, for probes over HTTP and gRPC alike.
//!
//! Each part that can fail has a say; the service is healthy while all agree.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

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
}

/// The service's health.
#[derive(Debug)]
pub struct Health {
    parts: Mutex<[bool; 2]>,
    healthy: AtomicBool,
    changed: watch::Sender<bool>,
}

impl Health {
    /// Healthy in every part.
    #[must_use]
    pub fn new() -> Self {
        Self {
            parts: Mutex::new([true; 2]),
            healthy: AtomicBool::new(true),
            changed: watch::Sender::new(true),
        }
    }

    /// Says whether a part is well.
    pub fn set(&self, part: Part, well: bool) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts[part as usize] = well;
        let healthy = parts.iter().all(|well| *well);
        self.healthy.store(healthy, Ordering::Relaxed);
        self.changed.send_if_modified(|was| std::mem::replace(was, healthy) != healthy);
    }

    /// True while every part is well.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Tells of every change.
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
        health.set(Part::Rules, false);
        health.set(Part::Running, false);
        health.set(Part::Rules, true);
        assert!(!health.is_healthy());
        health.set(Part::Running, true);
        assert!(health.is_healthy() && *health.changes().borrow());
    }
}
