//! Maintenance: periodic work and health checks.

use std::time::{Duration, Instant};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::StartError;
use crate::{
    memory,
    server::{health::Part, http::service::Service},
    settings::Backend,
    settings::Settings,
};
use clock::{Clock, SystemClock};
use containment::panics;
use telemetry::metrics::Method;

const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// Updates the health of the rules (`HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`) and of the store
/// (`REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`, or that of memcached).
pub(super) fn update_health(service: &Service, settings: &Settings) {
    if settings.rules.healthy_with_at_least_one {
        let loaded = service.source.load().as_ref().is_some_and(|served| !served.rules.is_empty());
        service.health.set(Part::Rules, loaded);
    }
    let needs_store = match &settings.backend {
        Backend::Memory => false,
        Backend::Redis(redis) => redis.unhealthy_without,
        Backend::Memcached(memcached) => memcached.unhealthy_without,
    };
    if needs_store {
        service.health.set(Part::Store, service.store.is_usable());
    }
}

/// Completes when Redis was not reached within `REDIS_STARTUP_MAX_ELAPSED_TIME` of the start.
pub(super) async fn never_reached(service: &Service, settings: &Settings) -> StartError {
    let Backend::Redis(redis) = &settings.backend else { return std::future::pending().await };
    let Some(limit) = redis.startup.give_up_after else { return std::future::pending().await };
    let begun = Instant::now();
    while !service.store.is_reachable() {
        if begun.elapsed() > limit {
            return StartError(vec![format!(
                "redis: no connection within {limit:?} of the start (REDIS_STARTUP_MAX_ELAPSED_TIME); see the \
                 log, or unset the variable to start without Redis"
            )]);
        }
        sleep(HEALTH_INTERVAL).await;
    }
    std::future::pending().await
}

/// Does the periodic work until `stop` becomes true.
pub(super) async fn run(service: &Service, settings: &Settings, mut stop: watch::Receiver<bool>) {
    let mut last_answered = 0;
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut check = interval(HEALTH_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = check.tick() => update_health(service, settings),
            _ = second.tick() => {
                panics::point("maintenance");
                let now = SystemClock.now();
                service.store.maintain(now);
                service.limiter.maintain(now);
                service.keeper.sweep(now);
                service.stats.maintain(now);
                service.recent.maintain(now);
                if let Some(cache) = &service.over_limit {
                    cache.maintain(now);
                }
                let answered = service.stats.service().requests(Method::ShouldRateLimit).get();
                if std::mem::replace(&mut last_answered, answered) == answered {
                    memory::refund();
                }
            }
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
