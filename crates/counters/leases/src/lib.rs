//! Leases: hits of hot keys that a replica reserves in Redis ahead of time and spends in memory.
//!
//! [`LeasedStore`] is Redis with leases in front of it. A request whose leases have room is decided at once; every
//! other request is counted by Redis as if there were no leases. Hits are taken and returned in the background. So
//! counters, keys and expiries are those of exact counting, a counter includes the hits leased from it, and no more
//! than the limit is admitted. `rule` decides how much to lease, `table` holds the leases. docs/reference/leases.md describes the
//! guarantee.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

mod cold;
#[expect(clippy::indexing_slicing, reason = "the lists of a draft have an item for each check of its batch")]
mod decide;
mod table;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use net::edges::Edges;
use tokio::sync::Notify;

use clock::Time;
use counters::{
    Applied, Batch, Check, Closing, Count, HoldAccount, KeepHolds, ListingFuture, Operate, Report, Resets,
    StoreFuture, SweepFuture,
};
use faults::panics::{self, Boundary, Panicked, caught};
use limit::lease::Snapshot;
use metrics::{LeaseState, LeaseUsage, PoolUsage};
use redis_store::{LeaseReply, RedisStore};
use smallvec::SmallVec;
use table::{Command, Commands, Leases, Renewal};

/// The interval between visits: a fraction of the shortest time after which hits are returned.
const TICK: Duration = Duration::from_millis(5);

/// A renewal that takes longer was delayed by a stall, and does not predict the next one.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(50);

/// The numbers of grants begin below this, so that Lua's numbers are exact.
const FIRST_GRANTS: u64 = 1 << 52;

/// The deadline for returning hits at shutdown.
const LAST_REPLIES: Duration = Duration::from_millis(500);

pub struct LeasedStore(Arc<Shared>);

struct Shared {
    redis: RedisStore,
    leases: Leases,
    is_used: AtomicBool,
    /// The service is shutting down: no more hits are leased.
    is_closing: AtomicBool,
    is_maintained: AtomicBool,
    /// Wakes the worker when there is a new lease.
    leased: Notify,
}

impl LeasedStore {
    /// A store that leases hits of at most this many keys.
    pub fn new(redis: RedisStore, max_keys: usize) -> Self {
        Self(Arc::new(Shared {
            leases: Leases::new(max_keys, &*redis.edges().random),
            redis,
            is_used: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_maintained: AtomicBool::new(false),
            leased: Notify::new(),
        }))
    }
}

impl Count for LeasedStore {
    fn try_apply(&self, batch: &mut Batch, now: Time) -> Applied {
        // Holds and what is counted with them go to Redis together.
        if batch.may_hold() { Applied::Wait } else { self.0.try_apply(batch, now) }
    }

    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        if !batch.may_hold() && batch.checks().iter().any(|check| check.limit.is_leased()) {
            self.0.apply(batch, now)
        } else {
            self.0.redis.apply(batch, now)
        }
    }

    fn known(&self, check: &Check, now: Time) -> Option<u64> {
        let hit = Shared::hit(check, now)?;
        self.0.leases.with(hit.key, hit.start, |lease| lease.counter())?
    }
}

impl KeepHolds for LeasedStore {
    fn slots_of_holds(&self, batch: &Batch) -> SmallVec<[u16; 2]> {
        self.0.redis.slots_of_holds(batch)
    }

    fn close_holds<'a>(&'a self, closing: &'a mut Closing, now: Time) -> StoreFuture<'a> {
        self.0.redis.close_holds(closing, now)
    }

    fn open_holds(&self) -> u64 {
        self.0.redis.open_holds()
    }

    fn sweep_holds<'a>(&'a self, account: &'a HoldAccount, now: Time) -> SweepFuture<'a> {
        self.0.redis.sweep_holds(account, now)
    }

    fn list_holds<'a>(&'a self, batch: &'a Batch, most: usize, now: Time) -> ListingFuture<'a> {
        self.0.redis.list_holds(batch, most, now)
    }
}

