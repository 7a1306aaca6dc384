//! Support of the tests: a directory of rules files, and a source that reads it.

mod files_of_all_kinds;
mod publishing;
mod watching;
mod without_events;

use std::{
    fs,
    ops::Deref,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    ReloadOutcome, RulesDir, Source,
    watch::{Debounce, SystemEvents, Watcher, spawn},
};
use clock::{ManualClock, Time};
use rules::CompileOptions;

/// A rules file of one rule for `domain`.
fn rules_of(domain: &str) -> String {
    rules_with_limit(domain, 3)
}

fn rules_with_limit(domain: &str, requests: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: hour\n      \
         requests_per_unit: {requests}\n"
    )
}

/// An invalid file.
const BAD: &str = "descriptors: []\n";

/// A temporary directory, free of symlinks, that holds `config` for the rules.
struct Place {
    _root: TempDir,
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        Self { _root: root, root: path }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// Writes a file, and the directories above it.
    fn write(&self, below: &str, text: impl AsRef<[u8]>) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, below: &str, target: impl AsRef<Path>) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// `config` below `root`.
    fn directory(&self, root: &str) -> RulesDir {
        RulesDir::new(&self.path(root), "", "config", false)
    }

    /// A source that reads that directory.
    fn source(&self, root: &str) -> Files {
        let source = Source::new(CompileOptions::default(), |rules| rules.domains().count());
        Files { source: Arc::new(source), directory: self.directory(root) }
    }
}

/// A source and the directory that it reads.
struct Files {
    source: Arc<Source<usize>>,
    directory: RulesDir,
}

impl Files {
    fn reload(&self, now: Time) -> ReloadOutcome {
        self.source.reload(&self.directory, now)
    }
}

impl Deref for Files {
    type Target = Source<usize>;

    fn deref(&self) -> &Self::Target {
        &self.source
    }
}

/// A watched source.
struct Watched {
    source: Arc<Source<usize>>,
    _watcher: Watcher,
}

/// Changes are detected by events alone.
const BY_EVENTS: Debounce = Debounce {
    quiet: Duration::from_millis(20),
    max_delay: Duration::from_millis(500),
    list_interval: Duration::from_secs(3600),
};

impl Watched {
    /// Starts watching, and waits for the first reload, which follows the first watch.
    fn start(files: Files, pace: Debounce) -> Self {
        let Files { source, directory } = files;
        let clock = ManualClock::at(Time::from_seconds(1));
        let watcher = spawn::<SystemEvents, _>(Arc::clone(&source), directory, clock, pace).unwrap();
        let started = Self { source, _watcher: watcher };
        started.wait_until("the first reload", |source| source.state().loads + source.state().errors == 1);
        started
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Source<usize>) -> bool) {
        wait_until(&self.source, what, is_so);
    }

    /// Waits until exactly these domains are served.
    fn wait_for(&self, expected: &[&str]) {
        self.wait_until(&format!("{expected:?}"), |source| domains(source) == expected);
    }
}

fn wait_until(source: &Source<usize>, what: &str, is_so: impl Fn(&Source<usize>) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so(source) {
        assert!(
            Instant::now() < deadline,
            "timed out waiting for {what}; served: {:?}; {:#?}",
            domains(source),
            source.state()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The names of the served domains, sorted.
fn domains(source: &Source<usize>) -> Vec<String> {
    let published = source.current();
    let mut names: Vec<String> =
        published.iter().flat_map(|set| set.rules.domains()).map(|domain| domain.name.to_string()).collect();
    names.sort();
    names
}
