//! Rules from a control plane over xDS: an aggregated stream, subscribed to all resources of one type.
//!
//! [`spawn`] starts a thread that connects, compiles and serves each update, and acknowledges or rejects it.
//! `app` starts it in place of the watcher of files. Reading order: `client` is the loop, `connect` opens a channel,
//! `sotw` and `delta` are the two protocol variants on a `stream` that counts the messages of a response
//! (`message_count`) before it decodes them, `session` applies updates, and `resource` reads resources. [`Source`]
//! serves: an invalid update leaves the last good rules, and so does a lost connection.

mod client;
mod connect;
mod delta;
mod message_count;
mod resource;
mod session;
mod sotw;
mod stream;

use std::{
    io,
    sync::{Arc, Mutex},
    thread,
};

use tokio::{runtime, sync::watch};

use super::Source;
use crate::{
    clock::Clock,
    mutex::lock,
    panics::{self, Boundary},
    settings::xds::Xds,
};

/// A subscription. It ends when this is dropped.
#[derive(Debug)]
pub struct Subscription {
    /// The thread ends when the other side of this is gone.
    _alive: watch::Sender<()>,
    judged: watch::Receiver<bool>,
}

/// The state of the subscription, for metrics.
#[derive(Debug, Default)]
pub struct Status(Mutex<State>);

/// The state of a subscription.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// There is a connection.
    pub connected: bool,
    /// Attempts to connect after the first.
    pub reconnects: u64,
    /// Responses received.
    pub updates: u64,
    /// Responses rejected.
    pub refused: u64,
    /// The last accepted version.
    pub version: Option<String>,
}

impl Status {
    /// The current state.
    #[must_use]
    pub fn state(&self) -> State {
        lock(&self.0).clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.0));
    }
}

/// Subscribes `source` to a control plane.
///
/// # Errors
/// When the system cannot start a thread.
pub fn spawn<T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    settings: Xds,
    clock: impl Clock + 'static,
    status: Arc<Status>,
) -> io::Result<Subscription> {
    let (alive, mut is_alive) = watch::channel(());
    let (judging, judged) = watch::channel(false);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("rules-xds".to_owned()).spawn(move || {
        let session = session::Session::new(&source, &settings.server, &clock, &status, judging);
        runtime.block_on(async {
            tokio::select! {
                () = panics::restart_task(Boundary::XdsClient, async || client::run(&settings, &session).await) => {}
                // Nothing is ever sent, so the other side was dropped.
                _ = is_alive.changed() => {}
            }
        });
        // A name lookup may hang and must not delay the end.
        runtime.shutdown_background();
    })?;
    Ok(Subscription { _alive: alive, judged })
}

impl Subscription {
    /// Waits until a first response was accepted or refused.
    pub async fn judged(&mut self) {
        // An error means that the thread has ended.
        let _ = self.judged.wait_for(|judged| *judged).await;
    }
}

/// Reads a response of either variant, up to the compiled rules.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    stream::fuzz(bytes);
}
