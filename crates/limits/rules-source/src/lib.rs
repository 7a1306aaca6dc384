//! The source of the rules: reads them, compiles them, and publishes a complete set or none.
//!
//! [`Source`] has the rules in service and the history of reloads; `files` reads a directory, [`watch`] reloads it
//! when it changes, and [`xds`] subscribes to a control plane instead. A set with an error never replaces a valid one.
//! Data made for a set, such as the handles of its metrics, is published with it in one step, so that a request never
//! combines the rules of one set with the handles of another.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod files;
pub mod watch;
pub mod xds;

mod diagnostics;
mod listing;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use arc_swap::{ArcSwapOption, Guard};

pub use self::files::{Reading, RulesDir};
use clock::Time;
use faults::{
    mutex::lock,
    panics::{self, Boundary},
};
use rules::{CompileOptions, Compiled, RuleSet, SourceFile, compile};
use text::diagnostics::{Diagnostic, Severity};

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
    pub rules: RuleSet,
    /// The files that they were read from; empty for those of a control plane.
    pub files: Vec<SourceFile>,
    /// Data indexed by the ids of these rules.
    pub attached: T,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReloadOutcome {
    Loaded,
    /// The files are the same as at the last reload.
    Unchanged,
    /// The new rules have an error. The previous ones stay in service.
    Rejected,
}

impl ReloadOutcome {
    /// Returns what the thread of the reload does not need any more to the system: the texts, the trees that were made of
    /// them, and the previous rules take several times the memory of the new ones.
    fn refund(self) {
        if self != Self::Unchanged {
            allocator::refund();
        }
    }
}

/// The history of reloads, for metrics, `/rlconfig` and health.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReloadState {
    pub last_success: Option<Time>,
    /// When rules were last rejected, and the first hundred errors. Stays after a recovery.
    pub last_error: Option<(Time, Vec<Diagnostic>)>,
    /// The last rules that were read are in service.
    pub is_current: bool,
    pub loads: u64,
    pub errors: u64,
    /// The [fingerprint](RuleSet::fingerprint) of the served rules, which `tollgate check` prints too.
    pub hash: u64,
    /// Files, or resources of a control plane, in service.
    pub files: usize,
    pub domains: usize,
    pub rules: usize,
    pub warnings: usize,
}

/// Maximum number of diagnostics of a reload that are logged and kept. A broken generator makes the same mistake
/// thousands of times, and a hundred lines are enough to see it.
const MAX_DIAGNOSTICS: usize = 100;

/// Rules as they were read, before they are compiled.
struct Input<'a> {
    origin: &'a dyn fmt::Display,
    hash: u64,
    files: usize,
    /// Errors and warnings about reading them.
    diagnostics: Vec<Diagnostic>,
}

/// The state from one reload to the next. Its lock serialises reloads.
struct Reloading<T> {
    /// The hash and the diagnostics of the last input, valid or not.
    last_read: Option<(u64, Vec<Diagnostic>)>,
    /// Sets that were replaced while requests still used them. They are kept so that no worker thread has to free ten
    /// thousand rules at the end of a request.
    retired: Vec<Arc<Published<T>>>,
}

impl<T> Source<T> {
    /// A source without rules until the first reload. `attach` makes the data that is published with them.
    pub fn new(options: CompileOptions, attach: impl Fn(&RuleSet) -> T + Send + Sync + 'static) -> Self {
        Self {
            options,
            attach: Box::new(attach),
            published: ArcSwapOption::empty(),
            state: Mutex::default(),
            reloading: Mutex::new(Reloading { last_read: None, retired: Vec::new() }),
        }
    }

    /// A source of rules that do not change.
    pub fn fixed(rules: RuleSet, attach: impl Fn(&RuleSet) -> T + Send + Sync + 'static) -> Self {
        let source = Self::new(CompileOptions::default(), attach);
        let attached = (source.attach)(&rules);
        source.published.store(Some(Arc::new(Published { rules, files: Vec::new(), attached })));
        source
    }

    /// The current rules, for the duration of a request: one atomic load. Beyond eight held guards, a thread also
    /// updates a shared counter.
    pub fn load(&self) -> Guard<Option<Arc<Published<T>>>> {
        self.published.load()
    }

    /// The current rules, to keep. `None` until a valid set was read.
    pub fn current(&self) -> Option<Arc<Published<T>>> {
        self.published.load_full()
    }

    pub fn options(&self) -> CompileOptions {
        self.options
    }

    pub fn state(&self) -> ReloadState {
        lock(&self.state).clone()
    }

    /// Reads the files of `directory`, and serves them if they are valid and changed since the last read.
    pub fn reload(&self, directory: &RulesDir, now: Time) -> ReloadOutcome {
        self.reload_by(&directory.path.display(), || directory.read(), now)
    }

