//! What leaves the process beside answers: [`statsd`] sends the differences of counters, [`otlp`] every metric to a
//! collector, [`tracing`] exports spans from a bounded queue, and [`logs`] writes lines from a thread, so that no caller
//! blocks.

pub mod logs;
pub mod otlp;
pub mod statsd;
pub mod tracing;
