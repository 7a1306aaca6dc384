//! Hot reload: a thread that reloads the rules when their files change.
//!
//! The thread lists the files twice a second and compares, which notices every kind of change on every file
//! system: writes, renames, permissions, and symlinks that are swapped anywhere on the path. Events of the
//! rules directories make it look at once. Many events are one reload, once it is quiet. It is a thread of its
//! own because it reads and compiles, which must not delay requests.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use notify::{
    Config, EventKind, RecommendedWatcher, RecursiveMode,
    event::{AccessKind, AccessMode},
};

use super::{RulesDir, Source, listing::Listing};
use crate::{
    clock::Clock,
    panics::{self, Boundary},
};

/// The waiting times of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Debounce {
    /// A burst of events ends after this time without one.
    pub quiet: Duration,
    /// A burst that does not end leads to a reload after this time.
    pub at_most: Duration,
    /// The time between two listings.
    pub look_every: Duration,
}

impl Default for Debounce {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            at_most: Duration::from_millis(500),
            look_every: Duration::from_millis(500),
        }
    }
}

/// Listing takes at most one part in so many of the thread's time, so that a slow or huge directory does not
/// occupy a core.
const LISTING_SHARE: u32 = 50;

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Watcher {
    wakeup: Wakeup,
    thread: Option<JoinHandle<()>>,
}

/// Starts to watch `directory`, and reloads once if the files are not what `source` read last.
///
/// # Errors
///
/// When the system cannot start a thread.
pub fn spawn<T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    directory: RulesDir,
    clock: impl Clock + 'static,
    debounce: Debounce,
) -> io::Result<Watcher> {
    spawn_with::<RecommendedWatcher, T>(source, directory, clock, debounce)
}

/// As [`spawn`], with events from `W`.
pub(super) fn spawn_with<W: notify::Watcher + 'static, T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    directory: RulesDir,
    clock: impl Clock + 'static,
    debounce: Debounce,
) -> io::Result<Watcher> {
    let (sender, receiver) = sync_channel(1);
    let wakeup = Wakeup { sender, stopped: Arc::default() };
    let events = EventReceiver { wakeup: wakeup.clone(), receiver, debounce };
    let thread = thread::Builder::new().name("rules-watcher".to_owned()).spawn(move || {
        panics::restart(Boundary::RulesWatcher, || run::<W, T>(&source, &directory, &clock, &events));
    })?;
    Ok(Watcher { wakeup, thread: Some(thread) })
}

impl Watcher {
    /// Ends the thread, and waits for a reload in progress.
    pub fn stop(mut self) {
        self.wakeup.stop();
        // The thread catches its own panics.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Without waiting: a network file system may block the thread for ever.
        self.wakeup.stop();
    }
}

fn run<W: notify::Watcher, T>(
    source: &Source<T>,
    directory: &RulesDir,
    clock: &dyn Clock,
    events: &EventReceiver,
) {
    loop {
        panics::point("rules_watcher");
        let watched = directory.list();
        let _watcher = watch::<W>(&watched, &events.wakeup);
        // Taken after the watch and before the read, so that a change at any time shows in the next listing.
        let before = Instant::now();
        let listing = directory.list();
        let mut took = before.elapsed();
        source.reload_if_changed(directory, clock.now());
        loop {
            match events.wait(took) {
                Changes::Stop => return,
                Changes::Change => break,
                Changes::Nothing => {}
            }
            source.free_retired();
            let before = Instant::now();
            if directory.list() != listing {
                break;
            }
            took = before.elapsed();
        }
    }
}

/// Watches the directories of a listing. Without events, as on some network file systems or where the kernel
/// grants no more watches, the listings notice changes alone.
fn watch<W: notify::Watcher>(listing: &Listing, wakeup: &Wakeup) -> Option<W> {
    let wakeup = wakeup.clone();
    let handler = move |event: notify::Result<notify::Event>| {
        // Reading the files must not lead to another read.
        let is_read = event.is_ok_and(|event| {
            matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
        });
        if !is_read {
            wakeup.ring();
        }
    };
    let log =
        |error: &notify::Error| tracing::debug!("no events of rules files, listing them instead: {error}");
    let mut watcher = W::new(handler, Config::default()).inspect_err(log).ok()?;
    for directory in &listing.directories {
        // A directory that was removed meanwhile is missing from the next listing.
        let _ = watcher.watch(directory, RecursiveMode::NonRecursive).inspect_err(log);
    }
    Some(watcher)
}

/// Wakes the thread. Many calls before it wakes are one.
#[derive(Clone, Debug)]
struct Wakeup {
    sender: SyncSender<()>,
    stopped: Arc<AtomicBool>,
}

impl Wakeup {
    fn ring(&self) {
        // A full channel wakes the thread already, and a closed one has no thread.
        let _ = self.sender.try_send(());
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ring();
    }
}

/// The thread's end of the wake-ups.
struct EventReceiver {
    wakeup: Wakeup,
    receiver: Receiver<()>,
    debounce: Debounce,
}

/// Why the thread woke.
enum Changes {
    Change,
    Nothing,
    Stop,
}

impl EventReceiver {
    /// Waits for an event, and then until it is quiet; no longer than until the next listing, of which the
    /// last one took so long.
    fn wait(&self, listing_took: Duration) -> Changes {
        let pause = self.debounce.look_every.max(listing_took.saturating_mul(LISTING_SHARE));
        match self.receiver.recv_timeout(pause) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return Changes::Nothing,
            Err(RecvTimeoutError::Disconnected) => return Changes::Stop,
        }
        let begun = Instant::now();
        loop {
            if self.wakeup.stopped.load(Ordering::Acquire) {
                return Changes::Stop;
            }
            let left = self.debounce.at_most.saturating_sub(begun.elapsed());
            if left.is_zero() || self.receiver.recv_timeout(self.debounce.quiet.min(left)).is_err() {
                return Changes::Change;
            }
        }
    }
}
