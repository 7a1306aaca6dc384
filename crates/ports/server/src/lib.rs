//! The servers: gRPC for Envoy, HTTP for probes, Prometheus and the admin API.
//!
//! [`grpc`] is the hot path, `wire` converts its messages to the limiter's types and back, [`listen`] accepts the
//! connections of a port, `connections` bounds them and `socket` has what they need of a socket, [`health`] is the result of probes, [`tls`] has the certificate
//! of the gRPC port. `http` is the server of the HTTP ports with `/json` and the debug pages,
//! `traced` has the decisions of traced calls.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod connections;
pub mod grpc;
pub mod health;
pub mod http;
pub mod listen;
mod socket;
pub mod tls;
mod traced;
pub mod wire;

use tracing::warn;

use faults::log_throttle::LogThrottle;
use text::cut;

/// Logs a request that cannot be decoded, at most one line a second. The limiter logs invalid requests.
fn log_undecodable(reason: &str) {
    static LOG: LogThrottle = LogThrottle::new(1);
    if let Some(suppressed) = LOG.admit_now() {
        let suppressed = (suppressed > 0).then_some(suppressed);
        warn!(suppressed, "request rejected: {}", cut(reason));
    }
}

/// The meter of the target `calls`.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: http2::fuzz::Counting = http2::fuzz::Counting;
