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
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub use self::line::Dialect;

pub use mogrifier::mogrify;

use self::{connection::SinkConnection, delta_tracker::DeltaTracker, outbox::Outbox};
use crate::{
    metrics::{Samples, Stats},
    statsd::settings::SinkAddress,
};
use containment::panics::{self, Boundary};

pub struct Sink {
    pub target: SinkAddress,
    pub dialect: Dialect,
    /// False for the default sink, which may be absent.
    pub is_configured: bool,
}

pub type SharedGauges = Arc<dyn Fn(&mut Samples<'_>) + Send + Sync>;

pub struct Flushing(Vec<(Sender<()>, JoinHandle<()>)>);

/// Sends metrics to each sink at this interval.
pub fn start(
    stats: &Arc<Stats>,
    gauges: &SharedGauges,
    interval: Duration,
    sinks: Vec<Sink>,
) -> io::Result<Flushing> {
    let spawn = |sink: Sink| {
        let (stop, stopped) = channel();
        let mut flusher = Flusher {
            stats: stats.clone(),
            gauges: gauges.clone(),
            deltas: DeltaTracker::default(),
            connection: SinkConnection::new(sink.target, sink.is_configured),
            dialect: sink.dialect,
            entered: Instant::now(),
        };
        let run = move || flusher.run(interval, &stopped);
        Ok((stop, thread::Builder::new().name("statsd".to_owned()).spawn(run)?))
    };
    sinks.into_iter().map(spawn).collect::<io::Result<_>>().map(Flushing)
}

impl Flushing {
    /// Sends the rest to every sink, and waits for it up to `patience`.
    pub fn finish(self, patience: Duration) {
        let end = Instant::now() + patience;
        let threads: Vec<_> = self.0.into_iter().map(|(_, thread)| thread).collect();
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

struct Flusher {
    stats: Arc<Stats>,
    gauges: SharedGauges,
    deltas: DeltaTracker,
    connection: SinkConnection,
    dialect: Dialect,
    entered: Instant,
}

/// The interval of reading counters while the sink is unreachable: idle names are forgotten after an hour.
const ENTER_EVERY: Duration = Duration::from_secs(900);

impl Flusher {
    fn run(&mut self, interval: Duration, stopped: &Receiver<()>) {
        let mut next = Instant::now() + interval;
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            let is_last = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
            // After a panic, the next flush sends the rest.
            let _ = panics::catch(Boundary::Statsd, || self.flush(is_last));
            if is_last {
                return;
            }
            // A slow flush delays the next one; missed flushes are not made up for.
            next = (next + interval).max(Instant::now());
        }
    }

    fn flush(&mut self, is_last: bool) {
        let is_open = self.connection.is_open(is_last);
        if !is_open && (!self.connection.is_configured || self.entered.elapsed() <= ENTER_EVERY) {
            return;
        }
        self.entered = Instant::now();
        panics::point("statsd");
        self.deltas.enter(&self.stats, &*self.gauges);
        if !is_open {
            return;
        }
        match self.deltas.send(&mut Outbox::new(&mut self.connection, &self.dialect)) {
            Ok(()) => self.connection.succeeded(),
            Err(error) => self.connection.failed(&error),
        }
    }
}
