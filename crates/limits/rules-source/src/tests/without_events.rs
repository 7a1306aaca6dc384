//! Without events, the listings detect every change.

use std::path::Path;

use notify::{Config, ErrorKind, EventHandler, NullWatcher, RecursiveMode, WatcherKind};

use super::*;

const BY_LISTINGS: Debounce = Debounce {
    quiet: Duration::from_millis(1),
    max_delay: Duration::from_millis(1),
    list_interval: Duration::from_millis(10),
};

/// A kernel that is out of watches.
struct OutOfWatches;

impl notify::Watcher for OutOfWatches {
    fn new<F: EventHandler>(_: F, _: Config) -> notify::Result<Self> {
        Ok(Self)
    }
    fn watch(&mut self, _: &Path, _: RecursiveMode) -> notify::Result<()> {
        Err(notify::Error::new(ErrorKind::MaxFilesWatch))
    }
    fn unwatch(&mut self, _: &Path) -> notify::Result<()> {
        Ok(())
    }
    fn kind() -> WatcherKind {
        WatcherKind::NullWatcher
    }
}

/// A kernel that is out of watchers.
struct OutOfWatchers;

impl notify::Watcher for OutOfWatchers {
    fn new<F: EventHandler>(_: F, _: Config) -> notify::Result<Self> {
        Err(notify::Error::io(std::io::Error::from_raw_os_error(libc::EMFILE)))
    }
    fn watch(&mut self, _: &Path, _: RecursiveMode) -> notify::Result<()> {
        Ok(())
    }
    fn unwatch(&mut self, _: &Path) -> notify::Result<()> {
        Ok(())
    }
    fn kind() -> WatcherKind {
        WatcherKind::NullWatcher
    }
}

/// A system that refuses the watcher's thread, after which `notify` answers calls by a panic.
struct OutOfThreads;

impl notify::Watcher for OutOfThreads {
    fn new<F: EventHandler>(_: F, _: Config) -> notify::Result<Self> {
        Ok(Self)
    }
    fn watch(&mut self, _: &Path, _: RecursiveMode) -> notify::Result<()> {
        panic!("there is no thread")
    }
    fn unwatch(&mut self, _: &Path) -> notify::Result<()> {
        panic!("there is no thread")
    }
    fn configure(&mut self, _: Config) -> notify::Result<bool> {
        Err(notify::Error::generic("there is no thread"))
    }
    fn kind() -> WatcherKind {
        WatcherKind::NullWatcher
    }
}

impl Drop for OutOfThreads {
    fn drop(&mut self) {
        panic!("there is no thread")
    }
}

fn is_detected_by_listings<W: notify::Watcher + 'static>() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let Files { source, directory } = place.source("");
    let clock = ManualClock::default();
    let watcher = spawn::<W, _>(Arc::clone(&source), directory, clock, BY_LISTINGS).unwrap();
    wait_until(&source, "the first reload", |source| domains(source) == ["a"]);
    place.write("config/a.yaml", rules_of("b"));
    wait_until(&source, "the written file", |source| domains(source) == ["b"]);
    fs::remove_dir_all(place.path("config")).unwrap();
    wait_until(&source, "the rejection", |source| source.state().errors == 1);
    place.write("config/a.yaml", rules_of("c"));
    wait_until(&source, "the recovery", |source| domains(source) == ["c"]);
    drop(watcher);
}

#[test]
fn detects_changes_on_a_file_system_without_notifications() {
    is_detected_by_listings::<NullWatcher>();
}

#[test]
fn detects_changes_when_the_kernel_is_out_of_watches() {
    is_detected_by_listings::<OutOfWatches>();
}

#[test]
fn detects_changes_when_the_kernel_is_out_of_watchers() {
    is_detected_by_listings::<OutOfWatchers>();
}

#[test]
fn a_system_that_is_out_of_threads() {
    is_detected_by_listings::<OutOfThreads>();
}

#[test]
fn an_unchanged_listing_reloads_nothing() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let Files { source, directory } = place.source("");
    let clock = ManualClock::default();
    let watcher = spawn::<OutOfWatches, _>(Arc::clone(&source), directory, clock, BY_LISTINGS).unwrap();
    wait_until(&source, "the first reload", |source| domains(source) == ["a"]);
    place.write("config/b.yaml", rules_of("b"));
    wait_until(&source, "the written file", |source| domains(source) == ["a", "b"]);
    std::thread::sleep(20 * BY_LISTINGS.list_interval);
    drop(watcher);
    assert_eq!(source.state().loads, 2);
}
