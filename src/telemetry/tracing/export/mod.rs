//! The thread that sends spans to the collector: gathers them into batches, tries again where that may
//! help, and counts what became of each.
//!
//! `batch` writes them down, `line` is the connection, `tls` what is spoken on it. While a batch is tried
//! again the queue fills and then drops what is new: memory is bounded, and nobody waits.

mod batch;
mod line;
mod tls;

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    runtime,
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::warn;

use super::{Counts, Dropped, span::Span};
use crate::{
    log_throttle::LogThrottle,
    net::backoff::Backoff,
    panics::{self, Boundary, Panicked, caught},
    proto::opentelemetry::proto::resource::v1::Resource,
    settings::spans::Spans,
};
use line::Line;

/// Between attempts, as the collector's own exporters wait.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A batch that was not taken for so long is dropped.
const GIVE_UP: Duration = Duration::from_secs(60);

/// How long the service waits for its last spans to be taken when it ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Sends the spans of a queue.
pub(super) struct Exporter {
    queue: mpsc::Receiver<Span>,
    ending: watch::Receiver<bool>,
    counts: Arc<Counts>,
    resource: Resource,
    line: Line,
    timeout: Duration,
    gzip: bool,
    max_batch: usize,
    delay: Duration,
    warnings: LogThrottle,
}

/// Why a batch was not taken.
#[derive(Debug)]
struct Failure {
    /// It may be taken when it is sent again.
    may_pass: bool,
    why: String,
}

impl Exporter {
    /// An exporter of this queue; it ends when `ending` turns true and the queue is empty.
    ///
    /// # Errors
    /// All that is wrong with the files that the settings name.
    pub(super) fn new(
        settings: &Spans,
        queue: mpsc::Receiver<Span>,
        ending: watch::Receiver<bool>,
        counts: Arc<Counts>,
    ) -> Result<Self, Vec<String>> {
        let collector = &settings.collector;
        Ok(Self {
            queue,
            ending,
            counts,
            resource: batch::resource(&settings.resource),
            line: Line::new(collector)?,
            timeout: collector.timeout,
            gzip: collector.gzip,
            max_batch: settings.max_batch,
            delay: settings.delay,
            warnings: LogThrottle::new(10),
        })
    }

    pub(super) fn start(mut self) -> io::Result<JoinHandle<()>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("spans".to_owned()).spawn(move || {
            let ending = self.ending.clone();
            runtime.block_on(async {
                tokio::select! {
                    () = panics::restart_task(Boundary::SpanExporter, async || self.run().await) => {}
                    () = too_long(ending) => warn!("tracing: the last spans were not taken in {LAST_WORDS:?}"),
                }
            });
            runtime.shutdown_background();
        })
    }

    async fn run(&mut self) {
        loop {
            let batch = self.gather().await;
            if batch.is_empty() {
                return;
            }
            let spans = batch.len() as u64;
            if caught(Boundary::SpanExporter, self.deliver(batch)).await == Err(Panicked) {
                self.counts.add_dropped(Dropped::Panicked, spans);
            }
        }
    }

    /// The next batch: a full one, or what has come when the first of it has waited long enough. Nothing
    /// when the service ends and there is nothing left.
    async fn gather(&mut self) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut due = None;
        while batch.len() < self.max_batch {
            let room = self.max_batch.saturating_sub(batch.len());
            tokio::select! {
                biased;
                _ = self.ending.wait_for(|ending| *ending), if !self.queue.is_closed() => self.queue.close(),
                come = self.queue.recv_many(&mut batch, room) => if come == 0 { break },
                () = at(due) => break,
            }
            if due.is_none() && !batch.is_empty() {
                due = Instant::now().checked_add(self.delay);
            }
        }
        batch
    }

    async fn deliver(&mut self, batch: Vec<Span>) {
        let spans = batch.len() as u64;
        panics::point("span_exporter");
        let message = batch::message(self.resource.clone(), batch, self.gzip);
        let begun = Instant::now();
        let mut backoff = BACKOFF;
        let failure = loop {
            let pause = backoff.next_pause();
            match self.send(&message).await {
                Ok(refused) => {
                    let refused = refused.min(spans);
                    self.counts.add_dropped(Dropped::Refused, refused);
                    return self.counts.add_exported(spans.saturating_sub(refused));
                }
                Err(failure) => {
                    let is_last = !failure.may_pass
                        || *self.ending.borrow()
                        || begun.elapsed().saturating_add(pause) > GIVE_UP;
                    self.complain(&failure.why, is_last.then_some(spans));
                    if is_last {
                        break failure;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.ending.wait_for(|ending| *ending) => {}
            }
        };
        let reason = if failure.may_pass { Dropped::Unreachable } else { Dropped::Refused };
        self.counts.add_dropped(reason, spans);
    }

    /// Sends a batch, and says how many of its spans the collector did not want.
    async fn send(&mut self, message: &Bytes) -> Result<u64, Failure> {
        let taken = match timeout(self.timeout, self.line.send(message)).await {
            Ok(answer) => answer?,
            Err(_) => return Err(Failure::passing(format!("no answer within {:?}", self.timeout))),
        };
        if taken.refused > 0 || !taken.message.is_empty() {
            let why = format!("the collector left out {} spans: {:?}", taken.refused, taken.message);
            self.complain(&why, None);
        }
        Ok(taken.refused)
    }

    /// Says what is wrong, but not all the time; `dropped` are lost by it.
    fn complain(&mut self, why: &str, dropped: Option<u64>) {
        if self.warnings.admit_now().is_some() {
            warn!(collector = self.line.shown(), dropped, "tracing: {why}");
        }
    }
}

impl Failure {
    fn passing(why: impl Into<String>) -> Self {
        Self { may_pass: true, why: why.into() }
    }

    fn lasting(why: impl Into<String>) -> Self {
        Self { may_pass: false, why: why.into() }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Completes when the service has waited for its last spans as long as it does.
async fn too_long(mut ending: watch::Receiver<bool>) {
    let _ = ending.wait_for(|ending| *ending).await;
    tokio::time::sleep(LAST_WORDS).await;
}
