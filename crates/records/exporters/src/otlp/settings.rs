//! A collector, and what it is sent.

use std::time::Duration;

use http::{HeaderMap, Uri};
use net::tls::ClientTls;

#[derive(Clone, PartialEq, Debug)]
pub struct Collector {
    pub signal: Signal,
    pub protocol: Protocol,
    /// Scheme `http` or `https`, host, and the path of the signal over HTTP.
    pub endpoint: Uri,
    /// The variable of the endpoint.
    pub variable: &'static str,
    pub headers: HeaderMap,
    pub timeout: Duration,
    pub gzip: bool,
    pub tls: Option<CollectorTls>,
}

impl Collector {
    /// The server in logs, without the path, which may be a secret.
    pub(crate) fn shown(&self) -> String {
        let authority = self.endpoint.authority().map_or("", |authority| authority.as_str());
        format!("{}://{authority}", self.endpoint.scheme_str().unwrap_or_default())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CollectorTls {
    pub files: ClientTls,
    /// The variables of the CAs, the client certificate and its key: those of the signal, or those of all signals.
    pub variables: [&'static str; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    #[default]
    Http,
    Grpc,
}

text::named! {
    /// What is sent, by its part of the names of variables.
    pub enum Signal {
        Traces = "TRACES",
        Metrics = "METRICS",
    }
}

impl Signal {
    /// The path that is appended to the endpoint of all signals, for HTTP.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }

    /// The method that is called over gRPC.
    pub(super) const fn method(self) -> &'static str {
        match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }
}
