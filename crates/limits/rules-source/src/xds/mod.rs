//! Rules from a control plane over xDS: an aggregated stream, subscribed to all resources of one type.
//!
//! [`spawn`] starts a thread that connects, compiles and serves each update, and acknowledges or rejects it; `app`
//! starts it in place of the watcher of files. Reading order: `client` is the loop, `connect` opens a channel, `stream`
//! receives responses at a limited rate (`update_limit`) and counts their messages (`message_count`) before it decodes
//! them, `resource` decodes resources, and `session` applies updates. After an invalid update or a lost connection,
//! [`Source`] keeps serving the previous rules.

mod client;
mod connect;
mod message_count;
mod resource;
mod session;
pub mod settings;
mod stream;
mod update_limit;

use std::{io, sync::Arc, thread, time::Duration};

use tokio::{runtime, sync::watch, time::sleep};

use super::Source;
use crate::xds::settings::Xds;
use clock::Clock;
use faults::panics::Boundary;

/// The interval at which replaced rules are freed, if no request uses them any more.
const FREE_INTERVAL: Duration = Duration::from_secs(10);

/// A running subscription; ends when dropped.
pub struct Subscription {
    /// The thread ends when this is dropped.
    _alive: watch::Sender<()>,
    status: Arc<Status>,
}

#[derive(Debug, Default)]
pub struct Status(watch::Sender<SubscriptionState>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SubscriptionState {
    pub connected: bool,
    /// Attempts to connect after the first.
    pub reconnects: u64,
    pub updates: u64,
    pub refused: u64,
    pub version: Option<String>,
}

impl Status {
    pub fn state(&self) -> SubscriptionState {
        self.0.borrow().clone()
    }

    fn change(&self, change: impl FnOnce(&mut SubscriptionState)) {
        self.0.send_modify(change);
    }
}

pub fn spawn<T: Send + Sync + 'static>(
    source: Arc<Source<T>>,
    settings: Xds,
    clock: impl Clock + 'static,
    status: Arc<Status>,
) -> io::Result<Subscription> {
    let (alive, mut is_alive) = watch::channel(());
    let thread_status = status.clone();
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("rules-xds".to_owned()).spawn(move || {
        let session = session::Session::new(&source, &settings.server, &clock, &thread_status);
        let freeing = async {
            loop {
                sleep(FREE_INTERVAL).await;
                source.free_retired();
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = net::restart::task(Boundary::XdsClient, async || client::run(&settings, &session).await) => {}
                () = freeing => {}
                // Nothing is sent, so the sender was dropped.
                _ = is_alive.changed() => {}
            }
        });
        // A name lookup may hang and must not delay the shutdown.
        runtime.shutdown_background();
    })?;
    Ok(Subscription { _alive: alive, status })
}

impl Subscription {
    /// Waits until a first response was accepted or rejected.
    pub async fn first_response(&self) {
        let mut states = self.status.0.subscribe();
        // The sender is a field of the status, so it exists.
        let _ = states.wait_for(|state| state.updates > 0 || state.refused > 0).await;
    }
}

/// Decodes a response, and compiles its valid resources.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    use tonic::codegen::Bytes;

    use rules::{CompileOptions, compile_resources};

    let received = stream::decode(Bytes::copy_from_slice(bytes), 1_000);
    let resources = received.map(|received| received.response.resources).unwrap_or_default();
    let configs: Vec<_> =
        resources.iter().filter_map(|any| resource::decode(|| "a resource".to_owned(), any).ok()).collect();
    let _ = compile_resources(&configs, CompileOptions::default());
}
