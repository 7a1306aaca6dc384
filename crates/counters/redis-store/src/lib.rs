//! Counters in Redis, shared by all replicas and by replicas of the Go service.
//!
//! In reading order: `route` sends a request's checks to the connections of the `pool` that own their keys (`name`), as
//! commands of a `pipeline`; `lease` does so for hits that leases take and return, `holds` for holds. `backend` implements
//! the shared connection's `Backend`. `permissions` recognizes what the user may not do, `write_check` whether servers accept
//! writes, `script` has the Lua scripts, `ttl_cache` the keys with an expiry, `topology` the owners of keys. `dialer` opens
//! connections, `login` has their credentials, `resp` is the protocol, `failure` classifies errors. `command_pool` is for all
//! other commands, which the `redis` crate writes and whose values it reads, over connections of the same kind that
//! `deadpool` pools (`links`), and for the `messages` of a channel.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

mod backend;
mod command_pool;
mod dialer;
mod failure;
mod holds;
mod lease;
mod links;
mod login;
mod messages;
mod name;
mod permissions;
mod pipeline;
mod pool;
mod resp;
mod route;
mod script;
pub mod settings;
mod topology;
mod ttl_cache;
mod write_check;

use std::sync::Arc;

use crate::settings::{Redis, RedisPool};
use clock::Time;
pub use command_pool::{CommandFailure, CommandPool};
use counters::{Batch, Count, Counting, MostHolds, Operate, Report, StoreFuture};
use holds::UsedSlots;
pub use lease::{LeaseReply, LeasedCounter};
pub use messages::{End, MAX_MESSAGE, Messages};
use metrics::{PoolUsage, StoreKind};
use net::edges::Edges;
pub use pipeline::Receipt;
use pool::Pool;
#[cfg(any(test, feature = "testing"))]
pub use resp::fuzz as fuzz_resp;
pub use script::Script;
use wire::WorkerIndexes;

pub struct RedisStore {
    main: Arc<Pool>,
    /// The Redis for limits per second, if configured.
    per_second: Option<Arc<Pool>>,
    most_holds: MostHolds,
    used_slots: UsedSlots,
    workers: WorkerIndexes,
}

impl RedisStore {
    /// A store for this many worker threads, with keys that begin with `key_prefix`. Keys expire up to `jitter` seconds
    /// late.
    pub fn new(
        settings: &Redis,
        key_prefix: &str,
        jitter: u64,
        threads: usize,
        edges: &Edges,
    ) -> Result<Self, Vec<String>> {
        let pool =
            |pool: &RedisPool| Pool::new(pool, settings, key_prefix, jitter, threads, edges).map(Arc::new);
        let main = pool(&settings.main);
        let per_second = settings.per_second.as_ref().map(pool).transpose();
        match (main, per_second) {
            (Ok(main), Ok(per_second)) => {
                let most_holds = MostHolds::default();
                let used_slots = UsedSlots::default();
                Ok(Self { main, per_second, most_holds, used_slots, workers: WorkerIndexes::default() })
            }
            (main, per_second) => {
                let problems = main.err().into_iter().chain(per_second.err());
                let mut problems: Vec<String> = problems.flatten().collect();
                problems.dedup();
                Err(problems)
            }
        }
    }

    /// The same store with other bounds of holds.
    pub fn holding(self, most_holds: MostHolds) -> Self {
        Self { most_holds, ..self }
    }

    /// Starts to watch for changes of the servers. Called once, within a runtime that lives as long as the service.
    pub fn watch(&self) {
        self.pools().for_each(Pool::watch);
    }

    /// Connections to the Redis of the counters for everything but counting, for the runtime of one thread.
    pub fn command_pool(&self) -> CommandPool {
        self.main.commands.separate()
    }

    pub fn edges(&self) -> &Edges {
        &self.main.servers.shared.edges
    }

    fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        [Some(&self.main), self.per_second.as_ref()].into_iter().flatten()
    }
}

impl Count for RedisStore {
    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        if batch.has_open_holds() {
            return Box::pin(self.count_and_hold(batch, now));
        }
        match batch.counting_if(batch.is_known_refused()) {
            Counting::StopWhenOver => Box::pin(self.count_unless_over(batch, now)),
            counting => self.count(batch, counting, now),
        }
    }
}

impl Operate for RedisStore {
    fn rules_changed(&self, hold: bool) {
        if hold {
            self.used_slots.look_into(self.main.slots_of_holds());
        }
    }

    fn reset<'a>(&'a self, batch: &'a mut Batch, _now: Time) -> StoreFuture<'a> {
        Box::pin(async move {
            for check in batch.checks() {
                if check.hold.is_none() {
                    self.pool(check).delete(batch, check).await?;
                } else {
                    self.reset_holding(batch, check).await?;
                }
            }
            Ok(())
        })
    }

    fn start_worker(&self) {
        let worker = self.workers.take();
        self.pools().for_each(|pool| pool.servers.start_worker(worker));
    }

    fn maintain(&self, now: Time) {
        self.pools().for_each(|pool| {
            pool.backend().ttl_cache.sweep(now);
            pool.check_writes();
            pool.servers.probe_idle();
        });
    }
}

impl Report for RedisStore {
    fn is_reachable(&self) -> bool {
        self.pools().all(|pool| pool.servers.is_reachable())
    }

    fn is_usable(&self) -> bool {
        self.is_reachable() && self.pools().all(|pool| pool.accepts_writes())
    }

    fn pools(&self) -> Vec<PoolUsage> {
        let kinds = [StoreKind::Redis, StoreKind::RedisPerSecond];
        self.pools().zip(kinds).map(|(pool, kind)| pool.servers.usage(kind)).collect()
    }
}