    /// The same for files from anywhere.
    pub fn reload_by(
        &self,
        origin: &dyn fmt::Display,
        read: impl FnOnce() -> Reading,
        now: Time,
    ) -> ReloadOutcome {
        let mut reloading = lock(&self.reloading);
        let reading = read();
        let hash = reading.hash();
        let files = reading.files.len();
        let input = Input { origin, hash, files, diagnostics: reading.diagnostics };
        let compiled = || (compile(&reading.files, self.options), reading.files);
        let outcome = self.load_input(input, compiled, now, &mut reloading);
        drop(reloading);
        outcome.refund();
        outcome
    }

    fn load_input(
        &self,
        input: Input<'_>,
        compile: impl FnOnce() -> (Compiled, Vec<SourceFile>),
        now: Time,
        reloading: &mut Reloading<T>,
    ) -> ReloadOutcome {
        let Input { origin, hash, files, mut diagnostics } = input;
        let last_read = Some((hash, diagnostics.clone()));
        if reloading.last_read == last_read {
            return ReloadOutcome::Unchanged;
        }
        let is_complete = !diagnostics.iter().any(Diagnostic::is_error);
        let built = panics::catch(Boundary::RulesReload, || {
            let (compiled, files) = compile();
            diagnostics.extend(compiled.diagnostics);
            let rules = compiled.rules.filter(|_| is_complete)?;
            panics::point("rules_publish");
            Some(Published { attached: (self.attach)(&rules), rules, files })
        });
        if built.is_err() {
            diagnostics.push(diagnostics::panicked(origin));
        }
        log(&diagnostics);
        let outcome = if let Ok(Some(set)) = built {
            reloading.retired.extend(self.publish(origin, set, files, diagnostics.len(), now));
            ReloadOutcome::Loaded
        } else {
            let served = if self.published.load().is_some() {
                "keeping previous rules"
            } else {
                "no rules are loaded, so every request fails"
            };
            tracing::error!(source = %origin, "rules rejected: {served}");
            self.reject(now, diagnostics);
            ReloadOutcome::Rejected
        };
        reloading.last_read = last_read;
        reloading.free_unused();
        outcome
    }

    /// Puts `set` into service, and returns the one that it replaces.
    fn publish(
        &self,
        origin: &dyn fmt::Display,
        set: Published<T>,
        files: usize,
        warnings: usize,
        now: Time,
    ) -> Option<Arc<Published<T>>> {
        let hash = set.rules.fingerprint();
        let domains = set.rules.domains().count();
        let rules = set.rules.rule_count() as usize;
        let shown_hash = format_args!("{hash:016x}");
        tracing::info!(source = %origin, files, domains, rules, hash = shown_hash, "rules loaded");
        if domains == 0 {
            tracing::warn!(source = %origin, "no rules: every request is allowed");
        }
        // Readers of the state wait for the lock until it describes the new rules.
        let mut state = lock(&self.state);
        *state = ReloadState {
            last_success: Some(now),
            last_error: state.last_error.take(),
            is_current: true,
            loads: state.loads + 1,
            errors: state.errors,
            hash,
            files,
            domains,
            rules,
            warnings,
        };
        self.published.swap(Some(Arc::new(set)))
    }

    fn reject(&self, now: Time, diagnostics: Vec<Diagnostic>) {
        let errors = diagnostics.into_iter().filter(Diagnostic::is_error).take(MAX_DIAGNOSTICS).collect();
        let mut state = lock(&self.state);
        state.last_error = Some((now, errors));
        state.is_current = false;
        state.errors += 1;
    }

    /// Does what needs the memory of one more set of rules. No reload reads one meanwhile: it waits.
    pub fn between_reloads<R>(&self, work: impl FnOnce() -> R) -> R {
        let _reloading = lock(&self.reloading);
        work()
    }

    /// Frees replaced sets that nothing uses any more, and returns their memory to the system.
    fn free_retired(&self) {
        if lock(&self.reloading).free_unused() {
            allocator::refund();
        }
    }
}

impl<T> Reloading<T> {
    /// True if any was freed.
    fn free_unused(&mut self) -> bool {
        let before = self.retired.len();
        // Only a published set can be acquired, so a count of one stays one.
        self.retired.retain(|set| Arc::strong_count(set) > 1);
        self.retired.len() < before
    }
}

fn log(diagnostics: &[Diagnostic]) {
    for diagnostic in diagnostics.iter().take(MAX_DIAGNOSTICS) {
        match diagnostic.severity {
            Severity::Error => tracing::error!("{diagnostic}"),
            Severity::Warning => tracing::warn!("{diagnostic}"),
            Severity::Note => tracing::info!("{diagnostic}"),
        }
    }
    if let Some(more) = diagnostics.len().checked_sub(MAX_DIAGNOSTICS).filter(|more| *more > 0) {
        tracing::warn!(suppressed = more, "more errors and warnings; `tollgate check` prints those of files");
    }
}
