//! The source of the rules: watched files or a subscription to a control plane.

use std::{io, sync::Arc};

use clock::{Clock, SystemClock};
use faults::panics::{self, Boundary};
use rules_source::{
    Source,
    watch::{self, SystemEvents, Watcher},
    xds::{self, Subscription},
};
use settings::Settings;

/// The source of the rules. It stops when this is dropped.
pub(super) enum Feed {
    /// Files, which are read again when they change.
    Files(#[expect(dead_code, reason = "stops when it is dropped")] Watcher),
    ControlPlane(Subscription),
}

impl Feed {
    /// Reads the rules and watches them, or subscribes to them.
    pub(super) fn start<T: Send + Sync + 'static>(
        settings: &Settings,
        source: &Arc<Source<T>>,
        status: Option<&Arc<xds::Status>>,
    ) -> io::Result<Self> {
        if let (Some(control_plane), Some(status)) = (&settings.control_plane, status) {
            let settings = (**control_plane).clone();
            return xds::spawn(source.clone(), settings, SystemClock, status.clone()).map(Self::ControlPlane);
        }
        let directory = settings::rules_directory(settings);
        // After a panic the watcher reads the rules again.
        let _ = panics::catch(Boundary::RulesReload, || source.reload(&directory, SystemClock.now()));
        let debounce = watch::Debounce::default();
        watch::spawn::<SystemEvents, _>(source.clone(), directory, SystemClock, debounce).map(Self::Files)
    }

    /// Waits until the ports may open: with a control plane, until it has sent rules, valid or not, unless
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG` is set.
    pub(super) async fn ready(&mut self, settings: &Settings) {
        if let (Self::ControlPlane(subscription), false) = (self, settings.rules.force_start) {
            subscription.first_response().await;
        }
    }
}
