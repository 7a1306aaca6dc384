//! Metrics and logging for the servers of one store. Every failure is counted. What servers do is logged here alone: at most
//! one line of a kind and server in ten seconds.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tracing::{Level, error, info, warn};

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

/// By kind and server.
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
        self.log(Level::WARN, "overloaded", failure);
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
        self.count(failure.kind);
        self.keep(&failure.message);
        if let Some(command) = failure.denied {
            *lock(&self.denied).entry(command).or_default() += 1;
        }
        // Only the operator can fix a denial.
        let level = if failure.kind == FailureKind::Denied { Level::ERROR } else { Level::WARN };
        self.log(level, failure.kind.name(), failure);
    }

    /// Keeps the reason that the store cannot be used, for status.
    pub fn keep(&self, message: &str) {
        *lock(&self.last_error) = Some(message.into());
    }

    /// Logs a message that begins with the server, or the name of several, and `: `, unless one of the same kind and server
    /// was logged in the last ten seconds.
    pub fn log(&self, level: Level, kind: &'static str, message: impl fmt::Display) {
        let message = message.to_string();
        let server = message.split(": ").next().unwrap_or_default().to_owned();
        let Some(suppressed) = self.log.0.admit_now((kind, server)) else { return };
        let suppressed = (suppressed > 0).then_some(suppressed);
        match level {
            Level::ERROR => error!(kind, suppressed, "{message}"),
            Level::WARN => warn!(kind, suppressed, "{message}"),
            _ => info!(kind, suppressed, "{message}"),
        }
    }

    pub fn count(&self, kind: FailureKind) {
        if let Some(errors) = self.errors.get(kind as usize) {
            errors.fetch_add(1, Relaxed);
        }
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
