//! Maintenance: periodic work and health checks.

use std::time::{Duration, Instant};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{StartError, parts::App};
use crate::{settings::Backend, settings::Settings};
use clock::{Clock, SystemClock};
use containment::panics;
use server::health::Part;
use telemetry::metrics::Method;

const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// Updates the health of the rules (`HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`) and of the store
/// (`REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`, or that of memcached).
pub(super) fn update_health(app: &App, settings: &Settings) {
    if settings.rules.healthy_with_at_least_one {
        let loaded = app.source.load().as_ref().is_some_and(|served| !served.rules.is_empty());
        app.health.set(Part::Rules, loaded);
    }
    let needs_store = match &settings.backend {
        Backend::Memory => false,
        Backend::Redis(redis) => redis.unhealthy_without,
        Backend::Memcached(memcached) => memcached.unhealthy_without,
    };
    if needs_store {
        app.health.set(Part::Store, app.store.is_usable());
    }
}

/// Completes when Redis was not reached within `REDIS_STARTUP_MAX_ELAPSED_TIME` of the start.
pub(super) async fn never_reached(app: &App, settings: &Settings) -> StartError {
    let Backend::Redis(redis) = &settings.backend else { return std::future::pending().await };
    let Some(limit) = redis.startup.give_up_after else { return std::future::pending().await };
    let begun = Instant::now();
    while !app.store.is_reachable() {
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
pub(super) async fn run(app: &App, settings: &Settings, mut stop: watch::Receiver<bool>) {
    let mut last_answered = 0;
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut check = interval(HEALTH_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = check.tick() => update_health(app, settings),
            _ = second.tick() => {
                panics::point("maintenance");
                let now = SystemClock.now();
                app.store.maintain(now);
                app.limiter.maintain(now);
                app.keeper.sweep(now);
                app.stats.maintain(now);
                app.recent.maintain(now);
                if let Some(cache) = &app.over_limit {
                    cache.maintain(now);
                }
                let answered = app.stats.service().requests(Method::ShouldRateLimit).get();
                if std::mem::replace(&mut last_answered, answered) == answered {
                    allocator::refund();
                }
            }
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
