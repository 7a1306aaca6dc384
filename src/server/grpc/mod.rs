//! The gRPC server: one thread and one runtime for each core, no work shared between them.
//!
//! A connection is dealt to the core that has fewest and stays there: Envoy opens one for each of its
//! workers and keeps it. `driver` moves its bytes, `http2` is the protocol without I/O, `calls` answers
//! `ShouldRateLimit`, with `waiting` for those that wait for a store and `traced` for those that have a span;
//! `aux_services` has the calls that go through tonic's router: health checks and reflection. `reference` serves
//! all of it with tonic instead, where the settings choose that.

mod aux_services;
mod calls;
mod driver;
mod framing;
mod http2;
mod listen;
mod reference;
mod request_head;
mod traced;
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

use tokio::sync::watch;
use tracing::warn;

pub use listen::{Listener, bind_tcp};
pub use reference::RateLimit;
pub use worker::Workers;

use super::{health::Health, tls::Tls};
use crate::{limiter::Limiter, memory, spans::Tracer, stats::Stats};
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
    /// Connections beyond this number are refused.
    pub max_connections: usize,
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
    /// Tells whether the service is fit to be asked.
    pub health: Arc<Health>,
    /// What connections speak before HTTP/2; none is nothing.
    pub tls: Option<Arc<Tls>>,
    /// Where spans go, if there are any.
    pub tracer: Option<Arc<Tracer>>,
}

/// Accepts connections and deals them to the workers, until `drain` turns true. Those that wait to be
/// accepted at that moment are still taken, and asked to go.
pub async fn accept(listener: Listener, workers: Arc<Workers>, mut drain: watch::Receiver<bool>) {
    let mut refused = Refused::default();
    let mut idle = true;
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            _ = drain.wait_for(|drain| *drain) => return,
        };
        match accepted {
            Ok(connection) => {
                if std::mem::take(&mut idle) {
                    memory::allow_huge_pages(true);
                }
                if !workers.deal(connection) {
                    refused.tell(&workers);
                }
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Says that connections are refused, at most every ten seconds.
#[derive(Default)]
struct Refused {
    told: Option<Instant>,
}

impl Refused {
    fn tell(&mut self, workers: &Workers) {
        if self.told.is_none_or(|told| told.elapsed() > Duration::from_secs(10)) {
            self.told = Some(Instant::now());
            warn!(
                open = workers.open(),
                "connections are refused: as many are open as GRPC_MAX_CONNECTIONS allows"
            );
        }
    }
}

/// Out of file descriptors the same error comes at once again: waiting lets some be closed.
async fn pause_after(error: &io::Error) {
    warn!(%error, "a gRPC connection could not be accepted");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Counts a connection for as long as it lasts.
struct OpenConnection {
    of_worker: Arc<AtomicUsize>,
    stats: Arc<Stats>,
}

impl OpenConnection {
    fn new(of_worker: Arc<AtomicUsize>, stats: Arc<Stats>) -> Self {
        of_worker.fetch_add(1, Ordering::Relaxed);
        stats.service().connections_accepted.increment();
        Self { of_worker, stats }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Ordering::Relaxed);
        self.stats.service().connections_closed.increment();
    }
}
