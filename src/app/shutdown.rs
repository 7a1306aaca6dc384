//! The signals that stop the service, and the order in which its parts end.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::sleep,
};

use super::{parts::Parts, recent::Writing};
use crate::{
    server::{grpc::Workers, health::Part},
    telemetry::statsd::Flushing,
};

/// Waits for a signal to end; made before anything else, so that none is missed.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system does not let signals be caught.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The name of the first signal that comes.
    pub(super) async fn wait(mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

/// How long the shutdown waits for the last flush to the sinks. It covers connecting and writing to a sink that does
/// not answer.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// What runs until the shutdown.
pub(super) struct Running {
    /// Accepts gRPC connections until `drain` is true.
    pub(super) accepting: JoinHandle<()>,
    pub(super) workers: Arc<Workers>,
    /// The HTTP ports; they end after `stop` becomes true.
    pub(super) pages: JoinSet<()>,
    pub(super) flushing: Flushing,
    pub(super) writing: Option<Writing>,
    pub(super) drain: watch::Sender<bool>,
    pub(super) stop: watch::Sender<bool>,
}

impl Running {
    /// Reports the service as unhealthy, waits for `delay`, serves what has begun, and ends.
    pub(super) async fn drain(mut self, parts: &Parts, delay: Duration) {
        parts.health.set(Part::Running, false);
        sleep(delay).await;
        let _ = self.drain.send(true);
        let _ = self.accepting.await;
        // Pages and `/json` are still served while the workers drain.
        self.workers.drained().await;
        parts.store.close().await;
        let flushing = self.flushing;
        let _ = spawn_blocking(move || flushing.finish(LAST_FLUSH)).await;
        if let Some(writing) = self.writing {
            let _ = spawn_blocking(move || writing.finish()).await;
        }
        if let Some(tracer) = parts.tracer.clone() {
            let _ = spawn_blocking(move || tracer.end()).await;
        }
        let _ = self.stop.send(true);
        while self.pages.join_next().await.is_some() {}
        // Last, because `/json` uses the workers' connections to the store.
        let workers = self.workers;
        let _ = spawn_blocking(move || workers.join()).await;
    }
}
