//! What people and Prometheus look at: the loaded rules, the counters, the metrics.

use std::{cmp::Reverse, fmt::Write, sync::Arc, time::Duration};

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
    overrides::{Keeper, Usage, model::timestamp},
    panics::Panicked,
    recent::{DecisionLog, Recent, TopKey},
    replicas::Replicas,
    rules_source::{ReloadState, Source, xds},
    store::{LeaseState, Store},
    telemetry::{
        metrics::{
            CONTENT_TYPE, Gauges, LocalCacheGauges, OverrideGauges, RulesGauges, SpanGauges, Stats,
            TopRefusedGauge, XdsGauges,
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
    /// What happened in the last minutes.
    pub recent: Arc<Recent>,
    /// How many of the most refused keys the metrics show.
    pub top_keys: usize,
    /// TLS on the gRPC port, if it is spoken there.
    pub tls: Option<Arc<Tls>>,
    /// Where spans go, if there are any.
    pub tracer: Option<Arc<Tracer>>,
    /// The overrides.
    pub keeper: Arc<Keeper>,
    /// The replicas that share the store.
    pub replicas: Arc<Replicas>,
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

/// Overrides that `/rlconfig` shows. There may be a million.
const SHOWN_OVERRIDES: usize = 1_000;
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
        self.overrides(&mut page);
        page
    }

    /// The overrides in force, as comments, so that tools that read rules skip them.
    fn overrides(&self, page: &mut String) {
        let index = self.keeper.index();
        if index.is_empty() {
            return;
        }
        let _ = writeln!(page, "# {} overrides (tollgate override list):", index.len());
        let mut left = SHOWN_OVERRIDES;
        index.for_each(|one| {
            let end = one.expires.map(|end| format!(" until {}", timestamp(end))).unwrap_or_default();
            let _ = writeln!(page, "# override {}: {}{end}", one.target, one.action);
            left = left.saturating_sub(1);
            left > 0
        });
        let more = index.len().saturating_sub(SHOWN_OVERRIDES);
        if more > 0 {
            let _ = writeln!(page, "# and {more} more");
        }
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
            store: self.store.usage().or_else(|| self.limiter.local_usage()),
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
            decision_log: self.recent.log().map(DecisionLog::counts),
            top_refused: self.top_refused(),
            overrides: Some({
                let Usage { by_action, bytes } = self.keeper.index().usage();
                OverrideGauges { by_action, bytes: bytes as u64 }
            }),
            replicas: self.replicas.by_rules_hash(),
            leases: self.store.leases(),
        }
    }
}

impl Admin {
    /// The most refused keys of all rules, as many as the settings want.
    fn top_refused(&self) -> Vec<TopRefusedGauge> {
        let served = if self.top_keys > 0 { self.source.current() } else { None };
        let Some(served) = served else { return Vec::new() };
        let mut keys = self.recent.top(served.attached.all_recent(), SystemClock.now());
        keys.retain(|key| key.refused > 0);
        keys.sort_unstable_by_key(|key| Reverse(key.refused));
        keys.truncate(self.top_keys);
        let gauge = |key: &TopKey| TopRefusedGauge {
            domain: key.rule.domain.to_string(),
            rule: key.rule.path().to_owned(),
            descriptor: key.key.text(self.recent.values()),
            hits: key.refused,
        };
        keys.iter().map(gauge).collect()
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
