//! The source of the rules: reads them, compiles them, and publishes a complete set or none.
//!
//! [`Source`] has the rules in service and the history of reloads; [`files`] reads a directory, [`watch`] reloads it
//! when it changes, and [`xds`] subscribes to a control plane instead. A set with an error never replaces a good
//! one. Data made for a set, such as the handles of its metrics, is published with it in one step, so that a
//! request never sees the rules of one set with the handles of another.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod files;
pub mod watch;
pub mod xds;

mod diagnostics;
mod listing;
mod log;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use arc_swap::{ArcSwapOption, Guard};

pub use self::files::{Reading, RulesDir, read_dir};
use crate::{
    clock::Time,
    mutex::lock,
    panics::{self, Boundary, Panicked},
    rules::{CompileOptions, Compiled, Diagnostic, RuleSet, Severity, compile},
};

/// The rules in service, from files or a control plane.
pub struct Source<T> {
    options: CompileOptions,
    attach: Box<dyn Fn(&RuleSet) -> T + Send + Sync>,
    published: ArcSwapOption<Published<T>>,
    state: Mutex<ReloadState>,
    reloading: Mutex<Reloading<T>>,
}

/// A set of rules, and the data made for it.
#[derive(Debug)]
pub struct Published<T> {
    /// The rules.
    pub rules: RuleSet,
    /// Data indexed by the ids of these rules.
    pub attached: T,
}

/// The result of a reload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The new rules are in service.
    Loaded,
    /// The files are the same as at the last reload.
    Unchanged,
    /// The new rules have an error. The previous ones stay in service.
    Refused,
}

/// The history of reloads, for metrics, `/rlconfig` and health.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReloadState {
    /// When the current rules were loaded.
    pub last_success: Option<Time>,
    /// When rules were last rejected, and the first hundred errors. Stays after a recovery.
    pub last_error: Option<(Time, Vec<Diagnostic>)>,
    /// True when the last rules that were read are in service.
    pub is_current: bool,
    /// Successful reloads.
    pub loads: u64,
    /// Rejected reloads.
    pub errors: u64,
    /// The [fingerprint](RuleSet::fingerprint) of the served rules, which `tollgate check` prints too.
    pub hash: u64,
    /// Files, or resources of a control plane, in service.
    pub files: usize,
    /// Domains in service.
    pub domains: usize,
    /// Rules in service.
    pub rules: usize,
    /// Warnings about the current rules.
    pub warnings: usize,
}

/// The hash of the files that were read, and the diagnostics of reading them.
type Digest = (u64, Vec<Diagnostic>);

/// A set of rules as it was read, valid or not.
struct Draft<'a> {
    /// Its source in logs.
    origin: &'a dyn fmt::Display,
    /// The digest by which it is compared.
    digest: Digest,
    /// The number of files or resources.
    files: usize,
    /// Every file could be read.
    is_complete: bool,
    /// The compiled rules and all diagnostics.
    compiled: Compiled,
}

/// The state from one reload to the next. Its lock serialises reloads.
struct Reloading<T> {
    /// The digest of the last rules read, valid or not.
    last_read: Option<Digest>,
    /// Sets that were replaced while requests still used them. They are kept so that no request, on a thread that
    /// serves, has to free ten thousand rules.
    retired: Vec<Arc<Published<T>>>,
}

impl<T> Source<T> {
    /// A source without rules, until the first reload. `attach` makes the data that is published with them.
    pub fn new(options: CompileOptions, attach: impl Fn(&RuleSet) -> T + Send + Sync + 'static) -> Self {
        Self {
            options,
            attach: Box::new(attach),
            published: ArcSwapOption::empty(),
            state: Mutex::default(),
            reloading: Mutex::new(Reloading { last_read: None, retired: Vec::new() }),
        }
    }

    /// The current rules, for the duration of a request: one atomic load. A thread that holds more than eight of
    /// these at a time pays for a shared counter.
    #[must_use]
    pub fn load(&self) -> Guard<Option<Arc<Published<T>>>> {
        self.published.load()
    }

