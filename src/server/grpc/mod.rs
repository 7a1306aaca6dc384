//! The gRPC server: one thread and one runtime for each core, no work shared between them.
//!
//! A connection is dealt to the core that has fewest and stays there: Envoy opens one for each of its
//! workers and keeps it. `driver` moves its bytes, `http2` is the protocol without I/O, `calls` answers
//! `ShouldRateLimit`, with `unfinished` for messages that come in pieces, `waiting` for calls that wait for a store
//! and `traced` for those that have a span; `aux_services` has the calls that go through tonic's router: health
//! checks and reflection. `reference` serves all of it with tonic instead, where the settings choose that.

mod activity;
mod aux_services;
mod calls;
mod driver;
mod framing;
mod http2;
mod listen;
mod reference;
mod request_head;
#[cfg(test)]
mod tests;
mod traced;
mod unfinished;
mod waiting;
mod worker;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::timeout};
use tracing::warn;

pub use listen::{Listener, bind_tcp};
pub use reference::RateLimit;
pub use worker::Workers;

use super::{connections::Handle, health::Health, tls::Tls};
use crate::{
    limiter::Limiter,
    memory,
    panics::{self, Boundary},
    telemetry::{metrics::Stats, tracing::Tracer},
};
use listen::Connection;

/// How the server is run; see the settings of the same names.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Serve with tonic, the reference.
    pub tonic: bool,
    /// How many threads answer.
    pub workers: usize,
    /// A connection is asked to go after this time; zero lets it stay.
    pub max_connection_age: Duration,
    /// It is cut this long after it was asked to go; zero waits.
    pub max_connection_age_grace: Duration,
    /// A connection on which nothing comes for so long is pinged; zero never asks.
    pub keepalive_interval: Duration,
    /// A ping must be answered within this time.
    pub keepalive_timeout: Duration,
    /// Connections at one time.
    pub max_connections: usize,
    /// Connections of one peer address at one time.
    pub max_connections_per_address: usize,
    /// Calls under way on one connection.
    pub max_concurrent_streams: u32,
    /// The size of a message.
    pub max_request_bytes: usize,
    /// A message must be complete in this time.
    pub receive_timeout: Duration,
    /// What all connections together may hold of unfinished messages and of answers that are not taken.
    pub max_inflight_bytes: usize,
}

/// What the calls are answered with.
#[derive(Clone)]
pub struct Parts {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// Counts.
    pub stats: Arc<Stats>,
    /// Whether the service is healthy.
    pub health: Arc<Health>,
    /// What connections speak before HTTP/2; none is nothing.
    pub tls: Option<Arc<Tls>>,
    /// Where spans go, if there are any.
    pub tracer: Option<Arc<Tracer>>,
}

/// A drain accepts connections that wait in the backlog until none came for so long: a client whose `connect`
/// has succeeded gets a GOAWAY instead of a reset.
const BACKLOG_QUIET: Duration = Duration::from_millis(5);

/// And for so long at most, since clients that reconnect at once could keep the backlog full for ever.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts connections and deals them to the workers until `drain` turns true. Then accepts what waits in the
/// backlog, closes the port, and lets the workers drain.
pub async fn accept(listener: Listener, workers: Arc<Workers>, drain: watch::Receiver<bool>) {
    let accept = async || accept_until(&listener, &workers, drain.clone()).await;
    panics::restart_task(Boundary::Listener, accept).await;
    drop(listener);
    // Last, so that every connection that was dealt gets its GOAWAY.
    workers.drain();
}

async fn accept_until(listener: &Listener, workers: &Workers, mut drain: watch::Receiver<bool>) {
    let mut idle = true;
    loop {
        let accepted = tokio::select! {
            biased;
            _ = drain.wait_for(|drain| *drain) => break,
            accepted = listener.accept() => accepted,
        };
        panics::point("grpc_accept");
        match accepted {
            Ok(connection) => {
                if std::mem::take(&mut idle) {
                    memory::allow_huge_pages(true);
                }
                workers.deal(connection);
            }
            Err(error) => pause_after(&error).await,
        }
    }
    let begun = Instant::now();
    while begun.elapsed() < BACKLOG_TIMEOUT
        && let Ok(Ok(connection)) = timeout(BACKLOG_QUIET, listener.accept()).await
    {
        workers.deal(connection);
    }
}

/// Out of file descriptors the same error comes at once again: waiting lets some be closed.
async fn pause_after(error: &io::Error) {
    warn!(%error, "a gRPC connection could not be accepted");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// A connection's place, and its count, for as long as it lasts.
struct OpenConnection {
    handle: Handle,
    of_worker: Arc<AtomicUsize>,
    stats: Arc<Stats>,
}

impl OpenConnection {
    fn new(handle: Handle, of_worker: Arc<AtomicUsize>, stats: Arc<Stats>) -> Self {
        of_worker.fetch_add(1, Ordering::Relaxed);
        stats.service().connections_accepted.increment();
        Self { handle, of_worker, stats }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Ordering::Relaxed);
        self.stats.service().connections_closed.increment();
    }
}

/// A caller's `grpc-timeout`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_time_out(bytes: &[u8]) {
    request_head::fuzz_timeout(bytes);
}

/// Bytes of a peer on the gRPC port.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_http2(bytes: &[u8]) {
    http2::fuzz::fuzz(bytes);
}
