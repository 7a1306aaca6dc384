//! Follows overrides, resets and refunds of counters, and other replicas in the store. With Redis, a separate thread with
//! its own runtime and connections does this, so that reading a million overrides delays no request.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval_at},
};
use tracing::{info, warn};

use super::{parts::App, threads::Thread};
use admin::Api;
use clock::{Clock, SystemClock};
use counters::Resets;
use faults::{log_throttle::FailureLog, panics::Boundary};
use fleet::{
    change,
    members::{self, INTERVAL_SECONDS, Publisher, Sharers},
};
use limit::Share;
use limiter::Untold;
use memcached::ResetLog;
use net::edges::Edges;
use overrides::{follower::Follower, progress::Progress};
use redis_store::CommandPool;
use server::health::Part;

/// The interval of publications. Nothing is written before the first, so that a process that ends at once leaves no key.
const INTERVAL: Duration = Duration::from_secs(INTERVAL_SECONDS);

/// The time to leave the list of replicas at the shutdown.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Starts the thread; it ends soon after `stop` turns true.
pub(super) fn start(
    app: &Arc<App>,
    api: Arc<Api>,
    pool: CommandPool,
    progress: Arc<Progress>,
    untold: Arc<Untold>,
    stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let thread = Thread::start("replica-sync", Boundary::ReplicaSync)?;
    let pool = Arc::new(pool);
    app.health.set(Part::Overrides, false);
    let health = app.health.clone();
    let first = progress.clone();
    let [reset, refunded] = [app.limiter.clone(), app.limiter.clone()];
    let follower = Follower {
        pool: pool.clone(),
        index: app.keeper.index().clone(),
        progress,
        on_reset: Box::new(move |resets| reset.forget(resets)),
        on_refund: Box::new(move |refunds| refunded.forget_rejections(refunds)),
    };
    let app = app.clone();
    Ok(thread.run(move || async move {
        let mut stop = stop;
        let begun = Instant::now();
        let settling = async {
            first.settled().await;
            health.set(Part::Overrides, true);
            std::future::pending::<()>().await;
        };
        let publishing = net::restart::task(Boundary::ReplicaSync, async || publish(&app, &api, &pool).await);
        let logging = net::restart::task(Boundary::ReplicaSync, async || write_changes(&app, &pool).await);
        let telling = net::restart::task(Boundary::ReplicaSync, async || {
            let tell = async |refunds: &Resets| follower.announce_refunds(refunds).await;
            untold.tell(&*pool.edges().timer, tell).await;
        });
        tokio::select! {
            () = net::restart::task(Boundary::ReplicaSync, async || follower.follow().await) => {}
            () = publishing => {}
            () = logging => {}
            () = telling => {}
            () = settling => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        if begun.elapsed() >= INTERVAL {
            leave(&app, &pool).await;
        }
    }))
}

/// Announces refunds in memcached, and follows the resets and refunds of other replicas if there is a cache to correct,
/// until `stop` turns true. A small read twice a second needs no separate thread.
pub(super) async fn follow_resets(
    app: Arc<App>,
    resets: ResetLog,
    untold: Arc<Untold>,
    mut stop: watch::Receiver<bool>,
) {
    let follow = net::restart::task(Boundary::ReplicaSync, async || {
        if app.over_limit.is_some() {
            resets.follow(|resets| app.limiter.forget(resets)).await;
        }
        std::future::pending::<()>().await;
    });
    let telling = net::restart::task(Boundary::ReplicaSync, async || {
        let tell = async |refunds: &Resets| resets.announce(refunds).await.map(|()| 1);
        untold.tell(&*Edges::system().timer, tell).await;
    });
    tokio::select! {
        () = follow => {}
        () = telling => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Publishes this replica at intervals, and counts those that share the store where it matters; never returns.
async fn publish(app: &App, api: &Api, pool: &CommandPool) {
    let mut tick = interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sharers = Sharers::default();
    let mut publisher = Publisher::default();
    let log = FailureLog::default();
    loop {
        tick.tick().await;
        match publisher.publish(pool, &api.announcement(), api.published_summary().as_deref()).await {
            Ok(gone) => {
                log.succeeded(|suppressed| info!(suppressed, "this replica is published again"));
                for replica in gone {
                    warn!(replica, "a replica is gone without a drain");
                    let what = format!("{replica} is gone without a drain: killed, or cut off from Redis");
                    app.fleet.changes.record(change("replica_lost", what, SystemClock.now()));
                }
            }
            Err(error) => log.failed(|suppressed| warn!(suppressed, "cannot publish this replica: {error}")),
        }
        if app.limiter.uses_share()
            && let Some((rank, replicas)) = sharers.read(pool, members::own_id()).await
            && let Some(share) = Share::new(rank, replicas)
        {
            app.limiter.set_share(share);
        }
    }
}

/// Writes changes to the log in Redis as they happen, or when Redis is back; never returns.
async fn write_changes(app: &App, pool: &CommandPool) {
    let log = FailureLog::default();
    tokio::time::sleep(INTERVAL).await;
    loop {
        app.fleet.changes.wait().await;
        match app.fleet.changes.write(pool, SystemClock.now()).await {
            Ok(()) => log.succeeded(|suppressed| info!(suppressed, "the log of changes is written again")),
            Err(error) => {
                log.failed(|suppressed| {
                    warn!(suppressed, "cannot write the log of changes, which waits: {error}");
                });
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Writes the last changes, and removes this replica from the list.
async fn leave(app: &App, pool: &CommandPool) {
    let left = async {
        app.fleet.changes.write(pool, SystemClock.now()).await?;
        members::leave(pool).await
    };
    match tokio::time::timeout(LAST_WORDS, left).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!("cannot remove this replica from the list: {error}"),
        Err(_) => {
            warn!("cannot remove this replica from the list: redis did not answer within {LAST_WORDS:?}");
        }
    }
}
