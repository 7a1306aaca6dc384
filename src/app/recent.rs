//! The statistics of recent decisions, and the threads that write the logs of decisions and requests.

use std::{
    fs::{File, OpenOptions},
    io, mem,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tracing::warn;

use super::parts::App;
use clock::{Clock, SystemClock};
use faults::{files, log_throttle::LogThrottle, panics::Boundary, periodic::Periodic};
use limiter::{RecentRequests, RequestLog};
use metrics::ShardCount;
use recent::{DecisionLog, KeyValues, Recent};
use settings::{Decisions, Settings};

pub(super) fn recent(settings: &Settings) -> Arc<Recent> {
    let &Decisions { key_values, logged, .. } = &settings.decisions;
    let shards = ShardCount::for_workers(settings.server.grpc.workers);
    Arc::new(Recent::new(shards, key_values, logged))
}

/// True if anything reads the recent decisions.
pub(super) fn is_wanted(settings: &Settings) -> bool {
    let decisions = &settings.decisions;
    settings.admin.is_some() || decisions.logged.is_some() || decisions.metrics_top_keys > 0
}

pub(super) fn request_log(settings: &Settings) -> Option<Arc<RequestLog>> {
    let &Decisions { key_values, recorded, max_request_lines, .. } = &settings.decisions;
    let shards = ShardCount::for_workers(settings.server.grpc.workers);
    recorded.map(|recorded| Arc::new(RequestLog::new(recorded, key_values, max_request_lines, shards)))
}

/// The last requests, if anybody can try rules on them.
pub(super) fn recent_requests(settings: &Settings) -> Option<Arc<RecentRequests>> {
    let &Decisions { key_values, recent_request_bytes, .. } = &settings.decisions;
    let is_wanted = settings.admin.is_some() && recent_request_bytes > 0 && key_values != KeyValues::Hidden;
    let shards = ShardCount::for_workers(settings.server.grpc.workers);
    is_wanted.then(|| Arc::new(RecentRequests::new(recent_request_bytes, key_values, shards)))
}

/// Starts the threads that write the logs of decisions and requests, if they are enabled.
pub(super) fn write_logs(settings: &Settings, app: &App) -> io::Result<Vec<Periodic>> {
    let decisions = &settings.decisions;
    let mut writing = Vec::new();
    if decisions.logged.is_some() {
        let recent = app.recent.clone();
        let flush = move |write: &mut dyn io::Write| recent.flush_log(write);
        writing.push(write("decision-log", decisions.file.clone(), DecisionLog::PAUSE, flush)?);
    }
    if let Some(log) = app.request_log.clone() {
        let flush = move |write: &mut dyn io::Write| log.flush(write);
        writing.push(write("request-log", decisions.request_file.clone(), RequestLog::PAUSE, flush)?);
    }
    Ok(writing)
}

/// Starts a thread that flushes a log after each pause.
fn write(
    name: &'static str,
    file: Option<PathBuf>,
    pause: Duration,
    flush: impl Fn(&mut dyn io::Write) -> io::Result<()> + Send + 'static,
) -> io::Result<Periodic> {
    let throttle = LogThrottle::new(10);
    let mut is_new = true;
    // A panic costs the lines of one flush.
    Periodic::start(name, Boundary::Maintenance, pause, move |_| {
        // In this thread, because opening a named pipe blocks until it has a reader. A later error is reported when lines
        // are dropped.
        if mem::take(&mut is_new)
            && let Some(path) = &file
            && let Err(error) = open(path)
        {
            let path = path.display();
            let error = files::advised(&error);
            warn!(%path, error, "cannot write the {}: its lines are dropped", name.replace('-', " "));
        }
        let Err(error) = flush(&mut Target(file.as_ref())) else { return };
        if let Some(suppressed) = throttle.admit(SystemClock.now()) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            let path = file.as_ref().map(|path| path.display().to_string());
            let log = name.replace('-', " ");
            warn!(%error, path, suppressed, "cannot write the {log}, lines are dropped");
        }
    })
}

/// A new file is for its owner alone: it has what callers sent.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The file, opened for each write so that it may be rotated; else standard output.
struct Target<'a>(Option<&'a PathBuf>);

impl io::Write for Target<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0 {
            Some(path) => files::append(&mut open(path)?, bytes).map(|()| bytes.len()),
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
