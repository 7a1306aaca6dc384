//! Where the rules come from: reads them, has them compiled, and publishes them whole or not at all.
//!
//! [`Source`] holds what is served and how it came to be; [`files`] reads a directory and [`watch`] reloads
//! when something changes there; [`xds`] is told by a control plane instead. A set with an error in it never takes the place of a good one. What is
//! made for a set's rules, such as the handles of their statistics, is published with them in one step,
//! so that a request never sees the rules of one set with the handles of another.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod files;
pub mod watch;
pub mod xds;

mod findings;
mod interest;
mod listing;
mod log;
mod trail;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::{ArcSwapOption, Guard};

pub use self::files::{Reading, RulesDir, read_dir};
use crate::{
    clock::Time,
    panics::{self, Boundary, Panicked},
    rules::{CompileOptions, Compiled, Diagnostic, RuleSet, Severity, compile},
};

/// The rules as they are served, wherever they come from.
pub struct Source<T> {
    options: CompileOptions,
    attach: Box<dyn Fn(&RuleSet) -> T + Send + Sync>,
    published: ArcSwapOption<Published<T>>,
    state: Mutex<ReloadState>,
    reloading: Mutex<Reloading<T>>,
}

/// A set of rules, and what was made for it.
#[derive(Debug)]
pub struct Published<T> {
    /// The rules.
    pub rules: RuleSet,
    /// What was made for these rules, and is indexed by their ids.
    pub attached: T,
}

/// What came of a reload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// What was read is served from now on.
    Loaded,
    /// The files are as they were at the last reload, and so is what is served.
    Unchanged,
    /// The files hold an error. What was served is served on.
    Refused,
}

/// How the reloads went, for metrics, `/rlconfig` and health.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReloadState {
    /// When the rules that are served were loaded.
    pub last_success: Option<Time>,
    /// When files were last refused, and for which errors (the first hundred). Stays when they are good again.
    pub last_error: Option<(Time, Vec<Diagnostic>)>,
    /// True when the last files that were read are served.
    pub is_current: bool,
    /// How many reloads put new rules into service.
    pub loads: u64,
    /// How many reloads were refused.
    pub errors: u64,
    /// A hash of the served files' names and texts, the same on every machine.
    pub hash: u64,
    /// How many files, or resources of a control plane, are served.
    pub files: usize,
    /// How many domains are served.
    pub domains: usize,
    /// How many rules with a limit are served.
    pub rules: usize,
    /// How many warnings were given about what is served.
    pub warnings: usize,
}

/// The hash of the files that were read, and what else was found.
type Digest = (u64, Vec<Diagnostic>);

/// A set of rules as it was read, good or bad.
struct Draft<'a> {
    /// Where it comes from, as the log says it.
    origin: &'a dyn fmt::Display,
    /// What tells it from another.
    digest: Digest,
    /// How many files or resources it was read from.
    files: usize,
    /// Nothing is missing from it that could not be read.
    is_complete: bool,
    /// What came of it, with what was found while it was read.
    compiled: Compiled,
}

/// What one reload leaves to the next. Its lock lets one reload run at a time.
struct Reloading<T> {
    /// What was read last, good or bad.
    last_read: Option<Digest>,
    /// Sets that were replaced while requests still used them. They are kept so that the last of those
    /// requests, on a thread that serves, is not the one to free ten thousand rules.
    retired: Vec<Arc<Published<T>>>,
}

impl<T> Source<T> {
    /// Nothing is read and nothing served before the first reload. `options` are what rules are read by;
    /// `attach` makes what is published with the rules, before they are.
    pub fn new(options: CompileOptions, attach: impl Fn(&RuleSet) -> T + Send + Sync + 'static) -> Self {
        Self {
            options,
            attach: Box::new(attach),
            published: ArcSwapOption::empty(),
            state: Mutex::default(),
            reloading: Mutex::new(Reloading { last_read: None, retired: Vec::new() }),
        }
    }

    /// What is served, for the length of a request: one atomic load. A thread that holds more than eight
    /// of these at a time pays for a counter that all threads share.
    #[must_use]
    pub fn load(&self) -> Guard<Option<Arc<Published<T>>>> {
        self.published.load()
    }

