//! The control plane and the connection to it, as the settings name them.

use std::time::Duration;

use net::{Secret, ServerAddress, tls::ClientTls};

#[derive(Clone, PartialEq, Debug)]
pub struct Xds {
    pub server: ServerAddress,
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    /// Additional headers: names in lower case, and values, which may be secrets.
    pub headers: Vec<(String, Secret)>,
    pub tls: Option<XdsTls>,
    /// The average delay between attempts to connect.
    pub connect_retry_interval: Duration,
    /// The delays after a stream was closed.
    pub backoff: XdsBackoff,
    /// The idle time after which the control plane is pinged; zero is never.
    pub keepalive_interval: Duration,
    /// Maximum size of a response; at least one byte.
    pub max_message_bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XdsTls {
    pub files: ClientTls,
    /// The name that its certificate must have, if it is not the host.
    pub server_name: Option<String>,
}

/// The delays after a stream was closed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct XdsBackoff {
    pub initial: Duration,
    pub max: Duration,
    /// Backoff multiplier. Values of 1 or less disable growth.
    pub factor: f64,
    /// Delays are shortened at random, so that replicas do not reconnect together.
    pub jitter: bool,
}
