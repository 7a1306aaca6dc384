//! The health of the service, for probes over HTTP and gRPC: it is healthy while all of its parts are.

use std::sync::Mutex;

use faults::mutex::lock;
use tokio::sync::watch;

pub const GRPC_SERVICE: &str = "ratelimit";

text::named! {
    /// The parts of the service's health, each with the problem of an unhealthy one.
    pub enum Part {
        /// Rules are loaded, with `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`.
        Rules = "rules: none loaded (HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED); see the log",
        /// The service is not shutting down.
        Running = "running: shutting down",
        /// The store is connected and accepts writes, with `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION` or
        /// `MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION`.
        Store = "store: it is not connected, or refuses writes (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION, \
                 MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION); see the log",
        /// The overrides in Redis were read once, or Redis cannot be reached, with `REPLICA_SYNC`.
        Overrides = "overrides: being read from Redis for the first time",
    }
}

pub struct Health {
    parts: Mutex<[bool; Part::ALL.len()]>,
    changed: watch::Sender<bool>,
}

impl Default for Health {
    fn default() -> Self {
        Self { parts: Mutex::new([true; Part::ALL.len()]), changed: watch::Sender::new(true) }
    }
}

impl Health {
    pub fn set(&self, part: Part, is_healthy: bool) {
        let mut parts = lock(&self.parts);
        if let Some(known) = parts.get_mut(part as usize) {
            *known = is_healthy;
        }
        let healthy = parts.iter().all(|is_healthy| *is_healthy);
        self.changed.send_if_modified(|was| std::mem::replace(was, healthy) != healthy);
    }

    pub fn unhealthy(&self) -> Vec<Part> {
        let parts = *lock(&self.parts);
        Part::ALL.into_iter().filter(|part| parts.get(*part as usize) == Some(&false)).collect()
    }

    pub fn changes(&self) -> watch::Receiver<bool> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unhealthy_part_is_enough() {
        let health = Health::default();
        for part in Part::ALL {
            health.set(part, false);
        }
        assert_eq!(health.unhealthy(), Part::ALL);
        for part in [Part::Rules, Part::Store, Part::Overrides] {
            health.set(part, true);
        }
        assert_eq!(health.unhealthy(), [Part::Running]);
        assert!(!*health.changes().borrow());
        health.set(Part::Running, true);
        assert!(health.unhealthy().is_empty() && *health.changes().borrow());
    }
}
