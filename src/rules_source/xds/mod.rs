//! Rules from a control plane, asked over xDS: an aggregated stream, subscribed to all resources of one type.
//!
//! [`spawn`] starts a thread that connects, takes what it is told, has it compiled and served, and answers
//! whether it was. `app` starts it in place of the watcher of files. Reading order: `client` is the loop,
//! `connect` and `tls` get it a channel, `sotw` and `delta` speak the two dialects on a `stream` that
//! `weigh`s responses before it decodes them, `session` judges what came, `resource` reads it, and `backoff` says how long to wait before trying again. What is served is the
//! business of [`Source`]: a bad update leaves the last good rules, and so does a control plane that is gone.

mod backoff;
mod client;
mod connect;
mod delta;
mod resource;
mod session;
mod sotw;
mod stream;
mod tls;
mod weigh;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tokio::{runtime, sync::watch};

use super::Source;
use crate::{
    clock::Clock,
    panics::{self, Boundary},
    settings::groups::Xds,
};

/// A subscription. It ends when this is dropped.
#[derive(Debug)]
pub struct Subscription {
    /// The thread ends when the other side of this is gone.
    _alive: watch::Sender<()>,
    judged: watch::Receiver<bool>,
}

/// How the control plane and its subscriber fare, for metrics.
#[derive(Debug, Default)]
pub struct Status(Mutex<State>);

/// What there is to tell of a control plane.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// There is a connection.
    pub connected: bool,
    /// How often it was tried to connect after the first time.
    pub reconnects: u64,
    /// Responses that came.
    pub updates: u64,
    /// Those that were refused.
    pub refused: u64,
    /// The version that was accepted last.
    pub version: Option<String>,
}

impl Status {
    /// How things are now.
    #[must_use]
    pub fn state(&self) -> State {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Subscribes `source` to a control plane.
///
/// # Errors
/// When the system grants no thread.
pub fn spawn<T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    settings: Xds,
    clock: impl Clock + 'static,
    status: Arc<Status>,
) -> io::Result<Subscription> {
    let (alive, mut is_alive) = watch::channel(());
    let (judge, judged) = watch::channel(false);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("rules-xds".to_owned()).spawn(move || {
        let session = session::Session::new(&source, &settings.server, &clock, &status, judge);
        runtime.block_on(async {
            tokio::select! {
                () = panics::restart_task(Boundary::XdsClient, async || client::run(&settings, &session).await) => {}
                // Nothing is ever sent: the other side is gone.
                _ = is_alive.changed() => {}
            }
        });
        // A look-up of a name may hang; nobody waits for it.
        runtime.shutdown_background();
    })?;
    Ok(Subscription { _alive: alive, judged })
}

impl Subscription {
    /// Waits until a first response was accepted or refused.
    pub async fn judged(&mut self) {
        // A thread that ended has nothing more to tell.
        let _ = self.judged.wait_for(|judged| *judged).await;
    }
}

/// A response of either dialect, as far as to the compiled rules.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    stream::fuzz(bytes);
}
