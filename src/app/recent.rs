//! What is noted of decisions, and the thread that writes the log of decisions.

use std::{
    fs::OpenOptions,
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use tracing::warn;

use crate::{
    clock::{Clock, SystemClock},
    log_throttle::LogThrottle,
    panics::{self, Boundary},
    recent::{DecisionLog, Recent, RecentOptions},
    settings::{Decisions, Settings},
    telemetry::metrics::ShardCount,
};

/// Empty tables.
pub(super) fn recent(settings: &Settings) -> Arc<Recent> {
    let &Decisions { key_values, logged, .. } = &settings.decisions;
    Arc::new(Recent::new(RecentOptions {
        shards: ShardCount::for_workers(settings.server.workers),
        values: key_values,
        logged,
    }))
}

/// Whether anybody looks at what is noted.
pub(super) fn is_wanted(settings: &Settings) -> bool {
    let decisions = &settings.decisions;
    settings.admin.is_some() || decisions.logged.is_some() || decisions.metrics_top_keys > 0
}

/// The thread that writes the log of decisions.
pub(super) struct Writing {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

/// Starts to write the log of decisions, if it is on.
pub(super) fn write_log(settings: &Settings, recent: &Arc<Recent>) -> io::Result<Option<Writing>> {
    if settings.decisions.logged.is_none() {
        return Ok(None);
    }
    let (stop, stopping) = mpsc::channel();
    let (file, recent) = (settings.decisions.file.clone(), recent.clone());
    let writing = move || {
        let throttle = LogThrottle::new(10);
        while stopping.recv_timeout(DecisionLog::PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
            // A panic costs the lines of one flush.
            let _ = panics::catch(Boundary::Maintenance, || flush(&recent, file.as_ref(), &throttle));
        }
        flush(&recent, file.as_ref(), &throttle);
    };
    let thread = thread::Builder::new().name("decision-log".to_owned()).spawn(writing)?;
    Ok(Some(Writing { stop, thread }))
}

impl Writing {
    /// Writes what is left, and ends.
    pub(super) fn finish(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

fn flush(recent: &Recent, file: Option<&PathBuf>, throttle: &LogThrottle) {
    let mut target = Target { file, open: None };
    if let Err(error) = recent.flush_log(&mut target)
        && let Some(suppressed) = throttle.admit(SystemClock.now())
    {
        let suppressed = (suppressed > 0).then_some(suppressed);
        let path = file.map(|path| path.display().to_string());
        warn!(%error, path, suppressed, "the log of decisions could not be written: lines are dropped");
    }
}

/// The file, opened for each flush, so that it may be moved away; else standard output.
struct Target<'a> {
    file: Option<&'a PathBuf>,
    open: Option<Box<dyn io::Write>>,
}

impl io::Write for Target<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let open = match (self.open.take(), self.file) {
            (Some(open), _) => open,
            (None, Some(path)) => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
            (None, None) => Box::new(io::stdout()),
        };
        self.open.insert(open).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), io::Write::flush)
    }
}
