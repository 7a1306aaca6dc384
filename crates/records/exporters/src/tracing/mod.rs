//! Tracing: spans that join the caller's trace and are sent to a collector over OTLP.
//!
//! The server calls [`Tracer::join`] with the headers of each call, and adds attributes to the [`OpenSpan`] that it
//! returns for a sampled call. Reading order: `headers` reads the parent span, `sampling` decides and makes ids, `span`
//! is the record, `export` sends it from its own thread.
//!
//! Workers never wait for the collector: a span is dropped and counted when the queue is full.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod export;
mod headers;
pub(crate) mod sampling;
pub mod settings;
mod span;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use http::HeaderMap;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

#[cfg(any(test, feature = "testing"))]
pub use headers::fuzz as fuzz_headers;
pub use span::{OpenSpan, Value};

use crate::tracing::settings::Spans;
use headers::Parent;
use sampling::Sampler;
use span::{Place, Span};

/// Decides which calls are traced, and queues their spans.
pub struct Tracer {
    sampler: Sampler,
    pub descriptor_values: bool,
    queue: mpsc::Sender<Span>,
    counts: Arc<SpanCounts>,
    /// The end of the time for the last spans, from the shutdown on.
    ending: watch::Sender<Option<Instant>>,
    exporter: JoinHandle<()>,
}

#[derive(Debug, Default)]
pub struct SpanCounts {
    queued: AtomicU64,
    exported: AtomicU64,
    dropped: [AtomicU64; Dropped::ALL.len()],
}

text::named! {
    /// Why a span never reached the collector.
    pub enum Dropped {
        QueueFull = "queue_full",
        /// The collector was unreachable, or returned retryable errors for too long.
        Unreachable = "unreachable",
        Refused = "refused",
        Panicked = "panicked",
    }
}

impl Tracer {
    pub fn start(settings: &Spans) -> Result<Arc<Self>, Vec<String>> {
        let (queue, queued) = mpsc::channel(settings.max_queued);
        let (ending, end) = watch::channel(None);
        let counts = Arc::<SpanCounts>::default();
        let exporter = export::Exporter::new(settings, queued, end, counts.clone())?;
        let no_thread = |error: io::Error| vec![format!("cannot start the thread of tracing: {error}")];
        let thread = exporter.start().map_err(no_thread)?;
        Ok(Arc::new(Self {
            sampler: Sampler::new(settings.sampling_rate),
            descriptor_values: settings.descriptor_values,
            queue,
            counts,
            ending,
            exporter: thread,
        }))
    }

    /// Begins the span of a call with these headers, if it is sampled: by the caller's decision, else at random.
    pub fn join(self: &Arc<Self>, headers: &HeaderMap, name: &'static str) -> Option<Box<OpenSpan>> {
        let place = match Parent::of(headers) {
            Parent::Span { sampled: Some(false), .. } | Parent::Unsampled => return None,
            Parent::Span { trace, span, sampled, state } => {
                let sampled = sampled.unwrap_or_else(|| self.sampler.takes(trace));
                sampled.then(|| Place::below(trace, span, state))?
            }
            Parent::Sampled => Place::root(sampling::trace_id()),
            Parent::Unknown => {
                let trace = sampling::trace_id();
                self.sampler.takes(trace).then(|| Place::root(trace))?
            }
        };
        // Nothing is recorded for a full queue.
        if self.queue.capacity() == 0 {
            self.counts.add_dropped(Dropped::QueueFull, 1);
            return None;
        }
        Some(Box::new(OpenSpan::new(self.clone(), place, name)))
    }

    pub fn counts(&self) -> &SpanCounts {
        &self.counts
    }

    /// Has the exporter send the queued spans until this moment, and stop. Later spans are dropped.
    pub fn end(&self, until: Instant) {
        self.ending.send_replace(Some(until));
    }

    pub fn has_ended(&self) -> bool {
        self.exporter.is_finished()
    }

    fn take(&self, span: Span) {
        if self.queue.try_send(span).is_ok() {
            self.counts.queued.fetch_add(1, Relaxed);
        } else {
            self.counts.add_dropped(Dropped::QueueFull, 1);
        }
    }
}

impl SpanCounts {
    pub fn exported(&self) -> u64 {
        self.exported.load(Relaxed)
    }

    /// Spans in the queue, or sent without a response yet.
    pub fn unsent(&self) -> u64 {
        let ended =
            [Dropped::Unreachable, Dropped::Refused, Dropped::Panicked].map(|reason| self.dropped(reason));
        let ended = self.exported() + ended.iter().sum::<u64>();
        self.queued.load(Relaxed).saturating_sub(ended)
    }

    pub fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped.get(reason as usize).map_or(0, |dropped| dropped.load(Relaxed))
    }

    fn add_exported(&self, spans: u64) {
        self.exported.fetch_add(spans, Relaxed);
    }

    fn add_dropped(&self, reason: Dropped, spans: u64) {
        if let Some(dropped) = self.dropped.get(reason as usize) {
            dropped.fetch_add(spans, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::otlp::settings::{Collector, Protocol, Signal};

    /// A tracer of all calls without a collector.
    fn tracer(max_queued: usize) -> Arc<Tracer> {
        let collector = Collector {
            signal: Signal::Traces,
            protocol: Protocol::Http,
            endpoint: "http://127.0.0.1:1/v1/traces".parse().unwrap(),
            variable: "OTEL_EXPORTER_OTLP_ENDPOINT",
            headers: HeaderMap::new(),
            timeout: Duration::from_secs(1),
            gzip: false,
            tls: None,
        };
        let (resource, delay) = (Vec::new(), Duration::from_secs(3600));
        let spans = Spans {
            resource,
            sampling_rate: 1.0,
            descriptor_values: false,
            max_queued,
            max_batch: max_queued + 1,
            delay,
            collector,
        };
        Tracer::start(&spans).unwrap()
    }

    fn end(tracer: &Tracer) {
        tracer.end(Instant::now() + Duration::from_secs(60));
        while !tracer.has_ended() {
            thread::yield_now();
        }
    }

    fn dropped(tracer: &Tracer) -> [u64; 4] {
        Dropped::ALL.map(|reason| tracer.counts().dropped(reason))
    }

    #[test]
    fn unsent_spans_are_counted_once() {
        let tracer = tracer(1000);
        for _ in 0..10 {
            tracer.join(&HeaderMap::new(), "call").unwrap().answered();
        }
        assert_eq!(tracer.counts().unsent(), 10);
        end(&tracer);
        assert_eq!((dropped(&tracer), tracer.counts().exported()), ([0, 10, 0, 0], 0));
        tracer.join(&HeaderMap::new(), "call").unwrap().answered();
        assert_eq!(dropped(&tracer), [1, 10, 0, 0], "the exporter has ended");
        assert_eq!(tracer.counts().unsent(), 0);
    }

    #[test]
    fn drops_spans_when_the_queue_is_full() {
        let tracer = tracer(1);
        end(&tracer);
        let [first, second] = [(); 2].map(|()| tracer.join(&HeaderMap::new(), "call"));
        assert!(first.is_some() && second.is_some(), "the queue has room when both begin");
        drop((first, second));
        assert_eq!(dropped(&tracer), [2, 0, 0, 0]);
    }
}
