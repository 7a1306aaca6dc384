//! The whole service: settings become parts, parts become ports, and signals stop it.
//!
//! The thread that calls [`serve`] does maintenance: it accepts connections, serves probes, pages and metrics, and
//! waits for signals. Workers decide requests, and the watcher's thread reads rules.

pub(crate) mod maintenance;

mod admin;
mod descriptors;
mod following;
mod parts;
mod ports;
mod recent;
mod rules;
mod shutdown;
mod sinks;

use std::{error::Error, fmt, io, pin::pin, sync::Arc, time::Duration};

use tokio::{
    runtime,
    sync::watch,
    task::{JoinSet, LocalSet},
};
use tracing::{info, warn};

use crate::{
    clock::SystemClock,
    panics::{self, Boundary},
    server::{
        admin::Api,
        grpc::{self, Listener, Workers},
        http,
        http::json,
        tls,
    },
    settings::Settings,
    telemetry::metrics::{COMMIT, Port},
};
pub(crate) use parts::policy;
use parts::{Link, Parts};
use ports::Ports;
use rules::Feed;
pub(crate) use rules::compile_options;
use shutdown::Running;

/// Serves until a signal; then drains and returns.
///
/// # Errors
/// Every reason why the service cannot start, and every port that cannot be bound.
pub fn serve(settings: &Settings) -> Result<(), StartError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::runtime)?;
    let result = LocalSet::new().block_on(&runtime, run(settings));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn run(settings: &Settings) -> Result<(), StartError> {
    let mut settings = settings.clone();
    descriptors::fit(&mut settings);
    let settings = &settings;
    let signals = shutdown::Signals::new().map_err(StartError::runtime)?;
    let mut signal = pin!(signals.wait());
    announce(settings);
    let (parts, link) = Parts::new(settings)?;
    let mut feed = Feed::start(settings, &parts.source, parts.xds.as_ref()).map_err(StartError::runtime)?;
    tokio::select! {
        () = feed.ready(settings) => {}
        signal = &mut signal => {
            info!("received {signal} before any rules were loaded, stopping");
            return Ok(());
        }
    }
    let api = admin::api(settings, &parts)?;
    let ports = Ports::bind(settings)?;
    parts.update_rules_health(settings);
    parts.update_store_health(settings);

    let running = start(settings, &parts, ports, api, link)?;
    let signal = tokio::select! {
        signal = signal => signal,
        error = maintenance::never_reached(&parts, settings) => return Err(error),
    };
    let delay = settings.server.shutdown_delay;
    info!(?delay, "received {signal}, draining");
    running.drain(&parts, delay).await;
    drop(feed);
    info!("stopped");
    Ok(())
}

/// Starts the workers, serves the ports, and starts everything else that runs until the shutdown.
fn start(
    settings: &Settings,
    parts: &Parts,
    ports: Ports,
    api: Option<Arc<Api>>,
    link: Option<Link>,
) -> Result<Running, StartError> {
    let (drain, draining) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let timeout = settings.server.shutdown_timeout;
    let workers = Workers::start(parts::grpc_options(settings), &parts.grpc(), timeout)
        .map(Arc::new)
        .map_err(StartError::runtime)?;
    ports.announce(settings);
    let Ports { grpc, http, debug, metrics, admin } = ports;
    let accepting = tokio::task::spawn_local(grpc::accept(grpc, workers.clone(), draining));
    let pages = Pages { settings, parts, stop: &stopping };
    let pages = pages.serve(http, debug, metrics, admin.zip(api));
    if let Some(tls) = parts.tls.clone() {
        tokio::task::spawn_local(tls::look_after(tls, SystemClock, stopping.clone()));
    }
    match link {
        Some(Link::Redis { side, state }) => {
            following::start(parts, side, state, stopping.clone()).map_err(StartError::runtime)?;
        }
        Some(Link::Memcached(resets)) if parts.over_limit.is_some() => {
            let limiter = parts.limiter.clone();
            tokio::task::spawn_local(following::follow_resets(limiter, resets, stopping.clone()));
        }
        Some(Link::Memcached(_)) | None => {}
    }
    tokio::task::spawn_local(maintain(parts.clone(), settings.clone(), stopping));
    let flushing = sinks::start(settings, &parts.stats, parts.admin()).map_err(StartError::runtime)?;
    let writing = recent::write_log(settings, &parts.recent).map_err(StartError::runtime)?;
    Ok(Running { accepting, workers, pages, flushing, writing, drain, stop })
}