impl Operate for LeasedStore {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.0.redis.reset(batch, now)
    }

    fn forget(&self, resets: &Resets) {
        if self.0.leases.len() == 0 {
            return;
        }
        match resets {
            Resets::Of(full_keys) => {
                for key in full_keys {
                    self.0.leases.forget(key, &self.0.redis.names(key));
                }
            }
            // All hits are returned, except to counters that were reset: their grants are deleted with them.
            Resets::Unknown => {
                let mut commands = Commands::new();
                self.0.leases.distrust(&mut commands);
                self.0.send(commands, self.0.edges().clock.now());
            }
        }
    }

    fn read_again(&self, refunds: &Resets) {
        if let (Resets::Of(full_keys), true) = (refunds, self.0.leases.len() > 0) {
            for key in full_keys {
                self.0.leases.read_again(key, &self.0.redis.names(key));
            }
        }
    }

    fn start_worker(&self) {
        self.0.redis.start_worker();
        if !self.0.is_maintained.swap(true, Relaxed) {
            let shared = self.0.clone();
            self.0.edges().start(async move {
                loop {
                    let Err(Panicked) = caught(Boundary::Leases, shared.maintain()).await;
                    net::restart::pause().await;
                }
            });
        }
    }

    fn rules_changed(&self, hold: bool) {
        self.0.redis.rules_changed(hold);
    }

    fn maintain(&self, now: Time) {
        self.0.redis.maintain(now);
        self.0.leases.sweep(now);
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.close())
    }
}

impl Report for LeasedStore {
    fn is_reachable(&self) -> bool {
        self.0.redis.is_reachable()
    }

    fn is_usable(&self) -> bool {
        self.0.redis.is_usable()
    }

    fn pools(&self) -> Vec<PoolUsage> {
        self.0.redis.pools()
    }

    fn leases(&self) -> Option<LeaseUsage<'_>> {
        self.0.is_used.load(Relaxed).then(|| self.0.leases.usage())
    }

    fn top_leases(&self, count: usize, now: Time) -> Vec<LeaseState> {
        self.0.leases.top(count, now)
    }
}

impl Shared {
    fn edges(&self) -> &Edges {
        self.redis.edges()
    }

    /// Sends commands to Redis in the background.
    fn send(self: &Arc<Self>, commands: Commands, now: Time) {
        for command in commands {
            match command {
                Command::Renew(renewal) => self.renew(renewal, now),
                // The reply changes nothing: hits that may have been returned are never returned again.
                Command::Return { counter, hits, own, receipt } => {
                    drop(self.redis.return_hits(&counter, hits, own, receipt));
                }
            }
        }
    }

    /// Leases more hits, in the pipeline of the request that found the lease low.
    fn renew(self: &Arc<Self>, renewal: Renewal, now: Time) {
        let counter = &renewal.counter;
        let start = self.edges().timer.now();
        // 0 is for none.
        let first = self.edges().random.below(FIRST_GRANTS).max(1);
        let snapshot = self.leases.with(renewal.key, renewal.start, |lease| lease.send_renewal(first));
        let sent = snapshot.filter(|_| !self.is_closing.load(Relaxed)).and_then(|snapshot| {
            let receipt = self.leases.receipt(counter.limit.fixed(), snapshot.grants);
            self.redis.lease(counter, renewal.hits, receipt, now)
        });
        match (sent, snapshot, self.edges().spawn.here()) {
            (Some(reply), Some(snapshot), Some(here)) => {
                let shared = self.clone();
                here(Box::pin(async move { shared.renewed(reply, &renewal, snapshot, start).await }));
            }
            _ => self.leases.renewal_lost(&renewal),
        }
    }

    async fn renewed(&self, reply: LeaseReply, renewal: &Renewal, snapshot: Snapshot, start: Instant) {
        match reply.wait().await {
            None => self.leases.renewal_lost(renewal),
            Some((after, grant)) => {
                let round_trip = self.edges().timer.now().duration_since(start).min(MAX_ROUND_TRIP);
                self.leases.add_round_trip(round_trip.as_secs_f64() * 1e6);
                self.leases.granted(renewal, snapshot, after, grant, self.edges().clock.now());
            }
        }
    }

    async fn maintain(self: &Arc<Self>) -> Infallible {
        loop {
            if self.leases.len() == 0 {
                self.leased.notified().await;
            }
            self.edges().timer.sleep(TICK).await;
            panics::point("lease_tend");
            let mut commands = Commands::new();
            let now = self.edges().clock.now();
            self.leases.visit(now, &mut commands);
            self.send(commands, now);
        }
    }

    /// Returns all hits. Renewals in flight are granted in the meantime, so it is done twice.
    async fn close(self: &Arc<Self>) {
        self.is_closing.store(true, Relaxed);
        for _ in 0..2 {
            let mut commands = Commands::new();
            self.leases.end(&mut commands);
            let replies = commands.into_iter().filter_map(|command| match command {
                Command::Return { counter, hits, own, receipt } => {
                    self.redis.return_hits(&counter, hits, own, receipt)
                }
                Command::Renew(_) => None,
            });
            // All are sent before the first reply is waited for.
            let replies: Vec<LeaseReply> = replies.collect();
            let all = async {
                for reply in replies {
                    let _ = reply.wait().await;
                }
            };
            let _ = self.edges().timer.timeout(LAST_REPLIES, all).await;
            self.edges().timer.sleep(TICK).await;
        }
    }
}
