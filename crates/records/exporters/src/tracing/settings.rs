//! Which spans are exported, and where to.

use std::time::Duration;

use crate::otlp::settings::Collector;

#[derive(Clone, PartialEq, Debug)]
pub struct Spans {
    pub resource: Vec<(String, String)>,
    /// The share of calls without a sampling decision that are traced.
    pub sampling_rate: f64,
    /// Spans have the keys and values of descriptors.
    pub descriptor_values: bool,
    /// Maximum number of queued spans; at least one.
    pub max_queued: usize,
    /// Maximum number of spans per export; at least one.
    pub max_batch: usize,
    /// The time to gather spans for an export.
    pub delay: Duration,
    pub collector: Collector,
}
