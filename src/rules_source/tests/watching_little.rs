//! Without events, the listings notice every change.

use std::path::Path;

use notify::{Config, ErrorKind, EventHandler, NullWatcher, RecursiveMode, WatcherKind};

use super::*;
use crate::rules_source::watch::spawn_with;

const BY_LOOKS: Debounce = Debounce {
    quiet: Duration::from_millis(1),
    at_most: Duration::from_millis(1),
    look_every: Duration::from_millis(10),
};

/// A kernel that grants a watcher, but no watches.
struct Limited;

impl notify::Watcher for Limited {
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

/// A kernel that grants nothing.
struct Refused;

impl notify::Watcher for Refused {
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

fn is_noticed_by_looks<W: notify::Watcher + 'static>() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let Files { source, directory } = place.source("");
    let clock = ManualClock::default();
    let watcher = spawn_with::<W, _>(Arc::clone(&source), directory, clock, BY_LOOKS).unwrap();
    wait_until(&source, "the first reload", |source| domains(source) == ["a"]);
    place.write("config/a.yaml", rules_of("b"));
    wait_until(&source, "what was written", |source| domains(source) == ["b"]);
    fs::remove_dir_all(place.path("config")).unwrap();
    wait_until(&source, "the refusal", |source| source.state().errors == 1);
    place.write("config/a.yaml", rules_of("c"));
    wait_until(&source, "the way back", |source| domains(source) == ["c"]);
    watcher.stop();
}

#[test]
fn a_file_system_without_notifications() {
    is_noticed_by_looks::<NullWatcher>();
}

#[test]
fn a_kernel_that_grants_no_more_watches() {
    is_noticed_by_looks::<Limited>();
}

#[test]
fn a_kernel_that_grants_no_more_watchers() {
    is_noticed_by_looks::<Refused>();
}

#[test]
fn a_look_that_finds_nothing_new_reloads_nothing() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let Files { source, directory } = place.source("");
    let clock = ManualClock::default();
    let watcher = spawn_with::<Limited, _>(Arc::clone(&source), directory, clock, BY_LOOKS).unwrap();
    wait_until(&source, "the first reload", |source| domains(source) == ["a"]);
    place.write("config/b.yaml", rules_of("b"));
    wait_until(&source, "what was written", |source| domains(source) == ["a", "b"]);
    watcher.stop();
    assert_eq!(source.state().loads, 2);
}
