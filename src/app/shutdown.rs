//! The signals that stop the service, and the order in which its parts end.

use std::{io, sync::Arc, thread, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal as listen},
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use clock::{Clock, SystemClock, timer::after};
use fleet::Change;
use net::edges::Edges;

use super::{parts::App, recent::Writing};
use server::{grpc::Workers, health::Part};
use telemetry::statsd::Flushing;

/// Listens for signals from now on. The future returns the name of the first.
pub(super) fn signal() -> io::Result<impl Future<Output = &'static str>> {
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            _ = hangup.recv() => "SIGHUP",
        }
    })
}

/// The timeout of settles and ends that the store has not taken.
const LAST_CLOSINGS: Duration = Duration::from_secs(10);

/// The timeout of the last flush to each of the sinks and the logs of decisions and requests, which may not respond.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// The tasks and threads that run until the shutdown.
pub(super) struct Running {
    /// Accepts gRPC connections until `drain` is true.
    pub(super) accepting: JoinHandle<()>,
    pub(super) workers: Arc<Workers>,
    /// The HTTP ports, and the link to other replicas, until `stop` is true.
    pub(super) pages: Vec<thread::JoinHandle<()>>,
    pub(super) flushing: Flushing,
    pub(super) writing: Vec<Writing>,
    pub(super) drain: watch::Sender<bool>,
    pub(super) stop: watch::Sender<bool>,
}

impl Running {
    /// Reports the service as unhealthy, waits for `delay`, finishes the pending requests, and ends.
    pub(super) async fn drain(self, app: &App, delay: Duration) {
        app.health.set(Part::Running, false);
        sleep(delay).await;
        let _ = self.drain.send(true);
        let _ = self.accepting.await;
        // Pages and `/json` are still served while the workers drain.
        self.workers.drained().await;
        let timer = Edges::system().timer;
        app.limiter.drain_holds(&*timer, after(timer.now(), LAST_CLOSINGS)).await;
        app.store.close().await;
        let flushing = self.flushing;
        let _ = spawn_blocking(move || flushing.finish(LAST_FLUSH)).await;
        for writing in self.writing {
            let _ = spawn_blocking(move || writing.finish(LAST_FLUSH)).await;
        }
        if let Some(tracer) = app.tracer.clone() {
            let _ = spawn_blocking(move || tracer.end()).await;
        }
        app.fleet.changes.record(Change::new("stopped", "by a signal", SystemClock.now()));
        let _ = self.stop.send(true);
        let (pages, workers) = (self.pages, self.workers);
        let end = move || {
            for thread in pages {
                // The hook has logged the panic of a thread.
                let _ = thread.join();
            }
            // Last, because `/json` uses the workers' connections to the store.
            workers.join();
        };
        let _ = spawn_blocking(end).await;
    }
}
