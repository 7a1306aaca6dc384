//! Every sample of the page as a data point, exported at an interval and when the service ends.
//!
//! Nothing is queued or repeated: what the collector did not accept is in the next export, because the account of a
//! series (`points`) is settled by the acceptance of its point.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Builder,
    time::{Instant, timeout_at},
};
use tracing::warn;

use super::{
    connection::{Accepted, CollectorConnection, Failure},
    message,
    points::{Accounts, Batch, Batches},
    settings::Collector,
};
use crate::statsd::{Flushing, SharedGauges};
use clock::{Clock, SystemClock};
use faults::{
    log_throttle::LogThrottle,
    panics::{self, Boundary},
    periodic::Periodic,
};
use metrics::{Metric, MetricType, PointResult, Stats, Value};
use proto::opentelemetry::proto::resource::v1::Resource;

#[derive(Clone, PartialEq, Debug)]
pub struct MetricsExport {
    pub resource: Vec<(String, String)>,
    pub interval: Duration,
    /// Maximum time of an export, which may have several messages.
    pub timeout: Duration,
    pub temporality: Temporality,
    pub collector: Collector,
}

text::named! {
    /// Whether points have the counts since the start or since the last accepted export.
    #[derive(Default)]
    pub enum Temporality {
        #[default]
        Cumulative = "cumulative",
        Delta = "delta",
        /// Deltas of histograms, as in OpenTelemetry's SDKs, where counters like these are read and not added to.
        LowMemory = "lowmemory",
    }
}

impl Temporality {
    fn is_delta(self, kind: MetricType) -> bool {
        match self {
            Self::Cumulative => false,
            Self::Delta => true,
            Self::LowMemory => kind == MetricType::Histogram,
        }
    }
}

/// Exports from a thread of its own, which ends with those of the sinks.
pub fn start(
    stats: &Arc<Stats>,
    gauges: &SharedGauges,
    settings: &MetricsExport,
    flushing: &mut Flushing,
) -> Result<(), Vec<String>> {
    // The files of TLS are read for each export; these are checked.
    CollectorConnection::new(&settings.collector)?;
    let unsent = Arc::new(AtomicU64::new(0));
    let mut exporter = Exporter {
        stats: stats.clone(),
        gauges: gauges.clone(),
        settings: settings.clone(),
        resource: message::resource(&settings.resource),
        accounts: Accounts::new(now()),
        unsent: unsent.clone(),
        warnings: LogThrottle::new(10),
    };
    let export = move |_| exporter.export();
    let thread = Periodic::start("otlp_metrics", Boundary::OtlpMetrics, settings.interval, export);
    let no_thread = |error: io::Error| vec![format!("cannot start the thread of metrics: {error}")];
    flushing.0.push((thread.map_err(no_thread)?, unsent));
    Ok(())
}

struct Exporter {
    stats: Arc<Stats>,
    gauges: SharedGauges,
    settings: MetricsExport,
    resource: Resource,
    accounts: Accounts,
    unsent: Arc<AtomicU64>,
    warnings: LogThrottle,
}

impl Exporter {
    fn export(&mut self) {
        panics::point("otlp_metrics");
        let batches = self.batches();
        let points = batches.iter().map(|batch| batch.points).sum();
        self.unsent.store(points, Relaxed);
        let mut connection = match CollectorConnection::new(&self.settings.collector) {
            Ok(connection) => connection,
            Err(errors) => return self.failed(PointResult::Unreachable, points, &errors.join("; ")),
        };
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return self.failed(PointResult::Unreachable, points, &error.to_string()),
        };
        let until = Instant::now() + self.settings.timeout;
        for batch in batches {
            let points = batch.points;
            let is_sent_compressed = self.settings.collector.gzip;
            let message = if is_sent_compressed {
                batch.compressed.clone()
            } else {
                message::decompressed(&batch.compressed)
            };
            let message_until = until.min(Instant::now() + self.settings.collector.timeout);
            let sent = runtime
                .block_on(async { timeout_at(message_until, connection.send(&message)).await })
                .unwrap_or_else(|_| Err(Failure::retryable("no response in time")));
            match sent {
                Ok(Accepted { rejected, message }) => {
                    let refused = rejected.min(points);
                    self.stats.service().otlp_points(PointResult::Accepted).add(points - refused);
                    if rejected > 0 || !message.is_empty() {
                        let why = format!("the collector rejected {rejected} points: {message:?}");
                        self.failed(PointResult::Refused, refused, &why);
                    }
                    self.unsent.fetch_sub(points, Relaxed);
                    self.accounts.settle(batch);
                }
                Err(Failure { is_retryable, why }) => {
                    let result = if is_retryable { PointResult::Unreachable } else { PointResult::Refused };
                    self.failed(result, points, &why);
                }
            }
        }
        runtime.shutdown_background();
        // The next export is a minute away.
        allocator::refund();
    }

    /// Reads all samples. No counting thread waits for it.
    fn batches(&mut self) -> Vec<Batch> {
        let Self { stats, gauges, settings, resource, accounts, .. } = self;
        let now = now();
        let mut batches = Batches::new(resource);
        let take = &mut |metric: &Metric, labels: &[&str], value: Value<'_>| {
            let is_delta = settings.temporality.is_delta(metric.kind);
            if let Some(point) = accounts.point(metric, labels, value, is_delta, now) {
                batches.add(metric, labels, is_delta, point);
            }
        };
        stats.every_sample(&**gauges, take);
        accounts.end_read(now);
        batches.finish()
    }

    /// Counts points that the collector did not take, and logs why, unless something was logged recently.
    fn failed(&self, result: PointResult, points: u64, why: &str) {
        self.stats.service().otlp_points(result).add(points);
        if self.warnings.admit_now().is_some() {
            let collector = &self.settings.collector;
            warn!(collector = collector.shown(), "metrics over OTLP: {why}; see {}", collector.variable);
        }
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemClock.now().micros().saturating_mul(1_000)
}
