//! OTLP: [`metrics`] exports the samples of the page. The connection to a collector and the parts of messages are those
//! of spans too, which `tracing` exports.

pub(crate) mod connection;
pub(crate) mod message;
pub mod metrics;
mod points;
pub mod settings;
