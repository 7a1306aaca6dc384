//! Hot reload: a thread that reloads the rules when their files change.
//!
//! The thread lists the files twice a second and compares the listings, which detects every kind of change on every file
//! system: writes, renames, permissions, and symlinks that are swapped anywhere on the path. Events of the rules
//! directories make it reload sooner. A burst of events causes one reload. The thread reads and compiles, which must
//! not delay requests.

use std::{
    io, mem,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use notify::{
    Config, EventKind, RecommendedWatcher, RecursiveMode,
    event::{AccessKind, AccessMode},
};

use super::{RulesDir, Source, listing::Listing};
use clock::Clock;
use faults::panics::{self, Boundary};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Debounce {
    /// A burst of events ends after this time without an event.
    pub quiet: Duration,
    /// The longest time from the first event of a burst to the reload.
    pub max_delay: Duration,
    pub list_interval: Duration,
}

impl Default for Debounce {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            max_delay: Duration::from_millis(500),
            list_interval: Duration::from_millis(500),
        }
    }
}

/// The thread waits at least this many times as long as the last listing took, so that a slow or huge directory does
/// not occupy a core.
const LISTING_SHARE: u32 = 50;

/// Watches a directory; stops when dropped.
pub struct Watcher {
    _wakeup: Arc<SyncSender<()>>,
}

pub type SystemEvents = RecommendedWatcher;

/// Watches `directory` with events from `W`, and reloads it now if the files are not those that `source` read last.
pub fn spawn<W: notify::Watcher + 'static, T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    directory: RulesDir,
    clock: impl Clock + 'static,
    debounce: Debounce,
) -> io::Result<Watcher> {
    // One message is enough to wake the thread.
    let (wakeup, events) = sync_channel(1);
    let wakeup = Arc::new(wakeup);
    let events = Events { receiver: events, wakeup: Arc::downgrade(&wakeup), debounce };
    thread::Builder::new().name("rules-watcher".to_owned()).spawn(move || {
        panics::restart(Boundary::RulesWatcher, || run::<W, T>(&source, &directory, &clock, &events));
    })?;
    Ok(Watcher { _wakeup: wakeup })
}

fn run<W: notify::Watcher, T>(source: &Source<T>, directory: &RulesDir, clock: &dyn Clock, events: &Events) {
    loop {
        panics::point("rules_watcher");
        let _watcher = watch::<W>(&directory.list(), &events.wakeup);
        // Taken after the watch and before the read, so that the next listing shows a change at any time.
        let before = Instant::now();
        let listing = directory.list();
        let mut took = before.elapsed();
        source.reload(directory, clock.now());
        loop {
            let Some(has_event) = events.wait(took) else { return };
            source.free_retired();
            let before = Instant::now();
            if has_event || directory.list() != listing {
                break;
            }
            took = before.elapsed();
        }
    }
}

/// Watches the directories of a listing. Without events, as on some network file systems or when the kernel is out of
/// watches, the listings alone detect changes.
fn watch<W: notify::Watcher>(listing: &Listing, wakeup: &Weak<SyncSender<()>>) -> Option<W> {
    let wakeup = wakeup.clone();
    let handler = move |event: notify::Result<notify::Event>| {
        // Reading the files must not cause another read.
        let is_read = event.is_ok_and(|event| {
            matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
        });
        if !is_read && let Some(wakeup) = wakeup.upgrade() {
            // A full channel wakes the thread already.
            let _ = wakeup.try_send(());
        }
    };
    let log =
        |error: &notify::Error| tracing::debug!("cannot watch rules files for events, polling only: {error}");
    let mut watcher = W::new(handler, Config::default()).inspect_err(log).ok()?;
    // Where the system refuses another thread, the watcher has none: this call fails, and every other one panics. So does
    // its destructor, and a second panic would abort the process.
    if watcher.configure(Config::default()).inspect_err(log).is_err() {
        mem::forget(watcher);
        return None;
    }
    for directory in &listing.directories {
        // A directory that was removed meanwhile is missing from the next listing.
        let _ = watcher.watch(directory, RecursiveMode::NonRecursive).inspect_err(log);
    }
    Some(watcher)
}

struct Events {
    receiver: Receiver<()>,
    wakeup: Weak<SyncSender<()>>,
    debounce: Debounce,
}

impl Events {
    /// Waits for the end of a burst of events, and returns true, or until the next listing is due, and returns false.
    /// `None` if the [`Watcher`] was dropped.
    fn wait(&self, listing_took: Duration) -> Option<bool> {
        let pause = self.debounce.list_interval.max(listing_took.saturating_mul(LISTING_SHARE));
        match self.receiver.recv_timeout(pause) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return Some(false),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        let begun = Instant::now();
        loop {
            let left = self.debounce.max_delay.saturating_sub(begun.elapsed());
            match self.receiver.recv_timeout(self.debounce.quiet.min(left)) {
                Ok(()) if !left.is_zero() => {}
                Err(RecvTimeoutError::Disconnected) => return None,
                _ => return Some(true),
            }
        }
    }
}
