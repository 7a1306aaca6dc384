//! Counters in Redis, shared by all replicas, and by replicas of the Go service.
//!
//! Reading order: a request's checks are `route`d, each to a connection of the `pool` that owns its `name`; a
//! connection is one connection and what waits for it, and makes a `pipeline` of it: one pipeline. `backend` is what a
//! connection has to know of Redis. `permissions` checks what the user may do, `script` holds what runs on the server, `seen` knows which keys expire,
//! `topology` knows whom to ask. `wire` greets a server, `resp` is its language, `failure` is for when it goes
//! wrong.

mod backend;
mod failure;
mod name;
mod permissions;
mod pipeline;
mod pool;
mod resp;
mod route;
mod script;
mod tls;
mod topology;
mod ttl_cache;
mod wire;

use std::sync::Arc;

use super::{Applied, Batch, Counting, PoolUsage, Store};
use crate::{
    clock::Time,
    rules::{Limit, Limits, RuleSet, Unit},
    settings::redis::{Redis, RedisPool},
};
use crate::{net::random, store::remote::WorkerIndexes};
use permissions::Needs;
use pool::Pool;

/// Redis as a store.
pub struct RedisStore {
    main: Arc<Pool>,
    /// Where the counters of limits per second are, when they are kept apart.
    per_second: Option<Arc<Pool>>,
    workers: WorkerIndexes,
}

impl RedisStore {
    /// A store that so many threads will attend, of keys that begin with this prefix. Keys live up to `jitter` seconds longer than needed.
    ///
    /// # Errors
    /// All that is wrong with the files that the settings name.
    pub fn new(settings: &Redis, key_prefix: &str, jitter: u64, threads: usize) -> Result<Self, Vec<String>> {
        let pool =
            |pool: &RedisPool| Pool::new(pool, settings.startup, key_prefix, jitter, threads).map(Arc::new);
        let main = pool(&settings.main);
        let per_second = settings.per_second.as_ref().map(pool).transpose();
        match (main, per_second) {
            (Ok(main), Ok(per_second)) => Ok(Self { main, per_second, workers: WorkerIndexes::default() }),
            (main, per_second) => {
                let mut problems: Vec<String> =
                    main.err().into_iter().chain(per_second.err()).flatten().collect();
                problems.dedup();
                Err(problems)
            }
        }
    }

    /// Begins to watch for changes of the servers; once, within a runtime that lives as long as the
    /// service.
    pub fn watch(&self) {
        self.pools().for_each(Pool::watch);
    }

    fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        [Some(&self.main), self.per_second.as_ref()].into_iter().flatten()
    }
}

impl Store for RedisStore {
    fn rules_changed(&self, rules: &RuleSet) {
        let apart = self.per_second.as_ref();
        let is_apart = |limits: &Limits, limit: &Limit| {
            !limits.are_several() && limit.unit == Unit::Second && apart.is_some()
        };
        self.main.need(Needs::of(rules, |limits, limit| !is_apart(limits, limit)));
        if let Some(apart) = apart {
            apart.need(Needs::of(rules, is_apart));
        }
    }

    fn apply<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        match batch.counting {
            Counting::StopWhenOver => Applied::Later(Box::pin(self.count_unless_over(batch, now))),
            Counting::Always | Counting::Look => self.count(batch, now),
        }
    }

    fn start_worker(&self) {
        let worker = self.workers.take();
        self.pools().for_each(|pool| pool.servers.start_worker(worker));
    }

    fn maintain(&self, now: Time) {
        self.pools().for_each(|pool| pool.backend().seen.sweep(now));
    }

    fn is_reachable(&self) -> bool {
        self.pools().all(|pool| pool.servers.is_reachable())
    }

    fn pools(&self) -> Vec<PoolUsage> {
        let main = self.main.usage(false);
        std::iter::once(main).chain(self.per_second.iter().map(|pool| pool.usage(true))).collect()
    }
}

/// An answer of Redis.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_resp(bytes: &[u8]) {
    resp::fuzz(bytes);
}
