//! What every panic of the process runs through: one count, a log line, and another with the backtrace.
//!
//! Installed by `cli::serve`; the other commands keep Rust's own hook, as they have no log.

use std::{
    backtrace::Backtrace,
    panic::{PanicHookInfo, set_hook},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use tracing::error;

use super::{Boundary, WITHIN};
use crate::log_throttle::LogThrottles;

/// The innermost frames, which is where the mistake is: the outer ones are the runtime's.
const MAX_BACKTRACE_BYTES: usize = 8 << 10;

static COUNTS: [AtomicU64; Boundary::ALL.len()] = [const { AtomicU64::new(0) }; Boundary::ALL.len()];

/// Panics of the same line of code are logged ten seconds apart at least: resolving the names of a backtrace
/// takes milliseconds of CPU, and a caller may have found out how to cause them.
static LOGGED: LazyLock<LogThrottles<String>> = LazyLock::new(|| LogThrottles::new(10, 64));

/// Panics so far, by the name of what they were stopped at.
#[must_use]
pub fn counts() -> [(&'static str, u64); Boundary::ALL.len()] {
    Boundary::ALL
        .map(|boundary| (boundary.name(), COUNTS.get(boundary as usize).map_or(0, |n| n.load(Relaxed))))
}

/// Logs and counts every panic from now on.
pub fn install() {
    set_hook(Box::new(panicked));
}

/// The hook. It must not panic itself: that would end the process.
fn panicked(info: &PanicHookInfo<'_>) {
    let boundary = WITHIN.get();
    if let Some(count) = COUNTS.get(boundary as usize) {
        count.fetch_add(1, Relaxed);
    }
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let Some(suppressed) = LOGGED.admit_now(location.clone()) else { return };
    let current = thread::current();
    error!(
        "where" = boundary.name(),
        location,
        thread = current.name().unwrap_or_default(),
        suppressed = (suppressed > 0).then_some(suppressed),
        "panicked: {}",
        message(info)
    );
    let backtrace = Arc::new(Backtrace::force_capture());
    // Resolving the names of the first backtrace reads all debugging information, which takes a fifth of a second:
    // the thread that panicked has others to serve.
    let (place, unresolved) = (location.clone(), backtrace.clone());
    let resolve = move || log_backtrace(boundary, &place, &unresolved);
    if thread::Builder::new().name("panic-log".to_owned()).spawn(resolve).is_err() {
        log_backtrace(boundary, &location, &backtrace);
    }
}

fn log_backtrace(boundary: Boundary, location: &str, backtrace: &Backtrace) {
    let mut backtrace = backtrace.to_string();
    let end = (0..=MAX_BACKTRACE_BYTES).rev().find(|end| backtrace.is_char_boundary(*end));
    backtrace.truncate(end.unwrap_or(backtrace.len()));
    error!("where" = boundary.name(), location, backtrace, "backtrace of the panic");
}

fn message<'a>(info: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
