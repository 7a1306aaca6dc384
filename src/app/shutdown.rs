//! The signals that stop the service, and the order in which its parts end.
//!
//! One deadline, `SHUTDOWN_TIMEOUT` and [`LAST_STEPS`] after the drain has begun, holds for everything, and what hangs
//! is left behind. What was not sent by then is logged in numbers.

use std::{future::poll_fn, io, process, sync::Arc, task::Poll, thread, time::Duration};

use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal as listen},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};
use tracing::{error, warn};

use clock::{Clock, SystemClock};
use faults::periodic::Periodic;
use fleet::change;
use net::edges::Edges;

use super::parts::App;
use exporters::{logs, statsd::Flushing};
use server::{grpc::Workers, health::Part};

/// The signals that end a process that does not handle them, and that people and supervisors send. Each stops the service.
pub(super) struct Signals([(&'static str, Signal); 7]);

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self([
            ("SIGTERM", listen(SignalKind::terminate())?),
            ("SIGINT", listen(SignalKind::interrupt())?),
            ("SIGHUP", listen(SignalKind::hangup())?),
            ("SIGQUIT", listen(SignalKind::quit())?),
            ("SIGALRM", listen(SignalKind::alarm())?),
            ("SIGUSR1", listen(SignalKind::user_defined1())?),
            ("SIGUSR2", listen(SignalKind::user_defined2())?),
        ]))
    }

    /// The name of the next signal.
    pub(super) async fn next(&mut self) -> &'static str {
        poll_fn(|context| {
            let mut received = self
                .0
                .iter_mut()
                .filter_map(|(name, signal)| signal.poll_recv(context).is_ready().then_some(*name));
            received.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The time after `SHUTDOWN_TIMEOUT` for what follows the last request. With the last lines of the log, the process has
/// ended 2 s after the timeout.
const LAST_STEPS: Duration = Duration::from_millis(1250);

/// The part of [`LAST_STEPS`] that stays for the sinks while clients of the HTTP ports do not read.
const LAST_SENDS: Duration = Duration::from_millis(500);

/// The maximum time of the last flush to the sinks and the logs of decisions and requests, which may not respond.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// The time to log what was dropped, before nobody waits any more.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The process ends this long after the deadline, even if the main thread hangs.
const OVERDUE: Duration = Duration::from_millis(250);

/// The tasks and threads that run until the shutdown.
pub(super) struct Running {
    /// Accepts gRPC connections until `drain` is true.
    pub(super) accepting: JoinHandle<()>,
    /// The HTTP ports, and the link to other replicas, until `stop` is true.
    pub(super) pages: Vec<thread::JoinHandle<()>>,
    pub(super) drain: watch::Sender<bool>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) senders: Arc<Senders>,
}

/// The parts that have something to send when the service ends.
pub(super) struct Senders {
    pub(super) app: Arc<App>,
    pub(super) workers: Arc<Workers>,
    pub(super) flushing: Flushing,
    /// The logs of decisions and requests.
    pub(super) writing: Vec<Periodic>,
}

impl Running {
    /// Reports the service as unhealthy, waits for `delay`, finishes the pending requests within `timeout`, and ends.
    pub(super) async fn drain(self, signals: Signals, delay: Duration, timeout: Duration) {
        let begun = Instant::now() + delay;
        let end = begun + timeout + LAST_STEPS;
        enforce(signals, end + OVERDUE, self.senders.clone());
        let Senders { app, workers, .. } = &*self.senders;
        app.health.set(Part::Running, false);
        sleep(delay).await;
        let _ = self.drain.send(true);
        let drained = async {
            let _ = self.accepting.await;
            workers.drained().await;
        };
        // Pages and `/json` are still served while the workers drain.
        let _ = timeout_at(begun + timeout, drained).await;
        app.fleet.changes.record(change("stopped", "by a signal", SystemClock.now()));
        let _ = self.stop.send(true);
        done(end - LAST_SENDS, || self.pages.iter().all(thread::JoinHandle::is_finished)).await;
        self.senders.finish(end).await;
        // Last, because the connections to the store are theirs.
        workers.end();
        done(end, || workers.have_ended()).await;
        self.senders.log_unsent();
    }
}

impl Senders {
    /// Sends the rest to the store, the sinks and the logs, side by side.
    async fn finish(&self, end: Instant) {
        let Self { app, flushing, writing, .. } = self;
        let flushed_by = end.min(Instant::now() + LAST_FLUSH);
        flushing.stop();
        writing.iter().for_each(Periodic::stop);
        if let Some(tracer) = &app.tracer {
            tracer.end(flushed_by - LAST_WORDS);
        }
        let is_flushed = || {
            let is_traced = app.tracer.as_ref().is_none_or(|tracer| tracer.has_ended());
            is_traced && flushing.has_ended() && writing.iter().all(Periodic::has_ended)
        };
        let timer = Edges::system().timer;
        let holds = app.limiter.drain_holds(&*timer, end.into_std());
        let all = async { tokio::join!(holds, app.store.close(), done(flushed_by, is_flushed)) };
        let _ = timeout_at(end, all).await;
    }

    /// Logs the numbers of what is not sent, if there is anything.
    fn log_unsent(&self) {
        let Self { app, workers, flushing, .. } = self;
        let all = [
            workers.cut() as u64,
            app.limiter.queued_closings() as u64,
            app.store.leases().map_or(0, |leases| leases.held),
            app.fleet.changes.waiting() as u64,
            flushing.unsent(),
            app.tracer.as_ref().map_or(0, |tracer| tracer.counts().unsent()),
            app.recent.unwritten(),
            app.request_log.as_ref().map_or(0, |log| log.unwritten()),
        ];
        let all = all.map(|number| (number > 0).then_some(number));
        let [connections, settles, leased_hits, changes, metric_values, spans, decisions, requests] = all;
        if all.iter().any(Option::is_some) {
            warn!(
                connections,
                settles,
                leased_hits,
                changes,
                metric_values,
                spans,
                decisions,
                requests,
                "not sent, or closed unfinished, when the service ended"
            );
        }
    }
}

/// Waits until something is done, or for this moment.
async fn done(until: Instant, is_done: impl Fn() -> bool) {
    while !is_done() && Instant::now() < until {
        sleep(Duration::from_millis(2)).await;
    }
}

/// Ends the process at the next signal, or at this moment if something hangs.
fn enforce(mut signals: Signals, at: Instant, senders: Arc<Senders>) {
    let end = move || {
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
        if let Ok(signal) = runtime.block_on(async { timeout_at(at, signals.next()).await }) {
            warn!("received {signal} while stopping, ending at once");
        } else {
            error!("the main thread hangs, ending");
        }
        senders.log_unsent();
        logs::flush();
        process::exit(1);
    };
    // Without a thread the service ends as soon as its parts do.
    let _ = thread::Builder::new().name("shutdown".to_owned()).spawn(end);
}
