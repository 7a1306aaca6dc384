//! Maintenance: periodic work and health checks.

use std::{
    mem,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{StartError, parts::App};
use clock::{Clock, Rfc3339, SystemClock, Time};
use faults::{OnStoreFailure, log_throttle::LogThrottle, panics};
use metrics::Method;
use server::health::Part;
use settings::{Backend, Settings};
use tracing::error;

impl App {
    /// The store and the rules in a line each, for `/healthcheck?verbose`. Anyone may ask: addresses and errors of servers
    /// are in the log and in the status of the admin API.
    pub(super) fn details(&self) -> Vec<String> {
        let store = match self.outages.current() {
            None => "store: ok".to_owned(),
            Some(outage) => {
                let policies = self.limiter.failure_policies();
                let policies: Vec<_> = policies.iter().map(|(policy, _)| policy.name()).collect();
                format!(
                    "store: failing since {}; decided by policy {}",
                    Rfc3339(outage.since),
                    policies.join(", ")
                )
            }
        };
        let state = self.source.state();
        let rules = match (state.last_success, state.is_current) {
            (None, _) => "rules: none loaded; every request fails".to_owned(),
            (Some(at), true) => format!("rules: {}, loaded at {}", state.rules, Rfc3339(at)),
            (Some(at), false) => format!("rules: newer ones rejected; those of {} are in force", Rfc3339(at)),
        };
        vec![store, rules]
    }
}

/// The fewest requests that show an outage, and the seconds within which they must come.
const ENOUGH_REQUESTS: u64 = 20;
const ENOUGH_SECONDS: u32 = 10;

/// Whether most of the last requests failed for the store.
#[derive(Default)]
struct Failing {
    /// The failed and all requests before those.
    before: (u64, u64),
    /// The failed ones a second ago.
    last_failed: u64,
    seconds: u32,
    is_most: bool,
}

impl Failing {
    fn sample(&mut self, app: &App) {
        let service = app.stats.service();
        let failed: u64 = OnStoreFailure::ALL.iter().map(|policy| service.decided_by(*policy)).sum();
        self.note(failed, app.stats.requests());
    }

    /// Called each second, with the numbers since the start.
    fn note(&mut self, failed: u64, requests: u64) {
        let new_failed = failed.saturating_sub(self.before.0);
        let new = requests.saturating_sub(self.before.1);
        // An outage ends with the first second in which no request failed.
        let is_over = mem::replace(&mut self.last_failed, failed) == failed;
        self.seconds += 1;
        if is_over || new >= ENOUGH_REQUESTS || self.seconds >= ENOUGH_SECONDS {
            self.is_most = !is_over && new >= ENOUGH_REQUESTS && new_failed > new / 2;
            (self.before, self.seconds) = ((failed, requests), 0);
        }
    }
}

/// Counters in memory hold the second of their end in 32 bits, until 2106. The longest window has ten years.
const LAST_SECOND: u64 = 0xffff_ffff - 10 * 366 * 86_400;

/// Why nothing may be counted by this clock.
pub(super) fn clock_is_wrong(now: Time) -> Option<String> {
    let time = Rfc3339(now);
    (now.seconds() > LAST_SECOND)
        .then(|| format!("the clock says {time}: counters in memory end with the year 2095"))
}

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
    let mut failing = Failing::default();
    let wrong_clock = LogThrottle::new(60);
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut check = interval(HEALTH_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = check.tick() => {
                update_health(app, settings);
                app.outages.note(&*app.store, failing.is_most, SystemClock.now());
            }
            _ = second.tick() => {
                panics::point("maintenance");
                let now = SystemClock.now();
                if let Some(why) = clock_is_wrong(now).filter(|_| wrong_clock.admit_now().is_some()) {
                    error!("{why}: limits are not enforced");
                }
                app.store.maintain(now);
                app.limiter.maintain(now);
                app.keeper.sweep(now);
                app.stats.maintain(now);
                app.recent.maintain(now);
                failing.sample(app);
                if let Some(cache) = &app.over_limit {
                    cache.maintain(now);
                }
                let answered = app.stats.service().requests(Method::ShouldRateLimit).get();
                if mem::replace(&mut last_answered, answered) == answered {
                    allocator::refund();
                }
            }
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdicts of seconds with this many failed and other requests.
    fn verdicts(seconds: &[(u64, u64)]) -> Vec<bool> {
        let (mut failing, mut failed, mut requests) = (Failing::default(), 0, 0);
        let note = |(bad, good): &(u64, u64)| {
            (failed, requests) = (failed + bad, requests + bad + good);
            failing.note(failed, requests);
            failing.is_most
        };
        seconds.iter().map(note).collect()
    }

    #[test]
    fn an_outage_is_most_of_at_least_twenty_requests() {
        assert_eq!(verdicts(&[(1, 2); 60]), [false; 60]);
        assert_eq!(verdicts(&[(1, 0); 60]), [false; 60], "ten requests in ten seconds");
        assert_eq!(verdicts(&[(10, 10), (11, 9), (0, 20)]), [false, true, false]);
        let few = verdicts(&[(3, 0); 14]);
        assert_eq!((few.iter().position(|is_most| *is_most), few[13]), (Some(6), true));
        assert_eq!(verdicts(&[(20, 0), (1, 1), (0, 0)]), [true, true, false]);
    }
}
