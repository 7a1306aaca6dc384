//! What the service reports: metrics for Prometheus and statsd, spans, and log lines.

pub mod logs;
pub mod metrics;
pub mod statsd;
pub mod tracing;
