//! Metrics of stores: usage and connections.

use crate::store::table::Usage;

/// The networked stores, as metrics distinguish them.
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
    /// Connections whose breaker is open: they are not used until a probe is answered in time.
    pub breakers_open: u64,
    /// Queued checks.
    pub queued: u64,
    /// Bound on queued checks.
    pub max_queued: u64,
    /// Bound on outstanding checks, queued and in flight: what the servers are measured to answer in time.
    pub max_outstanding: u64,
    /// Checks that were not sent: `overloaded` were refused at once, `late` waited too long.
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

/// What leases did since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseUsage {
    /// Keys that hits are leased of.
    pub keys: u64,
    /// The bound on keys.
    pub max_keys: u64,
    /// Hits in leases that are not spent.
    pub held: u64,
    /// Requests on a key that a lease decided.
    pub hits: u64,
    /// Requests for hits ahead of time that the store granted.
    pub grants: u64,
    /// Hits that it granted.
    pub granted: u64,
    /// Requests that it did not grant, or whose reply was lost.
    pub ungranted: u64,
    /// Hits given back.
    pub returned: u64,
    /// Hits that were not spent before their window ended, or were lost with the counter.
    pub expired: u64,
    /// Requests on a key that waited for the store.
    pub waits: u64,
    /// Leases that left because there were too many.
    pub evicted: u64,
}

/// The lease of a key.
#[derive(Clone, PartialEq, Debug)]
pub struct LeaseState {
    /// The counter's key.
    pub key: Box<str>,
    /// The limit.
    pub limit: u32,
    /// Hits that are not spent.
    pub left: u64,
    /// The counter by the last reply.
    pub counter: Option<u64>,
    /// This replica's requests per second.
    pub requests_per_second: f64,
}

/// A histogram.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Distribution {
    /// Bounds, and the number of values up to each.
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
