//! Sinks: metrics are sent to statsd, to DogStatsD or to both, at an interval and at shutdown.
//!
//! Reading order: [`start`] runs a thread per sink, whose `DeltaTracker` knows the counts that the sink has received;
//! `line` writes a count, `mogrifier` renames it, `outbox` packs lines, `connection` connects to the sink. Workers
//! never wait for a sink, and no sink waits for another.

mod connection;
mod delta_tracker;
mod line;
mod mogrifier;
mod outbox;
pub mod settings;
#[cfg(test)]
mod tests;
mod times;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

pub use self::line::Dialect;

pub use mogrifier::mogrify;

use self::{connection::SinkConnection, delta_tracker::DeltaTracker, outbox::Outbox};
use crate::statsd::settings::SinkAddress;
use faults::{
    panics::{self, Boundary},
    periodic::Periodic,
};
use metrics::{Samples, Stats};

#[derive(Clone, PartialEq, Debug)]
pub struct Sink {
    pub target: SinkAddress,
    pub dialect: Dialect,
    /// False for the default sink, which may be absent: a refused connection causes no warning then.
    pub is_configured: bool,
}

pub type SharedGauges = Arc<dyn Fn(&mut Samples<'_>) + Send + Sync>;

/// The thread of each sink, and the number of values that the sink has not received.
pub struct Flushing(pub(crate) Vec<(Periodic, Arc<AtomicU64>)>);

/// Sends metrics to each sink at this interval.
pub fn start(
    stats: &Arc<Stats>,
    gauges: &SharedGauges,
    interval: Duration,
    sinks: Vec<Sink>,
) -> io::Result<Flushing> {
    let spawn = |sink: Sink| {
        let unsent = Arc::new(AtomicU64::new(0));
        let mut flusher = Flusher {
            stats: stats.clone(),
            gauges: gauges.clone(),
            deltas: DeltaTracker::default(),
            connection: SinkConnection::new(sink.target, sink.is_configured),
            dialect: sink.dialect,
            entered: Instant::now(),
            unsent: unsent.clone(),
        };
        // After a panic, the next flush sends the rest.
        let flush = move |is_last| flusher.flush(is_last);
        Ok((Periodic::start("statsd", Boundary::Statsd, interval, flush)?, unsent))
    };
    sinks.into_iter().map(spawn).collect::<io::Result<_>>().map(Flushing)
}

impl Flushing {
    /// Has each thread send the rest.
    pub fn stop(&self) {
        self.0.iter().for_each(|(thread, _)| thread.stop());
    }

    pub fn has_ended(&self) -> bool {
        self.0.iter().all(|(thread, _)| thread.has_ended())
    }

    /// The values that the configured sinks have not received, as of their last flushes.
    pub fn unsent(&self) -> u64 {
        self.0.iter().map(|(_, unsent)| unsent.load(Relaxed)).sum()
    }
}

struct Flusher {
    stats: Arc<Stats>,
    gauges: SharedGauges,
    deltas: DeltaTracker,
    connection: SinkConnection,
    dialect: Dialect,
    entered: Instant,
    unsent: Arc<AtomicU64>,
}

/// The interval of reading counters while the sink is unreachable: idle names are forgotten after an hour.
const ENTER_EVERY: Duration = Duration::from_secs(900);

impl Flusher {
    fn flush(&mut self, is_last: bool) {
        // Before the last attempt to connect, which may hang until the process ends.
        if is_last && self.connection.is_configured {
            self.enter();
        }
        let is_open = self.connection.is_open(is_last);
        if !is_open && (!self.connection.is_configured || self.entered.elapsed() <= ENTER_EVERY) {
            return;
        }
        panics::point("statsd");
        self.enter();
        if !is_open {
            return;
        }
        match self.deltas.send(&mut Outbox::new(&mut self.connection, &self.dialect)) {
            Ok(()) => self.connection.succeeded(),
            Err(error) => self.connection.failed(&error),
        }
        self.note_unsent();
    }

    fn enter(&mut self) {
        self.entered = Instant::now();
        self.deltas.enter(&self.stats, &*self.gauges);
        self.note_unsent();
    }

    fn note_unsent(&mut self) {
        let unsent = if self.connection.is_configured { self.deltas.unsent() } else { 0 };
        self.unsent.store(unsent, Relaxed);
    }
}
