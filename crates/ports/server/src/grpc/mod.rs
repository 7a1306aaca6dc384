//! The gRPC server: one thread and one runtime per core, and no work shared between them. A new connection goes to the
//! worker with the fewest connections and stays there: Envoy opens one for each of its workers and keeps it open.
//! `driver` moves its bytes, the crate `http2` is the protocol without I/O, and `calls` responds: with `unfinished` for messages
//! that arrive in pieces, `waiting` for calls that wait for a store, and `streaming` for calls that last; `health_checks`, `reflection` and `rlqs`
//! have the methods of those services. `reference` serves the whole port with tonic if the settings select it.

mod activity;
mod arrivals;
mod calls;
mod driver;
mod framing;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod head;
mod health_checks;
mod quota_stream;
mod reference;
mod reflection;
mod request_head;
mod rlqs;
mod rpc;
pub mod settings;
mod status;
mod streaming;
#[cfg(test)]
mod tests;
mod unfinished;
mod waiting;
mod worker;

use std::sync::Arc;

use budget::Budget;
use tokio::sync::watch;

#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz as fuzz_calls;
pub use reference::RateLimit;
#[cfg(any(test, feature = "testing"))]
pub use request_head::fuzz_timeout;
pub use worker::Workers;

use super::{
    health::Health,
    listen::{AcceptLoop, Listener},
    tls::Tls,
};
use ::rlqs::Quotas;
use allocator;
use exporters::tracing::Tracer;
use faults::panics::{self, Boundary};
use limiter::Limiter;
use metrics::Stats;

/// The parts of the service that the gRPC server uses.
#[derive(Clone)]
pub struct Parts {
    pub limiter: Arc<Limiter>,
    pub quotas: Arc<Quotas>,
    pub stats: Arc<Stats>,
    pub health: Arc<Health>,
    /// TLS on the port; `None` for plaintext.
    pub tls: Option<Arc<Tls>>,
    pub tracer: Option<Arc<Tracer>>,
    /// The memory for incomplete requests and unread responses.
    pub inflight: Arc<Budget>,
}

/// Accepts connections and assigns them to the workers until `drain` turns true. Then accepts the connections in the
/// backlog, closes the port, and drains the workers.
pub async fn accept(listener: Listener, workers: Arc<Workers>, drain: watch::Receiver<bool>) {
    let accept = async || accept_until(&listener, &workers, drain.clone()).await;
    net::restart::task(Boundary::Listener, accept).await;
    drop(listener);
    // Last, so that every assigned connection receives its GOAWAY.
    workers.drain();
}

async fn accept_until(listener: &Listener, workers: &Workers, drain: watch::Receiver<bool>) {
    let mut accepting = AcceptLoop::new(listener, "a gRPC connection", drain);
    let mut idle = true;
    while let Some(accepted) = accepting.next().await {
        panics::point("grpc_accept");
        if std::mem::take(&mut idle) {
            allocator::allow_huge_pages(true);
        }
        workers.assign(accepted);
    }
}
