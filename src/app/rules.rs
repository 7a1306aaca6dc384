//! Where the rules come from, the files, watched, or a control plane, subscribed to; and how they are read.

use std::{io, sync::Arc};

use crate::{
    clock::{Clock, SystemClock},
    panics::{self, Boundary},
    rules::{CompileOptions, Countable, CountingMode},
    rules_source::{
        RulesDir, Source,
        watch::{self, Watcher},
        xds::{self, Subscription},
    },
    settings::{Backend, Counting, Settings},
    store::memcached::MemcachedStore,
};

/// What brings the rules. It ends when this is dropped.
pub(super) enum Feed {
    /// The rules were read, and are read again when they change.
    Files(#[expect(dead_code, reason = "kept for what it does")] Watcher),
    /// The control plane tells them.
    ControlPlane(Subscription),
}

impl Feed {
    /// Reads the rules and watches them, or subscribes to them.
    pub(super) fn start<T: Send + Sync + 'static>(
        settings: &Settings,
        source: &Arc<Source<T>>,
        status: Option<&Arc<xds::Status>>,
    ) -> io::Result<Self> {
        let rules = &settings.rules;
        if let (Some(control_plane), Some(status)) = (&settings.control_plane, status) {
            let settings = (**control_plane).clone();
            return xds::spawn(source.clone(), settings, SystemClock, status.clone()).map(Self::ControlPlane);
        }
        let directory = RulesDir {
            root: rules.root.clone(),
            subdirectory: rules.subdirectory.clone(),
            app_directory: rules.app_directory.clone(),
            ignore_dot_files: rules.ignore_dot_files,
        };
        // After a panic the watcher reads the rules once more.
        let _ = panics::catch(Boundary::RulesReload, || source.reload(&directory, SystemClock.now()));
        watch::spawn(source.clone(), directory, SystemClock, watch::Debounce::default()).map(Self::Files)
    }

    /// Waits until the service may answer: with a control plane, until it told rules, good or bad, unless
    /// the service is to start without (`FORCE_START_WITHOUT_INITIAL_CONFIG`).
    pub(super) async fn ready(&mut self, settings: &Settings) {
        if let (Self::ControlPlane(subscription), false) = (self, settings.rules.force_start) {
            subscription.judged().await;
        }
    }
}

/// How limits are counted that do not say it.
pub(super) fn counting(settings: &Settings) -> CountingMode {
    match settings.store.counting {
        Counting::Exact => CountingMode::Exact,
        Counting::Leased => CountingMode::Leased,
    }
}

/// How rules are read by these settings: a limit must be one that can be counted where they have it counted.
pub(crate) fn compile_options(settings: &Settings) -> CompileOptions {
    let countable = match settings.backend {
        Backend::Memory | Backend::Redis(_) => Countable::Everything,
        Backend::Memcached(_) => MemcachedStore::COUNTABLE,
    };
    CompileOptions {
        merge_domains: settings.rules.merge_domains,
        portable: false,
        countable,
        counting: counting(settings),
        max_values: settings.rules.max_values,
    }
}