    /// The current rules, to keep. None until a first valid set was read.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Published<T>>> {
        self.published.load_full()
    }

    /// The history of reloads.
    #[must_use]
    pub fn state(&self) -> ReloadState {
        lock(&self.state).clone()
    }

    /// Reads the files of `directory` and serves them, unless they have an error.
    pub fn reload(&self, directory: &RulesDir, now: Time) -> Outcome {
        let mut reloading = lock(&self.reloading);
        self.load_files(directory, directory.read(), now, &mut reloading)
    }

    /// Reads the files, and reloads if they changed since the last read. The same rejected files are not rejected
    /// again.
    pub fn reload_if_changed(&self, directory: &RulesDir, now: Time) -> Outcome {
        let mut reloading = lock(&self.reloading);
        let reading = directory.read();
        if reloading.last_read == Some(reading.digest(directory)) {
            return Outcome::Unchanged;
        }
        self.load_files(directory, reading, now, &mut reloading)
    }

    fn load_files(
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
        compiled.diagnostics.splice(0..0, reading.diagnostics);
        let path = directory.path();
        let files = reading.files.len();
        let draft = Draft { origin: &path.display(), digest, files, is_complete, compiled };
        self.load_draft(draft, now, reloading)
    }

    fn load_draft(&self, draft: Draft<'_>, now: Time, reloading: &mut Reloading<T>) -> Outcome {
        let Draft { origin, digest, files, is_complete, compiled } = draft;
        let mut diagnostics = compiled.diagnostics;
        let ready = compiled.rules.filter(|_| is_complete).and_then(|rules| {
            let attached = panics::catch(Boundary::RulesReload, || {
                panics::point("rules_publish");
                (self.attach)(&rules)
            });
            if attached.is_err() {
                diagnostics.push(diagnostics::panicked(origin));
            }
            Some(Published { rules, attached: attached.ok()? })
        });
        log::diagnostics(&diagnostics);
        let outcome = if let Some(set) = ready {
            let rules = &set.rules;
            let served = ReloadState {
                hash: rules.fingerprint(),
                files,
                domains: rules.domains().count(),
                rules: rules.rule_count() as usize,
                warnings: diagnostics.len(),
                ..ReloadState::default()
            };
            log::loaded(origin, &served);
            reloading.retired.extend(self.publish(now, set, served));
            Outcome::Loaded
        } else {
            log::refused(origin, self.published.load().is_some());
            self.refuse(now, diagnostics);
            Outcome::Refused
        };
        reloading.last_read = Some(digest);
        reloading.free_unused();
        outcome
    }

    /// Puts `set` into service and returns the one that it replaces.
    fn publish(&self, now: Time, set: Published<T>, mut served: ReloadState) -> Option<Arc<Published<T>>> {
        // The lock makes readers of the state wait until it is that of the new rules.
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

    fn refuse(&self, now: Time, diagnostics: Vec<Diagnostic>) {
        let errors = diagnostics.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        let errors = errors.take(log::MAX_DIAGNOSTICS).collect();
        let mut state = lock(&self.state);
        state.last_error = Some((now, errors));
        state.is_current = false;
        state.errors = state.errors.saturating_add(1);
    }

    /// Frees replaced sets that no request uses any more.
    fn free_retired(&self) {
        lock(&self.reloading).free_unused();
    }
}

impl<T> Reloading<T> {
    fn free_unused(&mut self) {
        // A set that is not published cannot be taken, so a count of one stays one.
        self.retired.retain(|set| Arc::strong_count(set) > 1);
    }
}

/// Compiles a set; a panic of the compiler is an error like any other.
fn compile_or_refuse(origin: &dyn fmt::Display, compile: impl FnOnce() -> Compiled) -> Compiled {
    panics::catch(Boundary::RulesReload, compile).unwrap_or_else(|Panicked| {
        let diagnostics = vec![diagnostics::panicked(origin)];
        Compiled { rules: None, diagnostics }
    })
}

impl<T> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("state", &self.state()).finish_non_exhaustive()
    }
}
