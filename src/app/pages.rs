//! Serves the HTTP ports: health checks and `/json`, the debug pages, the metrics, and the admin API.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::StartError;
use crate::{
    clock::{Clock, SystemClock},
    panics::{self, Boundary},
    server::{
        admin::{Api, Hosts, Options, Tokens},
        grpc::Listener,
        http::{self, json, service::Service},
    },
    settings::{ServerAddress, Settings},
    telemetry::metrics::Port,
};

/// The ports, and what they serve.
pub(super) struct Pages {
    pub(super) http: Listener,
    pub(super) debug: Listener,
    pub(super) metrics: Option<Listener>,
    pub(super) admin: Option<(Listener, Arc<Api>)>,
}

/// The admin API, if it is enabled. Its tokens must be readable.
pub(super) fn api(settings: &Settings, service: &Arc<Service>) -> Result<Option<Arc<Api>>, StartError> {
    let Some(admin) = &settings.admin else { return Ok(None) };
    let tokens = admin.token_file.as_deref().map(Tokens::load).transpose();
    let tokens = tokens.map_err(|error| StartError(vec![error]))?;
    Ok(Some(Arc::new(Api::new(Options {
        service: service.clone(),
        hosts: match &admin.listen {
            ServerAddress::Tcp(address) => Hosts::Local(address.host.clone()),
            ServerAddress::Unix(_) => Hosts::Any,
        },
        tokens,
        read_only: admin.read_only,
        store_kind: settings.backend.name(),
        store_address: settings.backend.address(),
        started: SystemClock.now(),
    }))))
}

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples the counters once a second, until `stop` turns true.
async fn sample(api: Arc<Api>, stop: watch::Receiver<bool>) {
    let work = async || {
        let (api, mut stop) = (api.clone(), stop.clone());
        let mut second = interval_at(Instant::now() + SAMPLE_INTERVAL, SAMPLE_INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = second.tick() => api.tick(SystemClock.now()).await,
                _ = stop.wait_for(|stop| *stop) => return api.close(),
            }
        }
    };
    panics::restart_task(Boundary::Maintenance, work).await;
}

impl Pages {
    /// Serves the ports; each task ends after `stop` becomes true.
    pub(super) fn serve(
        self,
        settings: &Settings,
        service: &Arc<Service>,
        stop: &watch::Receiver<bool>,
    ) -> JoinSet<()> {
        let mut serving = JoinSet::new();
        let options = |port, probe: &str| http::Options {
            port,
            stats: service.stats.clone(),
            max_connections: settings.http.max_connections,
            timeout: settings.http.timeout,
            max_body: settings.server.max_request_bytes,
            probe: probe.into(),
            tls: None,
            has_own_pages: false,
        };
        let (shown, is_enabled) = (service.clone(), settings.http.json);
        let answer = move |request| json::answer(shown.clone(), is_enabled, request);
        let port = options(Port::Http, "/healthcheck");
        serving.spawn_local(http::serve(self.http, port, answer, stop.clone()));
        let shown = service.clone();
        let page = move |request| shown.clone().page(request);
        serving.spawn_local(http::serve(self.debug, options(Port::Debug, "/"), page, stop.clone()));
        if let Some(listener) = self.metrics {
            let (shown, path) =
                (service.clone(), Arc::<str>::from(settings.metrics.prometheus_path.as_str()));
            let port = options(Port::Metrics, &path);
            let page = move |request| shown.clone().metrics(request, path.clone());
            serving.spawn_local(http::serve(listener, port, page, stop.clone()));
        }
        if let (Some((listener, api)), Some(admin)) = (self.admin, &settings.admin) {
            let tls = service.tls.clone().filter(|_| admin.tls);
            let port = http::Options { tls, has_own_pages: true, ..options(Port::Admin, "/api/v1/status") };
            serving.spawn_local(sample(api.clone(), stop.clone()));
            let answer = move |request| api.clone().answer(request);
            serving.spawn_local(http::serve(listener, port, answer, stop.clone()));
        }
        serving
    }
}
