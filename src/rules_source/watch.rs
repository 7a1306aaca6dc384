//! Hot reload: a thread that reloads when something changes where the rules are.
//!
//! The thread watches first and reads then, so that nothing falls between: what changes while it reads
//! or compiles rings its bell, and leads to another reload. Many events are one reload, once it is quiet.
//! After each the directories to watch are worked out anew. File systems that tell nothing, as some of a
//! network, and a kernel that grants no more watches are made up for by a look from time to time.
//! It is a thread of its own because it reads and compiles; those that serve are not held up.

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

use notify::{Config, ErrorKind, RecommendedWatcher, RecursiveMode};

use super::{RulesDir, Source, interest::Interest, listing::Listing};
use crate::{
    clock::Clock,
    panics::{self, Boundary},
};

/// How long the thread waits for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Debounce {
    /// A burst of events is over when it has been quiet for so long.
    pub quiet: Duration,
    /// A burst that does not end is taken for one after so long.
    pub at_most: Duration,
    /// So often the thread looks by itself.
    pub look_every: Duration,
}

impl Default for Debounce {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            at_most: Duration::from_millis(500),
            look_every: Duration::from_secs(10),
        }
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Watcher {
    bell: Wakeup,
    thread: Option<JoinHandle<()>>,
}

/// Starts to watch `directory`, and reloads once if the files are not what `source` read last.
///
/// # Errors
///
/// When the system grants no thread.
pub fn spawn<T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    directory: RulesDir,
    clock: impl Clock + 'static,
    pace: Debounce,
) -> io::Result<Watcher> {
    spawn_with::<RecommendedWatcher, T>(source, directory, clock, pace)
}

/// As [`spawn`], with events from `W`.
pub(super) fn spawn_with<W: notify::Watcher + 'static, T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    directory: RulesDir,
    clock: impl Clock + 'static,
    pace: Debounce,
) -> io::Result<Watcher> {
    let (sender, receiver) = sync_channel(1);
    let bell = Wakeup { sender, stopped: Arc::default() };
    let ears = EventReceiver { bell: bell.clone(), receiver, pace };
    let thread = thread::Builder::new().name("rules-watcher".to_owned()).spawn(move || {
        panics::restart(Boundary::RulesWatcher, || run::<W, T>(&source, &directory, &clock, &ears));
    })?;
    Ok(Watcher { bell, thread: Some(thread) })
}

impl Watcher {
    /// Ends the thread, and waits until a reload that is under way is done.
    pub fn stop(mut self) {
        self.bell.stop();
        // The thread stops its own panics.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Without waiting: a network file system may hold the thread for ever.
        self.bell.stop();
    }
}

fn run<W: notify::Watcher, T>(
    source: &Source<T>,
    directory: &RulesDir,
    clock: &dyn Clock,
    ears: &EventReceiver,
) {
    let mut trouble = None;
    loop {
        panics::point("rules_watcher");
        let (watch, listing) = Watch::<W>::set(directory, &ears.bell);
        watch.tell_new_trouble(&mut trouble, ears.pace.look_every);
        source.reload_if_changed(directory, clock.now());
        loop {
            match ears.wait() {
                Changes::Stop => return,
                Changes::Change => break,
                Changes::Nothing => {}
            }
            source.free_retired();
            if watch.trouble.is_some() || directory.list() != listing {
                break;
            }
        }
    }
}

/// Rings when there is something to do. It rings once, however often it is struck before it is heard.
#[derive(Clone, Debug)]
struct Wakeup {
    sender: SyncSender<()>,
    stopped: Arc<AtomicBool>,
}

impl Wakeup {
    fn ring(&self) {
        // A full channel rings already; a closed one has nobody left to hear it.
        let _ = self.sender.try_send(());
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ring();
    }
}

/// Who hears the bell, and how long one waits for it.
struct EventReceiver {
    bell: Wakeup,
    receiver: Receiver<()>,
    pace: Debounce,
}

/// What the bell meant.
enum Changes {
    Change,
    Nothing,
    Stop,
}

impl EventReceiver {
    /// Waits for the bell, and then until it is quiet.
    fn wait(&self) -> Changes {
        match self.receiver.recv_timeout(self.pace.look_every) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return Changes::Nothing,
            Err(RecvTimeoutError::Disconnected) => return Changes::Stop,
        }
        let begun = Instant::now();
        loop {
            if self.bell.stopped.load(Ordering::Acquire) {
                return Changes::Stop;
            }
            let left = self.pace.at_most.saturating_sub(begun.elapsed());
            if left.is_zero() || self.receiver.recv_timeout(self.pace.quiet.min(left)).is_err() {
                return Changes::Change;
            }
        }
    }
}

/// The directories that are watched now. It is never changed, but made anew: a directory that was
/// removed and made again looks like the one that was watched, and tells nothing.
struct Watch<W> {
    /// Kept for what it does: it strikes the bell.
    _events: Option<W>,
    /// Why not all of them are watched.
    trouble: Option<String>,
}

impl<W: notify::Watcher> Watch<W> {
    /// Watches what there is to watch for `directory`, and tells what stands there.
    fn set(directory: &RulesDir, bell: &Wakeup) -> (Self, Listing) {
        let path = directory.path();
        let listing = directory.list();
        let interest = Interest::of(&path, &listing);
        let watch = Self::on(&interest, bell);
        // What changed before its directory was watched told nobody.
        let after = directory.list();
        if after != listing || Interest::of(&path, &after) != interest {
            bell.ring();
        }
        (watch, after)
    }

    fn on(interest: &Interest, bell: &Wakeup) -> Self {
        let (strikes, concerned) = (bell.clone(), interest.clone());
        let handler = move |event: notify::Result<notify::Event>| {
            let concerns = || event.is_err() || event.is_ok_and(|event| concerned.concerns(&event));
            // This is a thread of notify's, which nobody starts again.
            if panics::catch(Boundary::RulesWatcher, concerns).unwrap_or(true) {
                strikes.ring();
            }
        };
        let mut events = match W::new(handler, Config::default()) {
            Ok(events) => events,
            Err(error) => return Self { _events: None, trouble: Some(trouble(&error)) },
        };
        let mut failed = None;
        for directory in interest.directories() {
            let Err(error) = events.watch(directory, RecursiveMode::NonRecursive) else { continue };
            // One that went away meanwhile is missing from the listing made afterwards.
            if !is_not_found(&error) {
                failed = Some(trouble(&error));
            }
        }
        Self { _events: Some(events), trouble: failed }
    }

    /// Logs trouble once, not each time that it is met again.
    fn tell_new_trouble(&self, told: &mut Option<String>, look_every: Duration) {
        if *told == self.trouble {
            return;
        }
        if let Some(trouble) = &self.trouble {
            tracing::warn!(
                "changes of the rules are noticed within {look_every:?} instead of at once: {trouble}"
            );
        } else {
            tracing::info!("changes of the rules are noticed at once again");
        }
        told.clone_from(&self.trouble);
    }
}

fn is_not_found(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// What stands in the way of watching, and what to do.
fn trouble(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => {
            "the kernel grants no more watches; raise fs.inotify.max_user_watches with sysctl".to_owned()
        }
        ErrorKind::Io(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            "the kernel grants no more watchers, or no more open files; raise fs.inotify.max_user_instances \
             with sysctl, or the limit of open files"
                .to_owned()
        }
        _ => error.to_string(),
    }
}
