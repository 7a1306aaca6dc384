//! What stores tell of themselves: how full they are, and how their connections fare.

use crate::store::table::Usage;

/// Servers of counters that are told apart in the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    /// The Redis that holds all counters, or all but those of limits per second.
    #[default]
    Redis,
    /// The Redis that holds the counters of limits per second alone.
    RedisPerSecond,
    /// All servers of memcached together.
    Memcached,
}

/// How the connections to one Redis fare, or to the servers of memcached.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolUsage {
    /// Whose they are.
    pub kind: StoreKind,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that this side closed.
    pub closed: u64,
    /// Connections that took the place of a lost one.
    pub reconnects: u64,
    /// Connections that are given up for now: nothing is asked of them until a probe is answered in time.
    pub breakers_open: u64,
    /// Checks that wait.
    pub queued: u64,
    /// Checks that may wait.
    pub max_queued: u64,
    /// Checks that may be outstanding, queued and sent together: what the servers are measured to answer in time.
    pub max_outstanding: u64,
    /// Checks that were not sent, by reason: `overloaded` were refused at once, `late` had waited too long.
    pub shed: [(&'static str, u64); 2],
    /// Failures by kind, every kind.
    pub errors: Vec<(&'static str, u64)>,
    /// Commands that the server refuses to run, and how often it did.
    pub denied: Vec<(&'static str, u64)>,
    /// Keys that were counted and have got no expiry.
    pub without_expiry: u64,
    /// Seconds from sending a pipeline to its last answer.
    pub operation_time: Distribution,
    /// Checks that one pipeline carried.
    pub batch_size: Distribution,
}

/// How many values were at most so large.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Distribution {
    /// A bound, and how many values lie within it.
    pub buckets: Vec<(f64, u64)>,
    /// How many values there were.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

/// How full a store in this process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreUsage {
    /// What is held, and what has gone.
    pub held: Usage,
    /// The bound on keys.
    pub max_keys: usize,
}
