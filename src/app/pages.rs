//! Serves the HTTP ports: one thread has health checks, `/json`, the debug pages and the metrics; another the admin API,
//! whose changes and searches of a million overrides take seconds.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{memory::Budgets, parts::App, threads::Thread};
use admin::{Access, Api, Hosts, Managed, Trials};
use clock::{Clock, SystemClock};
use faults::panics::Boundary;
use metrics::Port;
use net::ServerAddress;
use server::{
    http::{
        self,
        debug::{self, Shown},
        json::Endpoints,
    },
    listen::Listener,
};
use settings::Settings;

pub(super) struct Threads {
    pub(super) http: Thread,
    pub(super) admin: Thread,
}

impl Threads {
    pub(super) fn start() -> io::Result<Self> {
        let start = |name| Thread::start(name, Boundary::HttpConnection);
        Ok(Self { http: start("http")?, admin: start("admin")? })
    }
}

pub(super) struct Pages {
    pub(super) http: Listener,
    pub(super) debug: Listener,
    pub(super) metrics: Option<Listener>,
    pub(super) admin: Option<Listener>,
    pub(super) api: Arc<Api>,
}

/// The admin API, which is served if it has an address.
pub(super) fn api(settings: &Settings, app: &Arc<App>) -> Arc<Api> {
    let admin = settings.admin.as_ref();
    let managed = Managed {
        source: app.source.clone(),
        stats: app.stats.clone(),
        limiter: app.limiter.clone(),
        recent: app.recent.clone(),
        keeper: app.keeper.clone(),
        fleet: app.fleet.clone(),
        store: app.store.clone(),
        store_kind: settings.backend.name(),
        in_cluster: settings.backend.is_cluster(),
        store_address: settings.backend.address(),
        outages: app.outages.clone(),
        trials: app.recent_requests.clone().map(|requests| Trials {
            requests,
            policy: settings::policy(settings),
            cache_bytes: settings.store.local_cache_bytes,
        }),
        memory: memory_of(app),
        replies: app.budgets.admin_replies.clone(),
        started: SystemClock.now(),
    };
    let hosts = match admin.map(|admin| &admin.listen) {
        Some(ServerAddress::Tcp(address)) => Hosts::Local(address.host.clone()),
        Some(ServerAddress::Unix(_)) | None => Hosts::Any,
    };
    let read_only = admin.is_none_or(|admin| admin.read_only);
    let access = Access { hosts, tokens: app.tokens.clone(), read_only, timeout: settings.http.timeout };
    Arc::new(Api::new(managed, access))
}

/// The limit of the memory, and the use of its parts.
fn memory_of(app: &Arc<App>) -> admin::MemoryOf {
    let app = Arc::downgrade(app);
    Box::new(move || {
        let app = app.upgrade()?;
        Some((app.memory.limit, app.memory.set_by, app.memory_use()))
    })
}

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples the counters once a second, until `stop` turns true.
async fn sample(api: Arc<Api>, stop: watch::Receiver<bool>) {
    let work = async || {
        let api = api.clone();
        let mut stop = stop.clone();
        let mut second = interval_at(Instant::now() + SAMPLE_INTERVAL, SAMPLE_INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = second.tick() => api.tick(SystemClock.now()).await,
                _ = stop.wait_for(|stop| *stop) => return api.close(),
            }
        }
    };
    net::restart::task(Boundary::Maintenance, work).await;
}

/// Samples, for the metrics and other replicas too, and serves the API if it has an address.
fn serve_admin(
    thread: Thread,
    listener: Option<Listener>,
    api: Arc<Api>,
    port: http::Options,
    stop: watch::Receiver<bool>,
) -> JoinHandle<()> {
    thread.run(move || async move {
        let sampling = sample(api.clone(), stop.clone());
        let serving = async {
            if let Some(listener) = listener {
                http::serve(listener, port, api, stop).await;
            }
        };
        tokio::join!(serving, sampling);
    })
}

fn endpoints(app: &Arc<App>, settings: &Settings) -> Endpoints {
    let described = app.clone();
    Endpoints {
        health: app.health.clone(),
        details: Box::new(move || described.details()),
        limiter: app.limiter.clone(),
        tracer: app.tracer.clone(),
        has_json: settings.http.json,
        key_values: settings.decisions.key_values,
        max_request_bytes: settings.server.grpc.max_request_bytes,
    }
}

impl Pages {
    /// Serves the ports; each thread ends after `stop` becomes true.
    pub(super) fn serve(
        self,
        threads: Threads,
        settings: &Settings,
        app: &Arc<App>,
        stop: &watch::Receiver<bool>,
    ) -> Vec<JoinHandle<()>> {
        let Budgets { json_bodies, admin_bodies, .. } = &app.budgets;
        let options = |port, probe: &str| http::Options {
            port,
            stats: app.stats.clone(),
            max_connections: settings.http.max_connections,
            timeout: settings.http.timeout,
            // Only these two ports read bodies.
            bodies: if port == Port::Admin { admin_bodies.clone() } else { json_bodies.clone() },
            probe: probe.into(),
            tls: None,
            has_own_pages: false,
        };
        let tls = app.tls.clone().filter(|_| settings.admin.as_ref().is_some_and(|admin| admin.tls));
        let port = http::Options { tls, has_own_pages: true, ..options(Port::Admin, "/api/v1/status") };
        let mut serving = vec![serve_admin(threads.admin, self.admin, self.api, port, stop.clone())];
        let path = settings.metrics.prometheus_path.clone();
        let ports =
            [options(Port::Http, "/healthcheck"), options(Port::Debug, "/"), options(Port::Metrics, &path)];
        let rendered = app.clone();
        let metrics_page =
            debug::metrics_page(move |out| rendered.stats.write(&|samples| rendered.sample(samples), out));
        let shown = Shown {
            source: app.source.clone(),
            store: app.store.clone(),
            overrides: app.keeper.index().clone(),
            key_values: app.recent.values(),
        };
        let debug_pages = Arc::new(debug::debug_port(shown, metrics_page.clone()));
        let metrics_page = Arc::new(debug::metrics_port(path, metrics_page));
        let endpoints = Arc::new(endpoints(app, settings));
        let stop = stop.clone();
        serving.push(threads.http.run(move || async move {
            let [http, debug, metrics] = ports;
            let with_metrics = async {
                if let Some(listener) = self.metrics {
                    http::serve(listener, metrics, metrics_page, stop.clone()).await;
                }
            };
            tokio::join!(
                http::serve(self.http, http, endpoints, stop.clone()),
                http::serve(self.debug, debug, debug_pages, stop.clone()),
                with_metrics,
            );
        }));
        serving
    }
}
