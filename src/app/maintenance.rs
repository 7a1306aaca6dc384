//! Keeping house: what is to be done from time to time, and what is to be looked at.

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

/// How often is looked whether the parts are well.
const LOOK: Duration = Duration::from_millis(100);

impl Parts {
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: without rules the service is not healthy.
    pub(super) fn judge_rules(&self, settings: &Settings) {
        if settings.rules.healthy_with_at_least_one {
            let loaded = self.source.load().as_ref().is_some_and(|served| !served.rules.is_empty());
            self.health.set(Part::Rules, loaded);
        }
    }

    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`, or that of memcached: without its counters the service is not
    /// healthy.
    pub(super) fn judge_store(&self, settings: &Settings) {
        let needed = match &settings.store.chosen {
            Backend::Memory => false,
            Backend::Redis(redis) => redis.unhealthy_without,
            Backend::Memcached(memcached) => memcached.unhealthy_without,
        };
        if needed {
            self.health.set(Part::Store, self.store.is_reachable());
        }
    }
}

/// Completes when Redis was not reached for the first time in the time that is given to it.
pub(super) async fn never_reached(parts: &Parts, settings: &Settings) -> StartError {
    let Backend::Redis(redis) = &settings.store.chosen else { return std::future::pending().await };
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

/// What is to be done from time to time.
pub(super) async fn keep_house(parts: &Parts, settings: &Settings, mut stop: watch::Receiver<bool>) {
    let mut last_answered = 0;
    let mut sweep = interval(Duration::from_secs(1));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {
                parts.judge_rules(settings);
                parts.judge_store(settings);
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
