//! The panic hook: counts each panic, logs it, and logs its backtrace.
//!
//! Installed by `cli::serve`; the other commands have no log and keep Rust's default hook.

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

/// The maximum size of a logged backtrace. The innermost frames come first; the outer ones are the runtime's.
const MAX_BACKTRACE_BYTES: usize = 8 << 10;

static COUNTS: [AtomicU64; Boundary::ALL.len()] = [const { AtomicU64::new(0) }; Boundary::ALL.len()];

/// Logs panics of the same location at most every ten seconds: resolving a backtrace takes milliseconds of CPU, and a
/// caller may know how to cause panics.
static LOGGED: LazyLock<LogThrottles<String>> = LazyLock::new(|| LogThrottles::new(10, 64));

pub fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    Boundary::ALL.iter().zip(&COUNTS).map(|(boundary, count)| (boundary.name(), count.load(Relaxed)))
}

pub fn install() {
    set_hook(Box::new(hook));
}

/// Must not panic, which would abort the process.
fn hook(info: &PanicHookInfo<'_>) {
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
    // Resolving the first backtrace loads all debug information, which takes 200 ms, and the thread serves other requests.
    let at = location.clone();
    let unresolved = backtrace.clone();
    let resolve = move || log_backtrace(boundary, &at, &unresolved);
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
