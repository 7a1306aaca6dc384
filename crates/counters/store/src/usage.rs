//! Metrics of stores: usage and connections.

use std::sync::Arc;

use crate::table::Usage;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    #[default]
    Redis,
    /// The Redis for limits per second.
    RedisPerSecond,
    Memcached,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolUsage {
    pub kind: StoreKind,
    pub connections: u64,
    pub opened: u64,
    pub closed: u64,
    pub reconnects: u64,
    /// Connections whose breaker is open: they are unused until a probe succeeds.
    pub breakers_open: u64,
    pub queued: u64,
    pub max_queued: u64,
    /// Bound on outstanding checks, queued and in flight: the number that the servers answer in time, as measured.
    pub max_outstanding: u64,
    /// Checks that were not sent: `overloaded` failed at once, `late` waited too long.
    pub shed: [(&'static str, u64); 2],
    pub errors: Vec<(&'static str, u64)>,
    /// The last failure of a server: its address, what was seen, and advice.
    pub last_error: Option<Arc<str>>,
    /// Commands that the server denied, and how often.
    pub denied: Vec<(&'static str, u64)>,
    /// Counted keys without an expiry.
    pub without_expiry: u64,
    /// Seconds from sending a pipeline to its last reply.
    pub operation_time: Distribution,
    pub batch_size: Distribution,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseUsage {
    pub keys: u64,
    pub max_keys: u64,
    /// Unspent hits in leases.
    pub held: u64,
    /// Requests on a key that a lease decided.
    pub hits: u64,
    pub grants: u64,
    pub granted: u64,
    /// Renewals that the store did not grant, or whose reply was lost.
    pub ungranted: u64,
    pub returned: u64,
    /// Hits that were unspent at the end of their window, or lost with the counter.
    pub expired: u64,
    /// Requests on a key that waited for the store.
    pub waits: u64,
    pub evicted: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct LeaseState {
    pub key: Box<str>,
    pub limit: u64,
    pub left: u64,
    /// The counter by the last reply.
    pub counter: Option<u64>,
    pub requests_per_second: f64,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Distribution {
    /// Upper bounds, each with the number of values up to it.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreUsage {
    /// Keys held, expired and evicted.
    pub held: Usage,
    pub max_keys: usize,
}
