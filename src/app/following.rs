//! Follows the store for everything but counters: overrides, resets of counters, and other replicas.
//!
//! With Redis it is a thread that has a runtime and connections of its own, so that reading a million overrides delays
//! nobody.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime,
    sync::watch,
    time::{MissedTickBehavior, interval_at},
};
use tracing::{info, warn};

use super::parts::Parts;
use crate::{
    clock::{Clock, SystemClock},
    limiter::Limiter,
    overrides::shared::{Follower, State},
    panics::{self, Boundary},
    replicas::{INTERVAL_SECONDS, Replica, Replicas},
    server::health::Part,
    store::{memcached::ResetLog, redis::Side},
    telemetry::metrics::Method,
};

/// Starts the thread; it ends when `stop` turns true.
pub(super) fn start(
    parts: &Parts,
    side: Side,
    state: Arc<State>,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let side = Arc::new(side);
    parts.health.set(Part::Overrides, false);
    let (health, first) = (parts.health.clone(), state.clone());
    let limiter = parts.limiter.clone();
    let follower = Follower {
        side: side.clone(),
        index: parts.keeper.index().clone(),
        state,
        clock: SystemClock,
        on_reset: Box::new(move |resets| limiter.forget(resets)),
    };
    let parts = parts.clone();
    let follow = move || {
        panics::name_thread(Boundary::ReplicaSync);
        runtime.block_on(async {
            let mut stop = stop;
            let settling = async {
                first.settled().await;
                health.set(Part::Overrides, true);
                std::future::pending::<()>().await;
            };
            let announcing =
                panics::restart_task(Boundary::ReplicaSync, async || announce(&parts, &side).await);
            tokio::select! {
                () = panics::restart_task(Boundary::ReplicaSync, async || follower.follow().await) => {}
                () = announcing => {}
                () = settling => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
    };
    thread::Builder::new().name("replica-sync".to_owned()).spawn(follow).map(drop)
}

/// Follows the resets of other replicas in memcached until `stop` turns true. It is a small read twice a second, so it
/// has no thread of its own.
pub(super) async fn follow_resets(limiter: Arc<Limiter>, resets: ResetLog, mut stop: watch::Receiver<bool>) {
    let follow = panics::restart_task(Boundary::ReplicaSync, async || {
        resets.follow(|resets| limiter.forget(resets)).await;
    });
    tokio::select! {
        () = follow => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Announces this replica from time to time; never returns.
async fn announce(parts: &Parts, side: &Side) {
    let interval = Duration::from_secs(INTERVAL_SECONDS);
    // Not at once: a program that ends as soon as it has started is no replica, and leaves no key.
    let mut tick = interval_at(tokio::time::Instant::now() + interval, interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = SystemClock.now().seconds();
    let (mut last_requests, mut last_tick) = (requests(parts), Instant::now());
    let (mut failing, mut last_success) = (false, Instant::now());
    loop {
        tick.tick().await;
        let (now, count) = (Instant::now(), requests(parts));
        let elapsed = now.duration_since(std::mem::replace(&mut last_tick, now)).as_millis().max(1);
        let answered = u128::from(count.saturating_sub(std::mem::replace(&mut last_requests, count)));
        let per_second = answered.saturating_mul(1000).checked_div(elapsed).unwrap_or_default();
        let state = parts.source.state();
        let own = Replica {
            id: Replicas::own_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rules_hash: state.last_success.map(|_| format!("{:016x}", state.hash)),
            requests_per_second: u64::try_from(per_second).unwrap_or(u64::MAX),
            started,
        };
        match parts.replicas.announce(side, &own).await {
            Ok(()) => {
                last_success = Instant::now();
                if std::mem::take(&mut failing) {
                    info!(replicas = parts.replicas.list().len(), "replicas: recovered");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("replicas: {error}");
                }
                if Replicas::is_outdated(last_success.elapsed().as_secs()) {
                    parts.replicas.clear(&own);
                }
            }
        }
    }
}

fn requests(parts: &Parts) -> u64 {
    parts.stats.service().requests(Method::ShouldRateLimit).get()
}
