//! What operators see, say and change.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// The admin API, its commands, and the decision log.
pub(crate) mod admin;
// The page of the admin API in a real browser.
pub(crate) mod page;
// Several replicas, and one without its store, as operators see them.
pub(crate) mod fleet;
// Logs that are decided again.
pub(crate) mod replay;
// The command line and its exit codes.
pub(crate) mod cli;
// From Envoy's configuration to the rules.
pub(crate) mod connect;
// statsd and DogStatsD.
pub(crate) mod statsd;
// Metrics over OTLP.
pub(crate) mod otlp;
// Spans: their attributes, their parents, and collectors of all kinds.
pub(crate) mod tracing;
// Metric series of callers' values.
pub(crate) mod series;
// Health checks.
pub(crate) mod health;
// Graceful shutdown.
pub(crate) mod drain;
// The first answer, and failing starts.
pub(crate) mod start;
// The end while peers hang.
pub(crate) mod hangs;
// Pipes for logs that are not read.
pub(crate) mod unread_output;
