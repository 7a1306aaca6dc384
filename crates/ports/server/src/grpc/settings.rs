//! The bounds and times of the gRPC port, as the settings name them.

use std::time::Duration;

text::named! {
    #[derive(Default)]
    pub enum GrpcServer {
        #[default]
        Fast = "fast",
        Tonic = "tonic",
    }
}

/// A duration of 0 is no limit.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    pub implementation: GrpcServer,
    pub workers: usize,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_connection_age: Duration,
    pub max_connection_age_grace: Duration,
    pub keepalive_interval: Duration,
    pub keepalive_timeout: Duration,
    pub max_concurrent_streams: u32,
    pub max_request_bytes: usize,
    pub receive_timeout: Duration,
}
