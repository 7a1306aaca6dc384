//! What stores and the log report: usage and connections.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

static LOG_LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

/// The number of lines of the log dropped since the start.
pub fn log_lines_dropped() -> u64 {
    LOG_LINES_DROPPED.load(Relaxed)
}

pub fn count_dropped_log_lines(lines: usize) {
    LOG_LINES_DROPPED.fetch_add(lines as u64, Relaxed);
}

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
    /// Bound on checks in flight: lower while a server is slow.
    pub max_outstanding: u64,
    /// Checks that were not sent: `overloaded` were held back for a slow server, of `late` no caller waited any more.
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
    /// Seconds by which workers were late to look for replies.
    pub worker_lateness: Distribution,
}

#[derive(Clone, Copy, Debug)]
pub struct LeaseUsage<'l> {
    pub keys: usize,
    pub max_keys: usize,
    /// Unspent hits in leases.
    pub held: u64,
    /// Requests on a key that a lease decided.
    pub hits: u64,
    pub counts: &'l LeaseCounts,
}

#[derive(Debug, Default)]
pub struct LeaseCounts {
    pub grants: AtomicU64,
    pub granted: AtomicU64,
    /// Renewals that the store did not grant, or whose reply was lost.
    pub ungranted: AtomicU64,
    pub returned: AtomicU64,
    /// Hits that were unspent at the end of their window, or lost with the counter.
    pub expired: AtomicU64,
    /// Requests on a key that waited for the store.
    pub waits: AtomicU64,
    pub evicted: AtomicU64,
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
    pub held: TableUsage,
    pub max_keys: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableUsage {
    /// States held, including expired ones that have not been removed.
    pub entries: usize,
    pub bytes: usize,
    pub expired: u64,
    /// Live states that made room for others.
    pub evicted: u64,
    /// Those of them that were over their limit.
    pub evicted_over: u64,
}

impl std::iter::Sum for TableUsage {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            entries: sum.entries + part.entries,
            bytes: sum.bytes + part.bytes,
            expired: sum.expired.wrapping_add(part.expired),
            evicted: sum.evicted.wrapping_add(part.evicted),
            evicted_over: sum.evicted_over.wrapping_add(part.evicted_over),
        })
    }
}

text::named! {
    /// The kinds of failure: the label `reason` of metrics, and a field of the dynamic metadata.
    pub enum FailureReason {
        Timeout = "timeout",
        QueueFull = "queue_full",
        /// The server is slow: a check was held back for longer than it could be answered in time.
        Overloaded = "overloaded",
        /// The caller's timeout passed while this process had no CPU for the request.
        WorkerLate = "worker_late",
        /// The breaker is open: the server failed before and has not recovered yet.
        Unavailable = "unavailable",
        /// The connection broke before the reply.
        ConnectionLost = "connection_lost",
        /// The reply was an error, or an unexpected one.
        BadAnswer = "bad_answer",
    }
}
