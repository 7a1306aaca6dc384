//! The samples of the stores: connections, leases, and counters in memory.

use crate::{LeaseUsage, PoolUsage, StoreKind, StoreUsage};

use super::{names, page::Samples};

impl Samples<'_> {
    /// The connections to each Redis, or to all servers of memcached.
    pub fn pools(&mut self, pools: &[PoolUsage]) {
        let (of_memcached, of_redis): (Vec<_>, Vec<_>) =
            pools.iter().partition(|pool| pool.kind == StoreKind::Memcached);
        redis(self, &of_redis);
        for pool in of_memcached {
            memcached(self, pool);
        }
    }

    pub fn leases(&mut self, leases: &LeaseUsage) {
        self.value(&names::LEASE_KEYS, leases.keys);
        self.value(&names::LEASE_KEYS_MAX, leases.max_keys);
        self.value(&names::LEASE_HELD, leases.held);
        self.value(&names::LEASE_HITS, leases.hits);
        self.value(&names::LEASE_WAITS, leases.waits);
        let grants = [(["granted"], leases.grants), (["refused"], leases.ungranted)];
        self.values(&names::LEASE_GRANTS, grants);
        self.value(&names::LEASE_GRANTED, leases.granted);
        self.value(&names::LEASE_RETURNED, leases.returned);
        self.value(&names::LEASE_EXPIRED, leases.expired);
        self.value(&names::LEASE_EVICTIONS, leases.evicted);
    }

    pub fn store(&mut self, StoreUsage { held, max_keys }: &StoreUsage) {
        self.value(&names::STORE_KEYS, held.entries as u64);
        self.value(&names::STORE_KEYS_MAX, *max_keys as u64);
        self.value(&names::STORE_BYTES, held.bytes as u64);
        let within = held.evicted - held.evicted_over;
        let evicted = [("within_limit", within), ("over_limit", held.evicted_over)];
        self.values(&names::STORE_EVICTIONS, evicted.map(|(counter, n)| ([counter], n)));
        self.value(&names::STORE_EXPIRED, held.expired);
    }
}

/// The metrics that the Go service names after each Redis, then those with the label `pool`.
fn redis(samples: &mut Samples<'_>, pools: &[&PoolUsage]) {
    let is_per_second = |pool: &PoolUsage| pool.kind == StoreKind::RedisPerSecond;
    for pool in pools {
        let [active, total, local_close] = if is_per_second(pool) {
            [names::PER_SECOND_POOL_ACTIVE, names::PER_SECOND_POOL_TOTAL, names::PER_SECOND_POOL_LOCAL_CLOSE]
        } else {
            [names::POOL_ACTIVE, names::POOL_TOTAL, names::POOL_LOCAL_CLOSE]
        };
        samples.value(&active, pool.connections);
        samples.value(&total, pool.opened);
        samples.value(&local_close, pool.closed);
    }
    let name = |pool: &PoolUsage| if is_per_second(pool) { "per_second" } else { "main" };
    for (metric, value) in [
        (names::REDIS_RECONNECTS, (|pool| pool.reconnects) as fn(&PoolUsage) -> u64),
        (names::REDIS_BREAKERS_OPEN, |pool| pool.breakers_open),
        (names::REDIS_QUEUED, |pool| pool.queued),
        (names::REDIS_QUEUED_MAX, |pool| pool.max_queued),
        (names::REDIS_OUTSTANDING_MAX, |pool| pool.max_outstanding),
    ] {
        samples.values(&metric, pools.iter().map(|pool| ([name(pool)], value(pool))));
    }
    let shed = pools.iter().flat_map(|pool| pool.shed.iter().map(|(reason, n)| ([name(pool), *reason], *n)));
    samples.values(&names::REDIS_SHED, shed);
    let errors = pools.iter().flat_map(|pool| pool.errors.iter().map(|(kind, n)| ([name(pool), *kind], *n)));
    samples.values(&names::REDIS_ERRORS, errors);
    let denied =
        pools.iter().flat_map(|pool| pool.denied.iter().map(|(command, n)| ([name(pool), *command], *n)));
    samples.values(&names::REDIS_COMMAND_DENIED, denied);
    let lost = pools.iter().map(|pool| ([name(pool)], pool.without_expiry));
    samples.values(&names::REDIS_WITHOUT_EXPIRY, lost);
    let times = pools.iter().map(|pool| ([name(pool)], &pool.operation_time));
    samples.values(&names::REDIS_OPERATION_TIME, times);
    let sizes = pools.iter().map(|pool| ([name(pool)], &pool.batch_size));
    samples.values(&names::REDIS_BATCH_CHECKS, sizes);
}

fn memcached(samples: &mut Samples<'_>, pool: &PoolUsage) {
    samples.value(&names::MEMCACHED_CONNECTIONS, pool.connections);
    samples.value(&names::MEMCACHED_CONNECTIONS_OPENED, pool.opened);
    samples.value(&names::MEMCACHED_RECONNECTS, pool.reconnects);
    samples.value(&names::MEMCACHED_BREAKERS_OPEN, pool.breakers_open);
    samples.value(&names::MEMCACHED_QUEUED, pool.queued);
    samples.value(&names::MEMCACHED_QUEUED_MAX, pool.max_queued);
    samples.value(&names::MEMCACHED_OUTSTANDING_MAX, pool.max_outstanding);
    samples.values(&names::MEMCACHED_SHED, pool.shed.iter().map(|(reason, n)| ([*reason], *n)));
    samples.values(&names::MEMCACHED_ERRORS, pool.errors.iter().map(|(kind, n)| ([*kind], *n)));
    samples.values(&names::MEMCACHED_OPERATION_TIME, [([], &pool.operation_time)]);
    samples.values(&names::MEMCACHED_BATCH_CHECKS, [([], &pool.batch_size)]);
}
