//! Maintenance: periodic work, and checks of the parts' health.

use std::time::{Duration, Instant};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{StartError, parts::Parts};
use crate::{
    clock::{Clock, SystemClock},
    memory, panics,
    server::health::Part,
    settings::{Backend, Settings},
    telemetry::metrics::Method,
};

/// The interval of health checks.
const LOOK: Duration = Duration::from_millis(100);

impl Parts {
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: the service is unhealthy without rules.
    pub(super) fn update_rules_health(&self, settings: &Settings) {
        if settings.rules.healthy_with_at_least_one {
            let loaded = self.source.load().as_ref().is_some_and(|served| !served.rules.is_empty());
            self.health.set(Part::Rules, loaded);
        }
    }

    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`, or that of memcached: the service is unhealthy without a connection.
    pub(super) fn update_store_health(&self, settings: &Settings) {
        let needed = match &settings.backend {
            Backend::Memory => false,
            Backend::Redis(redis) => redis.unhealthy_without,
            Backend::Memcached(memcached) => memcached.unhealthy_without,
        };
        if needed {
            self.health.set(Part::Store, self.store.is_reachable());
        }
    }
}

/// Completes when Redis was not reached within `REDIS_STARTUP_MAX_ELAPSED_TIME` of the start.
pub(super) async fn never_reached(parts: &Parts, settings: &Settings) -> StartError {
    let Backend::Redis(redis) = &settings.backend else { return std::future::pending().await };
    let Some(limit) = redis.startup.give_up_after else { return std::future::pending().await };
    let begun = Instant::now();
    while !parts.store.is_reachable() {
        if begun.elapsed() > limit {
            return StartError(vec![format!(
                "redis was not reached within {limit:?} of the start (REDIS_STARTUP_MAX_ELAPSED_TIME); the \
                 log says why. Unset it to serve without until it is there"
            )]);
        }
        sleep(LOOK).await;
    }
    std::future::pending().await
}

/// Does the periodic work until `stop` becomes true.
pub(super) async fn run(parts: &Parts, settings: &Settings, mut stop: watch::Receiver<bool>) {
    let mut last_answered = 0;
    let mut sweep = interval(Duration::from_secs(1));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {
                parts.update_rules_health(settings);
                parts.update_store_health(settings);
            }
            _ = sweep.tick() => {
                panics::point("maintenance");
                let now = SystemClock.now();
                parts.store.maintain(now);
                parts.limiter.maintain(now);
                parts.keeper.sweep(now);
                parts.stats.maintain(now);
                parts.recent.maintain(now);
                if let Some(cache) = &parts.over_limit {
                    cache.maintain(now);
                }
                let answered = parts.stats.service().requests(Method::ShouldRateLimit).get();
                if std::mem::replace(&mut last_answered, answered) == answered {
                    memory::refund();
                }
            }
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
