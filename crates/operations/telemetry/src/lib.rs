//! Metrics for Prometheus and statsd, spans over OTLP, and the log.
//!
//! [`metrics::Stats`] holds every counter. The request path has ready handles ([`metrics::RuleStats`]) and writes to the
//! shard of its worker; a scrape sums the shards. [`metrics`] shows them as a page, [`statsd`] sends their differences,
//! [`tracing`] exports spans from a bounded queue, and [`logs`] writes lines from a thread, so that no caller blocks.

pub mod logs;
pub mod metrics;
pub mod statsd;
pub mod tracing;
