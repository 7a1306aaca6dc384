//! The thread that sends spans to the collector in batches, retries retryable errors, and counts the outcomes.
//!
//! `batch` encodes the messages. During retries the queue fills and then drops
//! new spans, so that memory is bounded and workers never wait.

mod batch;

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use tokio::{
    runtime,
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tracing::warn;

use super::{Dropped, SpanCounts, span::Span};
use crate::{
    otlp::{
        connection::{CollectorConnection, Failure},
        message,
        settings::Collector,
    },
    tracing::settings::Spans,
};
use faults::{
    log_throttle::LogThrottle,
    panics::{self, Boundary, Panicked, caught},
};
use net::backoff::Backoff;
use proto::opentelemetry::proto::resource::v1::Resource;

/// The backoff of the collector's own exporters.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

const GIVE_UP: Duration = Duration::from_secs(60);

pub(super) struct Exporter {
    queue: mpsc::Receiver<Span>,
    ending: watch::Receiver<Option<Instant>>,
    counts: Arc<SpanCounts>,
    resource: Resource,
    connection: CollectorConnection,
    collector: Collector,
    max_batch: usize,
    delay: Duration,
    warnings: LogThrottle,
}

impl Exporter {
    /// An exporter of this queue, until `ending` is set and the queue is empty or that moment has come.
    pub(super) fn new(
        settings: &Spans,
        queue: mpsc::Receiver<Span>,
        ending: watch::Receiver<Option<Instant>>,
        counts: Arc<SpanCounts>,
    ) -> Result<Self, Vec<String>> {
        let collector = &settings.collector;
        Ok(Self {
            queue,
            ending,
            counts,
            resource: message::resource(&settings.resource),
            connection: CollectorConnection::new(collector)?,
            collector: collector.clone(),
            max_batch: settings.max_batch,
            delay: settings.delay,
            warnings: LogThrottle::new(10),
        })
    }

    pub(super) fn start(mut self) -> io::Result<JoinHandle<()>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("spans".to_owned()).spawn(move || {
            let ending = self.ending.clone();
            let counts = self.counts.clone();
            runtime.block_on(async {
                tokio::select! {
                    () = net::restart::task(Boundary::SpanExporter, async || self.run().await) => {}
                    () = time_is_over(ending) => {
                        let spans = counts.unsent();
                        counts.add_dropped(Dropped::Unreachable, spans);
                        warn!(spans, "tracing: dropped the last spans, which the collector did not accept in time");
                    }
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

    /// The next batch: full, or with the first span waiting for `delay`. Empty at shutdown, when the queue is empty.
    async fn gather(&mut self) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut due = None;
        while batch.len() < self.max_batch {
            let room = self.max_batch - batch.len();
            tokio::select! {
                biased;
                _ = self.ending.wait_for(Option::is_some), if !self.queue.is_closed() => self.queue.close(),
                received = self.queue.recv_many(&mut batch, room) => if received == 0 { break },
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
        let plain = batch::request(self.resource.clone(), batch).encode_to_vec();
        let message = if self.collector.gzip { message::compressed(&plain) } else { plain.into() };
        let begun = Instant::now();
        let mut backoff = BACKOFF;
        let failure = loop {
            let pause = backoff.next_pause();
            match self.send(&message).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    self.counts.add_dropped(Dropped::Refused, rejected);
                    return self.counts.add_exported(spans - rejected);
                }
                Err(failure) => {
                    let is_last = !failure.is_retryable
                        || self.ending.borrow().is_some()
                        || begun.elapsed().saturating_add(pause) > GIVE_UP;
                    self.log(&failure.why, is_last.then_some(spans));
                    if is_last {
                        break failure;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.ending.wait_for(Option::is_some) => {}
            }
        };
        let reason = if failure.is_retryable { Dropped::Unreachable } else { Dropped::Refused };
        self.counts.add_dropped(reason, spans);
    }

    /// Sends a batch, and returns the number of spans that the collector rejected.
    async fn send(&mut self, message: &Bytes) -> Result<u64, Failure> {
        let accepted = match timeout(self.collector.timeout, self.connection.send(message)).await {
            Ok(response) => response?,
            Err(_) => {
                return Err(Failure::retryable(format!("no response within {:?}", self.collector.timeout)));
            }
        };
        if accepted.rejected > 0 || !accepted.message.is_empty() {
            let why = format!("the collector rejected {} spans: {:?}", accepted.rejected, accepted.message);
            self.log(&why, None);
        }
        Ok(accepted.rejected)
    }

    /// Logs a problem, unless one was logged recently; `dropped` spans are lost.
    fn log(&mut self, why: &str, dropped: Option<u64>) {
        if self.warnings.admit_now().is_some() {
            warn!(
                collector = self.collector.shown(),
                dropped, "tracing: {why}; see {}", self.collector.variable
            );
        }
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Completes when the time for the last spans is over.
async fn time_is_over(mut ending: watch::Receiver<Option<Instant>>) {
    let until = ending.wait_for(Option::is_some).await.ok().and_then(|until| *until);
    at(until).await;
}
