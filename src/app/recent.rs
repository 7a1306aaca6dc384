//! The statistics of recent decisions, and the thread that writes the decision log.

use std::{
    fs::OpenOptions,
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tracing::warn;

use crate::{settings::Decisions, settings::Settings};
use clock::{Clock, SystemClock};
use containment::{
    log_throttle::LogThrottle,
    panics::{self, Boundary},
};
use recent::{DecisionLog, Recent};
use telemetry::metrics::ShardCount;

pub(super) fn recent(settings: &Settings) -> Arc<Recent> {
    let &Decisions { key_values, logged, .. } = &settings.decisions;
    let shards = ShardCount::for_workers(settings.server.workers);
    Arc::new(Recent::new(shards, key_values, logged))
}

/// True if anything reads the recent decisions.
pub(super) fn is_wanted(settings: &Settings) -> bool {
    let decisions = &settings.decisions;
    settings.admin.is_some() || decisions.logged.is_some() || decisions.metrics_top_keys > 0
}

pub(super) struct Writing {
    stop: mpsc::Sender<()>,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<()>,
}

/// Starts the thread that writes the decision log, if it is enabled.
pub(super) fn write_log(settings: &Settings, recent: &Arc<Recent>) -> io::Result<Option<Writing>> {
    if settings.decisions.logged.is_none() {
        return Ok(None);
    }
    let ((stop, stopping), (running, ended)) = (mpsc::channel(), mpsc::channel());
    let (file, recent) = (settings.decisions.file.clone(), recent.clone());
    let writing = move || {
        let _running = running;
        let throttle = LogThrottle::new(10);
        while stopping.recv_timeout(DecisionLog::PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
            // A panic costs the lines of one flush.
            let _ = panics::catch(Boundary::Maintenance, || flush(&recent, file.as_ref(), &throttle));
        }
        flush(&recent, file.as_ref(), &throttle);
    };
    thread::Builder::new().name("decision-log".to_owned()).spawn(writing)?;
    Ok(Some(Writing { stop, ended }))
}

impl Writing {
    /// Writes the remaining lines, and waits for it up to `patience`: a pipe that is not read blocks the thread.
    pub(super) fn finish(self, patience: Duration) {
        drop(self.stop);
        let _ = self.ended.recv_timeout(patience);
    }
}

fn flush(recent: &Recent, file: Option<&PathBuf>, throttle: &LogThrottle) {
    if let Err(error) = recent.flush_log(&mut Target(file))
        && let Some(suppressed) = throttle.admit(SystemClock.now())
    {
        let suppressed = (suppressed > 0).then_some(suppressed);
        let path = file.map(|path| path.display().to_string());
        warn!(%error, path, suppressed, "cannot write the decision log, lines are dropped");
    }
}

/// The file, opened for each write so that it may be rotated; else standard output.
struct Target<'a>(Option<&'a PathBuf>);

impl io::Write for Target<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0 {
            Some(path) => OpenOptions::new().create(true).append(true).open(path)?.write(bytes),
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