    /// What is served, to keep. None until a first good set was read.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Published<T>>> {
        self.published.load_full()
    }

    /// How the reloads went.
    #[must_use]
    pub fn state(&self) -> ReloadState {
        lock(&self.state).clone()
    }

    /// Reads the files of `directory` and serves what they say, unless they hold an error.
    pub fn reload(&self, directory: &RulesDir, now: Time) -> Outcome {
        let mut reloading = lock(&self.reloading);
        self.take_files(directory, directory.read(), now, &mut reloading)
    }

    /// Reads the files, and reloads if they are not what was read last. Files that were refused and are
    /// still the same are not refused a second time.
    pub fn reload_if_changed(&self, directory: &RulesDir, now: Time) -> Outcome {
        let mut reloading = lock(&self.reloading);
        let reading = directory.read();
        if reloading.last_read == Some(reading.digest(directory)) {
            return Outcome::Unchanged;
        }
        self.take_files(directory, reading, now, &mut reloading)
    }

    fn take_files(
        &self,
        directory: &RulesDir,
        reading: Reading,
        now: Time,
        reloading: &mut Reloading<T>,
    ) -> Outcome {
        let digest = reading.digest(directory);
        let is_complete = !reading.has_errors();
        let mut compiled =
            compile_or_refuse(&directory.path().display(), || compile(&reading.files, self.options));
        compiled.diagnostics.splice(0..0, reading.findings);
        let path = directory.path();
        let files = reading.files.len();
        let draft = Draft { origin: &path.display(), digest, files, is_complete, compiled };
        self.take(draft, now, reloading)
    }

    fn take(&self, draft: Draft<'_>, now: Time, reloading: &mut Reloading<T>) -> Outcome {
        let Draft { origin, digest, files, is_complete, compiled } = draft;
        let mut findings = compiled.diagnostics;
        let ready = compiled.rules.filter(|_| is_complete).and_then(|rules| {
            let attached = panics::catch(Boundary::RulesReload, || {
                panics::point("rules_publish");
                (self.attach)(&rules)
            });
            if attached.is_err() {
                findings.push(findings::panicked(origin));
            }
            Some(Published { rules, attached: attached.ok()? })
        });
        log::findings(&findings);
        let outcome = if let Some(set) = ready {
            let rules = &set.rules;
            let served = ReloadState {
                hash: digest.0,
                files,
                domains: rules.domains().count(),
                rules: rules.rule_count() as usize,
                warnings: findings.len(),
                ..ReloadState::default()
            };
            log::loaded(origin, &served);
            reloading.retired.extend(self.publish(now, set, served));
            Outcome::Loaded
        } else {
            log::refused(origin, self.published.load().is_some());
            self.refuse(now, findings);
            Outcome::Refused
        };
        reloading.last_read = Some(digest);
        reloading.free_unused();
        outcome
    }

    /// Puts `set` into service and gives back the one that it replaces.
    fn publish(&self, now: Time, set: Published<T>, mut served: ReloadState) -> Option<Arc<Published<T>>> {
        // Whoever sees the new rules waits here for their state, and is not told that of the old ones.
        let mut state = lock(&self.state);
        let before = self.published.swap(Some(Arc::new(set)));
        served.last_success = Some(now);
        served.last_error = state.last_error.take();
        served.is_current = true;
        served.loads = state.loads.saturating_add(1);
        served.errors = state.errors;
        *state = served;
        before
    }

    fn refuse(&self, now: Time, findings: Vec<Diagnostic>) {
        let errors = findings.into_iter().filter(|finding| finding.severity == Severity::Error);
        let errors = errors.take(log::MAX_FINDINGS).collect();
        let mut state = lock(&self.state);
        state.last_error = Some((now, errors));
        state.is_current = false;
        state.errors = state.errors.saturating_add(1);
    }

    /// Frees the sets that were replaced and that no request uses any more.
    fn free_retired(&self) {
        lock(&self.reloading).free_unused();
    }
}

impl<T> Reloading<T> {
    fn free_unused(&mut self) {
        // Nobody can take a set that is not published, so that a count of one stays one.
        self.retired.retain(|set| Arc::strong_count(set) > 1);
    }
}

/// What comes of compiling a set; one that makes the compiler panic is refused like any other that is wrong.
fn compile_or_refuse(origin: &dyn fmt::Display, compile: impl FnOnce() -> Compiled) -> Compiled {
    panics::catch(Boundary::RulesReload, compile).unwrap_or_else(|Panicked| {
        let diagnostics = vec![findings::panicked(origin)];
        Compiled { rules: None, diagnostics }
    })
}

/// Locks, and takes what a thread that panicked left: every value behind these locks is whole at any time.
fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("state", &self.state()).finish_non_exhaustive()
    }
}
