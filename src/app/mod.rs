//! The service: creates its parts from the settings, binds and serves the ports, and stops on a signal.
//!
//! The thread that calls [`serve`] accepts gRPC connections, does maintenance, and waits for signals. Workers decide
//! requests, the watcher's thread reads rules, one divides quotas among Envoys, and two serve the HTTP ports.

mod following;
mod gauges;
mod maintenance;
mod memory;
mod pages;
mod parts;
mod ports;
mod recent;
mod rules;
mod shutdown;
mod sinks;
mod threads;

use std::{future::pending, io, sync::Arc};

use tokio::{runtime, sync::watch, task::LocalSet};
use tracing::{info, warn};

use admin::Api;
use clock::{Clock, SystemClock};
use faults::panics::Boundary;
use fleet::change;
pub use gauges::documentation;
use net::edges::Edges;
use pages::{Pages, Threads};
use parts::{App, Link, Shared};
use ports::Ports;
use rules::Feed;
use server::{
    grpc::{self, Workers},
    tls,
};
use settings::Settings;
use shutdown::{Running, Senders, Signals};
use threads::Thread;

/// The reasons why the service did not start, a line each.
#[derive(Debug)]
pub(crate) struct StartError(pub(crate) Vec<String>);

impl StartError {
    #[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
    fn system(error: io::Error) -> Self {
        Self(vec![format!("the system denies a resource: {error}")])
    }

    /// The value; an error adds its reasons to these.
    fn gather<T>(&mut self, made: Result<T, Self>) -> Option<T> {
        made.map_err(|Self(reasons)| self.0.extend(reasons)).ok()
    }
}

/// Serves until a signal; then drains and returns. An error has every reason why the service cannot start.
pub fn serve(settings: &Settings) -> Result<(), Vec<String>> {
    let started = || {
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::system)?;
        let result = LocalSet::new().block_on(&runtime, run(settings.clone()));
        runtime.shutdown_background();
        result
    };
    started().map_err(|StartError(reasons)| reasons)
}

async fn run(mut settings: Settings) -> Result<(), StartError> {
    ports::fit_descriptors(&mut settings)?;
    let settings = &settings;
    let mut signals = Signals::listen().map_err(StartError::system)?;
    announce(settings);
    if let Some(why) = maintenance::clock_is_wrong(SystemClock.now()) {
        return Err(StartError(vec![why]));
    }
    let (app, shared) = parts::create(settings)?;
    let feed = Feed::start(settings, &app.source, app.xds.as_ref());
    let mut feed = feed.map_err(StartError::system)?;
    tokio::select! {
        () = feed.ready(settings) => {}
        signal = signals.next() => {
            info!("received {signal} before any rules were loaded, stopping");
            return Ok(());
        }
    }
    let api = pages::api(settings, &app);
    let threads = Threads::start().map_err(StartError::system)?;
    let ports = Ports::bind(settings, &threads)?;
    maintenance::update_health(&app, settings);
    let running = start(settings, &app, ports, threads, api, shared)?;
    let signal = tokio::select! {
        signal = signals.next() => signal,
        error = maintenance::never_reached(&app, settings) => return Err(error),
    };
    let delay = settings.server.shutdown_delay;
    info!(delay = format!("{}s", delay.as_secs_f64()), "received {signal}, draining");
    running.drain(signals, delay, settings.server.shutdown_timeout).await;
    drop(feed);
    info!("stopped");
    Ok(())
}

/// Starts the workers, serves the ports, and starts everything else that runs until the shutdown.
fn start(
    settings: &Settings,
    app: &Arc<App>,
    ports: Ports,
    threads: Threads,
    api: Arc<Api>,
    shared: Option<Shared>,
) -> Result<Running, StartError> {
    let (drain, draining) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let server = &settings.server;
    let workers = Workers::start(&server.grpc, server.shutdown_timeout, &parts::grpc(app));
    let workers = workers.map(Arc::new).map_err(StartError::system)?;
    ports.announce(settings);
    let Ports { grpc, http, debug, metrics, admin } = ports;
    let accepting = tokio::task::spawn_local(grpc::accept(grpc, workers.clone(), draining));
    let pages = Pages { http, debug, metrics, admin, api: api.clone() };
    let mut pages = pages.serve(threads, settings, app, &stopping);
    if let Some(tls) = app.tls.clone() {
        tokio::task::spawn_local(tls::reload_periodically(tls, SystemClock, stopping.clone()));
    }
    match shared {
        Some(Shared { link: Link::Redis { pool, progress }, untold }) => {
            let following = following::start(app, api, pool, progress, untold, stopping.clone());
            pages.push(following.map_err(StartError::system)?);
        }
        Some(Shared { link: Link::Memcached(resets), untold }) => {
            let following = following::follow_resets(app.clone(), resets, untold, stopping.clone());
            tokio::task::spawn_local(following);
        }
        None => {}
    }
    let quotas = app.quotas.clone();
    let dividing = Thread::start("quotas", Boundary::Quotas).map_err(StartError::system)?;
    // It lasts until the process ends.
    drop(dividing.run(move || async move {
        quotas.start();
        pending::<()>().await;
    }));
    let limiter = app.limiter.clone();
    tokio::task::spawn_local(async move {
        let timer = Edges::system().timer;
        let work = async || limiter.run_holds(&*timer).await;
        net::restart::task(Boundary::Maintenance, work).await;
    });
    let maintained = app.clone();
    let own_settings = settings.clone();
    tokio::task::spawn_local(async move {
        let work = async || maintenance::run(&maintained, &own_settings, stopping.clone()).await;
        net::restart::task(Boundary::Maintenance, work).await;
    });
    let state = app.source.state();
    let rules = state.last_success.map_or("no rules".to_owned(), |_| format!("rules {:016x}", state.hash));
    let what = format!("version {}, {rules}", env!("CARGO_PKG_VERSION"));
    app.fleet.changes.record(change("started", what, SystemClock.now()));
    let flushing = sinks::start(settings, app)?;
    let writing = recent::write_logs(settings, app).map_err(StartError::system)?;
    let senders = Arc::new(Senders { app: app.clone(), workers, flushing, writing });
    Ok(Running { accepting, pages, drain, stop, senders })
}

/// Logs the version and the store. The rules and the listeners have their own log lines.
fn announce(settings: &Settings) {
    let backend = &settings.backend;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = crate::COMMIT,
        store = backend.name(),
        address = backend.address(),
        workers = settings.server.grpc.workers,
        "starting tollgate"
    );
    if settings.is_backend_default {
        warn!(
            "counters are in memory, so each replica counts alone: set REDIS_URL, or BACKEND_TYPE=memory if this is \
             intended"
        );
    }
}
