//! Follows overrides, resets and refunds of counters, and other replicas in the store. With Redis, a separate thread with
//! its own runtime and connections does this, so that reading a million overrides delays no request.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval_at},
};
use tracing::{info, warn};

use super::{parts::App, threads::Thread};
use admin::Api;
use clock::{Clock, SystemClock};
use faults::panics::Boundary;
use fleet::members::{self, INTERVAL_SECONDS, Sharers};
use limit::Share;
use memcached::ResetLog;
use overrides::{follower::Follower, progress::Progress};
use redis_store::CommandPool;
use server::health::Part;

/// The interval of publications. Nothing is written before the first, so that a process that ends at once leaves no key.
const INTERVAL: Duration = Duration::from_secs(INTERVAL_SECONDS);

/// The pause between announcements of refunds, and the maximum number of refunds in one. Both grow with the number of
/// replicas, when these are more than a few: every replica gets the announcements of every other.
const REFUNDS_PAUSE: Duration = Duration::from_millis(50);
const MAX_REFUNDS_AT_ONCE: usize = 1_000;
const FEW_REPLICAS: usize = 10;

/// The time to leave the list of replicas at the shutdown.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Starts the thread; it ends soon after `stop` turns true.
pub(super) fn start(
    app: &Arc<App>,
    api: Arc<Api>,
    pool: CommandPool,
    progress: Arc<Progress>,
    mut refunds: mpsc::Receiver<String>,
    stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let thread = Thread::start("replica-sync", Boundary::ReplicaSync)?;
    let pool = Arc::new(pool);
    app.health.set(Part::Overrides, false);
    let (health, first) = (app.health.clone(), progress.clone());
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
        let (mut stop, begun) = (stop, Instant::now());
        let settling = async {
            first.settled().await;
            health.set(Part::Overrides, true);
            std::future::pending::<()>().await;
        };
        let publishing = net::restart::task(Boundary::ReplicaSync, async || publish(&app, &api, &pool).await);
        let logging = net::restart::task(Boundary::ReplicaSync, async || write_changes(&app, &pool).await);
        let refunding = net::restart::task(Boundary::ReplicaSync, async || {
            announce_refunds(&mut refunds, async |keys| follower.announce_refunds(keys).await).await;
        });
        tokio::select! {
            () = net::restart::task(Boundary::ReplicaSync, async || follower.follow().await) => {}
            () = publishing => {}
            () = logging => {}
            () = refunding => {}
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
    mut refunds: mpsc::Receiver<String>,
    mut stop: watch::Receiver<bool>,
) {
    let follow = net::restart::task(Boundary::ReplicaSync, async || {
        if app.over_limit.is_some() {
            resets.follow(|resets| app.limiter.forget(resets)).await;
        }
        std::future::pending::<()>().await;
    });
    let refunding = net::restart::task(Boundary::ReplicaSync, async || {
        announce_refunds(&mut refunds, async |keys| resets.announce(keys).await.map(|()| 1)).await;
    });
    tokio::select! {
        () = follow => {}
        () = refunding => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Announces the refunds of this replica, those of a moment together, by `announce`, which returns the replicas that it
/// reaches; never returns.
async fn announce_refunds(
    refunds: &mut mpsc::Receiver<String>,
    announce: impl AsyncFn(&[String]) -> Result<u64, String>,
) {
    let (mut keys, mut failing, mut factor) = (Vec::new(), false, 1);
    // It is empty only if the limiter, which announces, is gone.
    while refunds.recv_many(&mut keys, MAX_REFUNDS_AT_ONCE * factor).await > 0 {
        keys.sort_unstable();
        keys.dedup();
        match announce(&keys).await {
            Ok(replicas) => {
                failing = false;
                factor =
                    usize::try_from(replicas).unwrap_or(usize::MAX).clamp(FEW_REPLICAS, 1000) / FEW_REPLICAS;
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("refunds: {error}; other replicas may reject until the windows end");
                }
            }
        }
        keys.clear();
        tokio::time::sleep(REFUNDS_PAUSE * u32::try_from(factor).unwrap_or(1)).await;
    }
    std::future::pending::<()>().await;
}

/// Publishes this replica at intervals, and counts those that share the store where it matters; never returns.
async fn publish(app: &App, api: &Api, pool: &CommandPool) {
    let mut tick = interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failing, mut sharers) = (false, Sharers::default());
    loop {
        tick.tick().await;
        match members::publish(pool, &api.announcement(), api.published_summary().as_deref()).await {
            Ok(()) if std::mem::take(&mut failing) => info!("this replica is published again"),
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot publish this replica: {error}");
                }
            }
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
    let mut failing = false;
    tokio::time::sleep(INTERVAL).await;
    loop {
        app.fleet.changes.wait().await;
        match app.fleet.changes.write(pool, SystemClock.now()).await {
            Ok(()) => failing = false,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot write the log of changes, which waits: {error}");
                }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn announcements_that_reach_many_replicas_are_fewer() {
        let announced = async |replicas| {
            let (sender, mut refunds) = mpsc::channel(1000);
            let (calls, keys) = (Cell::new(0), Cell::new(0));
            let refund = async {
                for key in 0..60 {
                    sender.send(key.to_string()).await.expect("it is received");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                while keys.get() < 60 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let announce = announce_refunds(&mut refunds, async |announced| {
                calls.set(calls.get() + 1);
                keys.set(keys.get() + announced.len());
                Ok(replicas)
            });
            tokio::select! {
                () = refund => calls.get(),
                () = announce => unreachable!("it never returns"),
            }
        };
        let (few, many) = (announced(3).await, announced(100).await);
        assert!(many * 2 < few, "{few} announcements to few replicas, {many} to many");
    }
}
