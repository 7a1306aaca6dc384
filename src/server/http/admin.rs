//! What people and Prometheus look at: the loaded rules, the counters, the metrics.

use std::{fmt::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};

use super::pages::Pages;
use crate::server::{
    http::{Answer, internal_error, text, typed},
    tls::Tls,
};
use crate::{
    clock::{Clock, SystemClock, Time},
    limiter::{Handles, Limiter, OverLimitCache},
    panics::Panicked,
    rules_source::{ReloadState, Source, xds},
    store::{LeaseState, Store},
    telemetry::{
        metrics::{
            CONTENT_TYPE, Gauges, LocalCacheGauges, RulesGauges, SpanGauges, Stats, StoreGauges, XdsGauges,
        },
        tracing::{Dropped, Tracer},
    },
};

/// What the pages show.
#[derive(Clone)]
pub struct Admin {
    /// The rules.
    pub source: Arc<Source<Handles>>,
    /// The state of the control plane, if rules come from one.
    pub xds: Option<Arc<xds::Status>>,
    /// The counters of rules and of the service.
    pub stats: Arc<Stats>,
    /// The counters of requests.
    pub store: Arc<dyn Store>,
    /// The keys known to be over their limit, if they are remembered.
    pub over_limit: Option<Arc<OverLimitCache>>,
    /// The counters of this process, where they stand in for a lost store.
    pub limiter: Arc<Limiter>,
    /// TLS on the gRPC port, if it is spoken there.
    pub tls: Option<Arc<Tls>>,
    /// Where spans go, if there are any.
    pub tracer: Option<Arc<Tracer>>,
    /// The pages on their way to readers.
    pub shown: Arc<Shown>,
}

/// The large pages.
#[derive(Default)]
pub struct Shown {
    leases: Pages,
    rules: Pages,
    stats: Pages,
}

/// Leases on their page.
const MAX_LEASES: usize = 1000;

const PAGES: &str = "/: this list\n\
    /leases: print out the leases that hold the most hits\n\
    /rlconfig: print out the currently loaded configuration for debugging\n\
    /stats: print out stats\n";

impl Admin {
    /// The pages of the debug port.
    pub async fn page(self, request: Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/" => text(StatusCode::OK, PAGES),
            "/leases" => {
                let shown = self.shown.clone();
                let page = shown.leases.get(move || self.leases()).await;
                page.map_or_else(|Panicked| internal_error(), |page| text(StatusCode::OK, page))
            }
            "/rlconfig" => {
                let shown = self.shown.clone();
                let page = shown.rules.get(move || self.rules()).await;
                page.map_or_else(|Panicked| internal_error(), |page| text(StatusCode::OK, page))
            }
            "/stats" => {
                let page = self.statistics().await;
                page.map_or_else(|Panicked| internal_error(), |page| text(StatusCode::OK, page))
            }
            _ => text(StatusCode::NOT_FOUND, PAGES),
        }
    }

    /// The metrics, at their path.
    pub async fn metrics(self, request: Request<Bytes>, path: Arc<str>) -> Answer {
        if request.uri().path() != &*path {
            return text(StatusCode::NOT_FOUND, format!("The metrics are at {path}\n"));
        }
        let page = self.statistics().await;
        page.map_or_else(|Panicked| internal_error(), |page| typed(StatusCode::OK, CONTENT_TYPE, page))
    }

    async fn statistics(self) -> Result<Bytes, Panicked> {
        let shown = self.shown.clone();
        shown.stats.get(move || self.stats.render(&self.gauges())).await
    }

    /// The leases, one a line: those with the most hits first.
    fn leases(&self) -> String {
        let mut page = String::new();
        for lease in self.store.top_leases(MAX_LEASES, SystemClock.now()) {
            let LeaseState { key, limit, left, counter, requests_per_second } = lease;
            let counter = counter.map_or_else(|| "unknown".to_owned(), |counter| counter.to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(
                page,
                "{key}: left={left} counter={counter} limit={limit} requests_per_second={requests_per_second:.0}"
            );
        }
        page
    }

    /// The loaded rules, one a line; and above them, when newer ones were refused, why.
    fn rules(&self) -> String {
        let mut page = String::new();
        let state = self.source.state();
        if let (false, Some((_, errors))) = (state.is_current, &state.last_error) {
            page.push_str("# Newer rules were refused for these errors. Those below are still served.\n");
            for error in errors {
                let _ = writeln!(page, "# {error}");
            }
        }
        if let Some(served) = self.source.current() {
            let mut lines: Vec<String> = served.rules.rules().into_iter().map(ToString::to_string).collect();
            lines.sort_unstable();
            for line in lines {
                let _ = writeln!(page, "{line}");
            }
        }
        page
    }

    /// The present state of the rooms that statistics do not know.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            rules: Some(rules_gauges(&self.source.state())),
            xds: self.xds.as_ref().map(|status| {
                let xds::State { connected, reconnects, updates, refused, version } = status.state();
                XdsGauges { connected, reconnects, updates, refused, version }
            }),
            store: self.store.usage().or_else(|| self.limiter.local_usage()).map(|usage| StoreGauges {
                keys: usage.held.entries as u64,
                keys_max: usage.max_keys as u64,
                bytes: usage.held.bytes as u64,
                evictions: usage.held.evicted,
                expired: usage.held.expired,
            }),
            tls: self.tls.as_ref().map(|tls| tls.gauges()),
            spans: self.tracer.as_ref().map(|tracer| span_gauges(tracer)),
            local_cache: self.over_limit.as_ref().map(|cache| {
                let usage = cache.usage();
                LocalCacheGauges {
                    entries: usage.keys.entries as u64,
                    hits: usage.hits,
                    misses: usage.lookups.saturating_sub(usage.hits),
                    lookups: usage.lookups,
                    expired: usage.keys.expired,
                    evacuated: usage.keys.evicted,
                }
            }),
            pools: self.store.pools(),
            leases: self.store.leases(),
        }
    }
}

fn rules_gauges(state: &ReloadState) -> RulesGauges {
    let since_1970 = |time: Time| Duration::from_micros(time.micros());
    RulesGauges {
        last_success: state.last_success.map(since_1970),
        last_error: state.last_error.as_ref().map(|(time, _)| since_1970(*time)),
        load_failed: !state.is_current,
        loads: state.loads,
        errors: state.errors,
        hash: state.last_success.map(|_| format!("{:016x}", state.hash)),
        files: state.files as u64,
        domains: state.domains as u64,
        rules: state.rules as u64,
    }
}

fn span_gauges(tracer: &Tracer) -> SpanGauges {
    let counts = tracer.counts();
    let dropped = Dropped::ALL.map(|reason| (reason.name(), counts.dropped(reason)));
    SpanGauges { exported: counts.exported(), dropped: dropped.into() }
}