/// Logs the version and the store. The rules and the listeners have log lines of their own.
fn announce(settings: &Settings) {
    let backend = &settings.backend;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = COMMIT,
        store = backend.name(),
        address = backend.address(),
        workers = settings.server.workers,
        "starting tollgate"
    );
    if settings.is_backend_default {
        warn!(
            "counters are in memory, so each replica counts alone: set REDIS_URL, or BACKEND_TYPE=memory if this is \
             intended"
        );
    }
}

async fn maintain(parts: Parts, settings: Settings, stop: watch::Receiver<bool>) {
    let work = async || maintenance::run(&parts, &settings, stop.clone()).await;
    panics::restart_task(Boundary::Maintenance, work).await;
}

/// What the HTTP ports are served with.
struct Pages<'a> {
    settings: &'a Settings,
    parts: &'a Parts,
    stop: &'a watch::Receiver<bool>,
}

impl Pages<'_> {
    /// Serves the HTTP ports; each task ends after `stop` becomes true.
    fn serve(
        &self,
        main: Listener,
        debug: Listener,
        metrics: Option<Listener>,
        api: Option<(Listener, Arc<Api>)>,
    ) -> JoinSet<()> {
        let Self { settings, parts, stop } = *self;
        let mut serving = JoinSet::new();
        let questions = json::Parts {
            limiter: parts.limiter.clone(),
            health: parts.health.clone(),
            tracer: parts.tracer.clone(),
            is_enabled: settings.http.json,
        };
        let questions = move |request| questions.clone().answer(request);
        let options = self.options(Port::Http, "/healthcheck");
        serving.spawn_local(http::serve(main, options, questions, stop.clone()));
        let admin = parts.admin();
        let page = move |request| admin.clone().page(request);
        serving.spawn_local(http::serve(debug, self.options(Port::Debug, "/"), page, stop.clone()));
        if let Some(listener) = metrics {
            let (admin, path) = (parts.admin(), Arc::<str>::from(settings.metrics.prometheus_path.as_str()));
            let options = self.options(Port::Metrics, &path);
            let page = move |request| admin.clone().metrics(request, path.clone());
            serving.spawn_local(http::serve(listener, options, page, stop.clone()));
        }
        if let (Some((listener, api)), Some(admin)) = (api, &settings.admin) {
            let tls = parts.tls.clone().filter(|_| admin.tls);
            let options = self.options(Port::Admin, "/api/v1/status");
            let options = http::Options { tls, has_own_pages: true, ..options };
            serving.spawn_local(admin::sample(api.clone(), stop.clone()));
            let answer = move |request| api.clone().answer(request);
            serving.spawn_local(http::serve(listener, options, answer, stop.clone()));
        }
        serving
    }

    fn options(&self, port: Port, probe: &str) -> http::Options {
        http::Options {
            port,
            stats: self.parts.stats.clone(),
            max_connections: self.settings.http.max_connections,
            timeout: self.settings.http.timeout,
            max_body: self.settings.server.max_request_bytes,
            probe: probe.into(),
            tls: None,
            has_own_pages: false,
        }
    }
}

/// The reasons why the service did not start, a line each.
#[derive(Debug)]
pub struct StartError(Vec<String>);

impl StartError {
    #[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
    fn runtime(error: io::Error) -> Self {
        Self(vec![format!("the system grants too little to start: {error}")])
    }

    /// The value; an error adds its reasons to these.
    fn gather<T>(&mut self, made: Result<T, Self>) -> Option<T> {
        made.map_err(|Self(reasons)| self.0.extend(reasons)).ok()
    }

    /// The reasons.
    #[must_use]
    pub fn reasons(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Error for StartError {}
