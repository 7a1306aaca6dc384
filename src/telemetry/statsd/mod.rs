//! Sinks: metrics are sent to statsd, to DogStatsD or to both, at an interval and at shutdown.
//!
//! Reading order: [`start`] gives each sink a thread of its own, whose `DeltaTracker` knows what the sink has
//! received; `line` writes it, [`Mogrifier`] renames it, `outbox` packs it, `link` is the connection. Workers never
//! wait for a sink, and no sink waits for another.

mod delta_tracker;
mod line;
mod link;
mod mogrifier;
mod outbox;
#[cfg(test)]
mod tests;
mod times;

use std::{
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub use self::{line::Dialect, mogrifier::Mogrifier};

use self::{delta_tracker::DeltaTracker, link::Link, outbox::Outbox};
use crate::{
    panics::{self, Boundary},
    settings::sinks::SinkAddress,
    telemetry::metrics::{Gauges, Stats},
};

/// A sink.
#[derive(Debug)]
pub struct Sink {
    /// Where.
    pub target: SinkAddress,
    /// In which language.
    pub dialect: Dialect,
    /// False when nobody asked for it and it is no trouble that nobody is there.
    pub is_asked_for: bool,
}

/// The present state of other rooms, asked for at each flush.
pub type State = Arc<dyn Fn() -> Gauges + Send + Sync>;

/// The running sinks.
pub struct Flushing(Vec<(Sender<()>, JoinHandle<()>)>);

/// Sends what was counted to each sink, every `interval` from now on.
///
/// # Errors
/// When the system grants no thread.
pub fn start(
    stats: &Arc<Stats>,
    state: &State,
    interval: Duration,
    sinks: Vec<Sink>,
) -> io::Result<Flushing> {
    let spawn = |sink: Sink| {
        let (stop, stopped) = channel();
        let mut flusher = Flusher {
            stats: stats.clone(),
            state: state.clone(),
            deltas: DeltaTracker::default(),
            link: Link::new(sink.target, sink.is_asked_for),
            dialect: sink.dialect,
            noted: Instant::now(),
        };
        let run = move || flusher.run(interval, &stopped);
        Ok((stop, thread::Builder::new().name("statsd".to_owned()).spawn(run)?))
    };
    sinks.into_iter().map(spawn).collect::<io::Result<_>>().map(Flushing)
}

impl Flushing {
    /// Sends the rest to every sink, and waits until that is done, or for `patience`.
    pub fn finish(self, patience: Duration) {
        let end = Instant::now() + patience;
        let threads: Vec<_> = self.0.into_iter().map(|(_, thread)| thread).collect();
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl fmt::Debug for Flushing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sinks", self.0.len())
    }
}

/// The sender of one sink.
struct Flusher {
    stats: Arc<Stats>,
    state: State,
    deltas: DeltaTracker,
    link: Link,
    dialect: Dialect,
    /// When it was last noted what was counted.
    noted: Instant,
}

/// How often is noted what was counted while the sink is away.
const NOTE_EVERY: Duration = Duration::from_secs(900);

impl Flusher {
    fn run(&mut self, interval: Duration, stopped: &Receiver<()>) {
        let mut next = Instant::now() + interval;
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            let is_last = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
            // What a flush that panicked did not send is sent by the next one.
            let _ = panics::catch(Boundary::Statsd, || self.flush(is_last));
            if is_last {
                return;
            }
            // After a slow flush the next one comes an interval later, and none are made up for.
            next = (next + interval).max(Instant::now());
        }
    }

    /// Takes note of what a sink that is away is owed: names that nobody uses are given up after an hour.
    fn note(&mut self) {
        if self.link.is_asked_for() && self.noted.elapsed() > NOTE_EVERY {
            self.noted = Instant::now();
            self.deltas.enter(&self.stats, &(self.state)());
        }
    }

    fn flush(&mut self, is_last: bool) {
        if !self.link.is_open(is_last) {
            self.note();
            return;
        }
        self.noted = Instant::now();
        panics::point("statsd");
        self.deltas.enter(&self.stats, &(self.state)());
        match self.deltas.send(&mut Outbox::new(&mut self.link, &self.dialect)) {
            Ok(()) => self.link.succeeded(),
            Err(error) => self.link.failed(&error),
        }
    }
}
