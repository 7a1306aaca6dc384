//! Telemetry: metrics for Prometheus and statsd, spans, and logs.

pub mod logs;
pub mod metrics;
pub mod statsd;
pub mod tracing;
