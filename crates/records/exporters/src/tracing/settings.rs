//! Which spans are exported, and where to.

use std::time::Duration;

use http::{HeaderMap, Uri};
use net::tls::ClientTls;

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

#[derive(Clone, PartialEq, Debug)]
pub struct Collector {
    pub protocol: Protocol,
    /// Scheme `http` or `https`, host, and the path for spans over HTTP.
    pub endpoint: Uri,
    /// The variable of the endpoint.
    pub variable: &'static str,
    pub headers: HeaderMap,
    pub timeout: Duration,
    pub gzip: bool,
    pub tls: Option<CollectorTls>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CollectorTls {
    pub files: ClientTls,
    /// The variables of the CAs, the client certificate and its key: those for traces, or those for all signals.
    pub variables: [&'static str; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    #[default]
    Http,
    Grpc,
}
