//! Leases: hits of hot keys that a replica takes from Redis ahead of time and spends in memory.
//!
//! [`LeasedStore`] is Redis with leases in front of it. A request whose leases have room is decided at once; every
//! other request is counted by Redis as if there were no leases. Hits are asked for and given back in the background. So
//! counters, keys and expiries are those of exact counting, a counter includes what is leased from it, and no more is
//! admitted than the limit. `rule` decides how much to lease, `table` holds the leases. docs/leases.md has the promise.

mod decide;
mod rule;
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

use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    Applied, Batch, LeaseState, LeaseUsage, PoolUsage, Resets, Store,
    redis::{LeaseReply, Leased, RedisStore},
};
use crate::{
    clock::{Clock, SystemClock, Time},
    panics::{self, Boundary, Panicked, caught},
    rules::RuleSet,
};
use rule::Asked;
use table::{Leases, Renewal, Work, Works};

/// Leases are looked at so often: a fraction of the shortest time after which one is given back.
const TICK: Duration = Duration::from_millis(5);

/// At the end, leases are given back within this time or not at all.
const LAST_REPLIES: Duration = Duration::from_millis(500);

/// Redis with leases in front of it.
pub struct LeasedStore(Arc<Shared>);

struct Shared {
    redis: RedisStore,
    leases: Leases,
    /// Some rule has leases, or a limit of a request did.
    is_used: AtomicBool,
    /// The service is about to end: nothing is leased any more.
    is_closing: AtomicBool,
    /// A thread looks after the leases.
    is_tended: AtomicBool,
    /// Wakes it when there is a lease.
    work: Notify,
}

impl LeasedStore {
    /// A store that leases hits of at most so many keys.
    #[must_use]
    pub fn new(redis: RedisStore, max_keys: usize) -> Self {
        Self(Arc::new(Shared {
            redis,
            leases: Leases::new(max_keys),
            is_used: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_tended: AtomicBool::new(false),
            work: Notify::new(),
        }))
    }
}

impl Store for LeasedStore {
    fn apply<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        if batch.checks().iter().any(|check| check.limit.is_leased()) {
            self.0.apply(batch, now)
        } else {
            self.0.redis.apply(batch, now)
        }
    }

    fn reset<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        self.0.redis.reset(batch, now)
    }

    fn forget(&self, resets: &Resets) {
        if self.0.leases.len() == 0 {
            return;
        }
        match resets {
            Resets::Of(full_keys) => {
                self.0.leases.forget(&full_keys.iter().flat_map(|key| self.0.redis.names(key)).collect());
            }
            // All are given back, except to counters that have fewer hits than this replica has added.
            Resets::Unknown => {
                let mut works = Works::new();
                self.0.leases.end(&mut works);
                self.0.send(works, SystemClock.now());
            }
        }
    }

    fn may_answer_now(&self) -> bool {
        self.0.leases.len() > 0
    }

    fn apply_now(&self, batch: &mut Batch<'_>, now: Time) -> bool {
        self.0.apply_now(batch, now)
    }

    fn start_worker(&self) {
        self.0.redis.start_worker();
        if !self.0.is_tended.swap(true, Relaxed) {
            let shared = self.0.clone();
            tokio::spawn(async move {
                loop {
                    let Err(Panicked) = caught(Boundary::Leases, shared.tend()).await;
                    panics::pause().await;
                }
            });
        }
    }

    fn rules_changed(&self, rules: &RuleSet) {
        self.0.redis.rules_changed(rules);
    }

    fn maintain(&self, now: Time) {
        self.0.redis.maintain(now);
        self.0.leases.sweep(now);
    }

    fn is_reachable(&self) -> bool {
        self.0.redis.is_reachable()
    }

    fn pools(&self) -> Vec<PoolUsage> {
        self.0.redis.pools()
    }

    fn leases(&self) -> Option<LeaseUsage> {
        self.0.is_used.load(Relaxed).then(|| self.0.leases.usage())
    }

    fn top_leases(&self, count: usize, now: Time) -> Vec<LeaseState> {
        self.0.leases.top(count, now)
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.close())
    }
}

impl Shared {
    /// Sends what leases need to Redis.
    fn send(self: &Arc<Self>, works: Works, now: Time) {
        for work in works {
            match work {
                Work::Renew(renewal) => self.renew(renewal, now),
                // Its reply changes nothing: hits that may have been given back are never given back again.
                Work::GiveBack(back) => {
                    drop(self.redis.give_back(&back.name, back.is_per_second, back.hits, back.own));
                }
            }
        }
    }

    /// Asks for hits ahead of time, in the pipeline of the request that found the lease low.
    fn renew(self: &Arc<Self>, renewal: Renewal, now: Time) {
        let counter = &renewal.counter;
        let leased =
            Leased { name: &counter.name, is_per_second: counter.is_per_second, limit: &counter.limit };
        let start = Instant::now();
        let (key, begin) = (renewal.key, renewal.start);
        let asked = self.leases.with(key, begin, &counter.limit, |lease, _| lease.ask_ahead());
        let sent = if self.is_closing.load(Relaxed) {
            None
        } else {
            self.redis.lease(&leased, renewal.hits, now).ok()
        };
        match (sent, asked, Handle::try_current()) {
            (Some(reply), Some(asked), Ok(runtime)) => {
                let shared = self.clone();
                runtime.spawn(async move { shared.renewed(reply, &renewal, asked, start).await });
            }
            _ => self.leases.lost(&renewal),
        }
        self.work.notify_one();
    }

    async fn renewed(&self, reply: LeaseReply, renewal: &Renewal, asked: Asked, start: Instant) {
        match reply.wait().await {
            None => self.leases.lost(renewal),
            Some((after, is_granted)) => {
                self.leases.add_round_trip(start.elapsed().as_secs_f64() * 1e6);
                self.leases.granted(renewal, asked, after, is_granted, SystemClock.now());
            }
        }
    }

    /// Looks after the leases as long as the thread lives.
    async fn tend(self: &Arc<Self>) -> Infallible {
        loop {
            if self.leases.len() == 0 {
                self.work.notified().await;
            }
            sleep(TICK).await;
            panics::point("lease_tend");
            let (mut works, now) = (Works::new(), SystemClock.now());
            self.leases.tend(now, &mut works);
            self.send(works, now);
        }
    }

    /// Gives everything back. Hits that were asked for come while the first ones are given back, so it is done twice.
    async fn close(self: &Arc<Self>) {
        self.is_closing.store(true, Relaxed);
        for _ in 0..2 {
            let mut works = Works::new();
            self.leases.end(&mut works);
            let replies: SmallVec<[LeaseReply; 4]> = works
                .into_iter()
                .filter_map(|work| match work {
                    Work::GiveBack(back) => {
                        self.redis.give_back(&back.name, back.is_per_second, back.hits, back.own).ok()
                    }
                    Work::Renew(_) => None,
                })
                .collect();
            let all = async {
                for reply in replies {
                    let _ = reply.wait().await;
                }
            };
            let _ = timeout(LAST_REPLIES, all).await;
            sleep(TICK).await;
        }
    }
}
