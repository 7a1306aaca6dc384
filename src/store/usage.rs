//! Metrics of stores: usage and connections.

use crate::store::table::Usage;

/// A networked store in metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    /// The main Redis.
    #[default]
    Redis,
    /// The Redis for limits per second.
    RedisPerSecond,
    /// All memcached servers.
    Memcached,
}

/// The connections to one store.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolUsage {
    /// The store.
    pub kind: StoreKind,
    /// Open connections.
    pub connections: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections closed by this side.
    pub closed: u64,
    /// Connections reopened.
    pub reconnects: u64,
    /// Connections whose breaker is open: they are unused until a probe succeeds.
    pub breakers_open: u64,
    /// Queued checks.
    pub queued: u64,
    /// Bound on queued checks.
    pub max_queued: u64,
    /// Bound on outstanding checks, queued and in flight: the number that the servers answer in time, as measured.
    pub max_outstanding: u64,
    /// Checks that were not sent: `overloaded` failed at once, `late` waited too long.
    pub shed: [(&'static str, u64); 2],
    /// Failures by kind.
    pub errors: Vec<(&'static str, u64)>,
    /// Commands that the server denied, and how often.
    pub denied: Vec<(&'static str, u64)>,
    /// Counted keys without an expiry.
    pub without_expiry: u64,
    /// Seconds from sending a pipeline to its last reply.
    pub operation_time: Distribution,
    /// Checks per pipeline.
    pub batch_size: Distribution,
}

/// The usage of leases since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseUsage {
    /// Keys with a lease.
    pub keys: u64,
    /// The bound on keys.
    pub max_keys: u64,
    /// Unspent hits in leases.
    pub held: u64,
    /// Requests on a key that a lease decided.
    pub hits: u64,
    /// Renewals that the store granted.
    pub grants: u64,
    /// Hits that the store granted.
    pub granted: u64,
    /// Renewals that the store did not grant, or whose reply was lost.
    pub ungranted: u64,
    /// Hits returned to the store.
    pub returned: u64,
    /// Hits that were unspent at the end of their window, or lost with the counter.
    pub expired: u64,
    /// Requests on a key that waited for the store.
    pub waits: u64,
    /// Leases evicted because of the bound.
    pub evicted: u64,
}

/// The lease of a key.
#[derive(Clone, PartialEq, Debug)]
pub struct LeaseState {
    /// The counter's key.
    pub key: Box<str>,
    /// The limit.
    pub limit: u32,
    /// Unspent hits.
    pub left: u64,
    /// The counter by the last reply.
    pub counter: Option<u64>,
    /// This replica's requests per second.
    pub requests_per_second: f64,
}

/// A histogram.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Distribution {
    /// Upper bounds, each with the number of values up to it.
    pub buckets: Vec<(f64, u64)>,
    /// The number of values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

/// The usage of a store in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreUsage {
    /// Keys held, expired and evicted.
    pub held: Usage,
    /// The bound on keys.
    pub max_keys: usize,
}
