//! Metrics and logging for the servers of one store. Every failure is counted; at most one of each kind is logged every
//! ten seconds.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tracing::{error, warn};

use super::failure::{Failure, FailureKind};
use faults::{log_throttle::LogThrottles, mutex::lock};
use metrics::{Distribution, PoolUsage};

/// Bucket bounds for the time of a pipeline, in microseconds.
const MICROS: [u64; 13] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 1_000_000];

/// Bucket bounds for the checks in a pipeline.
const CHECKS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096];

#[derive(Default)]
pub struct ClientMetrics {
    opened: AtomicU64,
    ended: AtomicU64,
    closed: AtomicU64,
    reconnects: AtomicU64,
    errors: [AtomicU64; FailureKind::ALL.len()],
    times: Buckets,
    batches: Buckets,
    lateness: Buckets,
    denied: Mutex<BTreeMap<&'static str, u64>>,
    without_expiry: AtomicU64,
    overloaded: AtomicU64,
    late: AtomicU64,
    last_error: Mutex<Option<Arc<str>>>,
    log: Log,
}

#[derive(Default)]
struct Buckets {
    within: [AtomicU64; 14],
    sum: AtomicU64,
}

/// By kind and what failed. A server that sends new errors each time is logged each time.
struct Log(LogThrottles<(&'static str, String)>);

impl Default for Log {
    fn default() -> Self {
        Self(LogThrottles::new(10, 256))
    }
}

impl ClientMetrics {
    /// Counts an opened connection, and a reconnect if there was one before.
    pub fn connected(&self, is_reconnect: bool) {
        self.opened.fetch_add(1, Relaxed);
        self.reconnects.fetch_add(u64::from(is_reconnect), Relaxed);
    }

    /// Counts a closed connection; `by_us` if the server did not close it.
    pub fn disconnected(&self, by_us: bool) {
        self.ended.fetch_add(1, Relaxed);
        self.closed.fetch_add(u64::from(by_us), Relaxed);
    }

    pub fn answered(&self, checks: usize, took: Duration) {
        self.times.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), &MICROS);
        self.batches.add(checks as u64, &CHECKS);
    }

    /// Counts checks that were held back for too long because the server is slow.
    pub fn overloaded(&self, checks: usize, failure: &Failure) {
        self.overloaded.fetch_add(checks as u64, Relaxed);
        self.log("overloaded", failure.server(), failure);
    }

    /// Counts checks that were dropped unsent because their callers waited no longer.
    pub fn abandoned(&self, checks: usize) {
        self.late.fetch_add(checks as u64, Relaxed);
    }

    /// Counts a look for replies that was due, and how late it was.
    pub fn looked(&self, late: Duration) {
        self.lateness.add(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), &MICROS);
    }

    /// Counts a failure, and logs it unless one of the same kind and server was logged in the last ten seconds.
    pub fn failed(&self, failure: &Failure) {
        self.keep(failure);
        self.log(failure.kind.name(), failure.server(), failure);
    }

    fn keep(&self, failure: &Failure) {
        self.count(failure.kind);
        *lock(&self.last_error) = Some(failure.message.as_str().into());
    }

    /// Throttled by `kind` and `what`.
    fn log(&self, kind: &'static str, what: &str, failure: &Failure) {
        let Some(suppressed) = self.log.0.admit_now((kind, what.to_owned())) else { return };
        if kind == FailureKind::Denied.name() {
            // Only the operator can fix it.
            error!(kind, suppressed, "{failure}");
        } else if suppressed > 0 {
            warn!(kind, suppressed, "{failure}");
        } else {
            warn!(kind, "{failure}");
        }
    }

    pub fn count(&self, kind: FailureKind) {
        if let Some(errors) = self.errors.get(kind as usize) {
            errors.fetch_add(1, Relaxed);
        }
    }

    pub fn denied(&self, command: &'static str) {
        let mut denied = lock(&self.denied);
        let times = denied.entry(command).or_default();
        *times = times.wrapping_add(1);
    }

    pub fn without_expiry(&self, keys: usize) {
        self.without_expiry.fetch_add(keys as u64, Relaxed);
    }

    /// All metrics; those that only the connections know are 0.
    pub fn usage(&self) -> PoolUsage {
        let ended = self.ended.load(Relaxed);
        let opened = self.opened.load(Relaxed);
        let denied = lock(&self.denied);
        let errors = FailureKind::ALL.iter().zip(&self.errors);
        let errors = errors.map(|(kind, errors)| (kind.name(), errors.load(Relaxed)));
        PoolUsage {
            // Two loads are not a snapshot.
            connections: opened.saturating_sub(ended),
            opened,
            closed: self.closed.load(Relaxed),
            reconnects: self.reconnects.load(Relaxed),
            errors: errors.collect(),
            last_error: lock(&self.last_error).clone(),
            denied: denied.iter().map(|(command, times)| (*command, *times)).collect(),
            without_expiry: self.without_expiry.load(Relaxed),
            shed: [("overloaded", self.overloaded.load(Relaxed)), ("late", self.late.load(Relaxed))],
            operation_time: self.times.distribution(&MICROS, 1e6),
            batch_size: self.batches.distribution(&CHECKS, 1.0),
            worker_lateness: self.lateness.distribution(&MICROS, 1e6),
            ..PoolUsage::default()
        }
    }
}

impl Buckets {
    fn add(&self, value: u64, bounds: &[u64]) {
        let bucket = bounds.partition_point(|bound| *bound < value);
        if let Some(within) = self.within.get(bucket) {
            within.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
    }

    /// The distribution, with values divided by `unit`.
    fn distribution(&self, bounds: &[u64], unit: f64) -> Distribution {
        let mut count = 0_u64;
        let mut within = self.within.iter().map(|bucket| {
            count = count.wrapping_add(bucket.load(Relaxed));
            count
        });
        let buckets = bounds.iter().map(|bound| *bound as f64 / unit).zip(within.by_ref()).collect();
        let count = within.last().unwrap_or_default();
        Distribution { buckets, count, sum: self.sum.load(Relaxed) as f64 / unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_bucket() {
        let metrics = ClientMetrics::default();
        for (checks, micros) in [(1, 40), (3, 60), (9_999, 5_000_000)] {
            metrics.answered(checks, Duration::from_micros(micros));
        }
        let usage = metrics.usage();
        assert_eq!((usage.batch_size.count, usage.batch_size.buckets[2]), (3, (4.0, 2)));
        assert_eq!(usage.batch_size.buckets.last(), Some(&(4_096.0, 2)));
        assert_eq!(usage.operation_time.buckets[0].1, 1);
        assert!((usage.operation_time.sum - 5.0001).abs() < 1e-9, "{usage:?}");
    }

    #[test]
    fn failures_are_counted_by_kind() {
        let metrics = ClientMetrics::default();
        for _ in 0..3 {
            metrics.failed(&Failure::new(FailureKind::Timeout, "redis a:1: no reply"));
        }
        assert!(metrics.usage().errors.contains(&("timeout", 3)));
    }
}
