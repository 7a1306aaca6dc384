//! The gRPC server: one thread and one runtime for each core, no work shared between them.
//!
//! A connection is dealt to the core that has fewest and stays there: Envoy opens one for each of its
//! workers and keeps it. `connection` serves it, `unary` answers the one hot call below tonic, `traced` those of it that
//! have a span; health checks and reflection go through tonic's router.

mod body;
mod connection;
mod framing;
mod listen;
mod opening;
mod others;
mod reference;
mod traced;
mod unary;
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

/// A drain accepts connections that wait in the backlog until none came for so long: a client whose `connect`
/// has succeeded gets a GOAWAY instead of a reset.
const BACKLOG_QUIET: Duration = Duration::from_millis(5);

/// And for so long at most, since clients that reconnect at once could keep the backlog full for ever.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts connections and deals them to the workers until `drain` turns true. Then accepts what waits in the
/// backlog, closes the port, and lets the workers drain.
pub async fn accept(listener: Listener, workers: Arc<Workers>, mut drain: watch::Receiver<bool>) {
    let mut refused = Refused::default();
    let mut idle = true;
    loop {
        let accepted = tokio::select! {
            biased;
            _ = drain.wait_for(|drain| *drain) => break,
            accepted = listener.accept() => accepted,
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
    let end = Instant::now() + BACKLOG_TIMEOUT;
    while Instant::now() < end
        && let Ok(Ok(connection)) = timeout(BACKLOG_QUIET, listener.accept()).await
    {
        workers.deal(connection);
    }
    drop(listener);
    // Last, so that every connection that was dealt gets its GOAWAY.
    workers.drain();
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
