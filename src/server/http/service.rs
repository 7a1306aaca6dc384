//! The parts of the service, and what the HTTP ports show of them: the rules, the leases, the counters, the metrics.

use std::{cmp::Reverse, fmt::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};

use super::{Answer, internal_error, pages::Pages, text, typed};
use crate::{
    replicas::Replicas,
    server::{health::Health, tls::Tls},
};
use clock::{Clock, SystemClock, Time};
use containment::panics::Panicked;
use limiter::{Handles, Limiter, OverLimitCache};
use overrides::{Keeper, Usage, model::timestamp};
use recent::{DecisionLog, Recent, TopKey, shown};
use rules_source::{ReloadState, Source, xds};
use store::{LeaseState, Store};
use telemetry::{
    metrics::{
        CONTENT_TYPE, Gauges, LocalCacheGauges, OverrideGauges, RulesGauges, SpanGauges, Stats,
        TopRefusedGauge, XdsGauges,
    },
    tracing::{Dropped, Tracer},
};

/// The parts that live as long as the service.
pub(crate) struct Service {
    pub(crate) source: Arc<Source<Handles>>,
    /// The state of the subscription, if rules come from a control plane.
    pub(crate) xds: Option<Arc<xds::Status>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) over_limit: Option<Arc<OverLimitCache>>,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) recent: Arc<Recent>,
    /// The maximum number of keys in `tollgate_top_refused_hits`.
    pub(crate) top_keys: usize,
    pub(crate) health: Arc<Health>,
    /// TLS on the gRPC port, if it is enabled.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) copies: Copies,
}

/// The copies of large pages that are being sent.
#[derive(Default)]
pub(crate) struct Copies {
    leases: Pages,
    rules: Pages,
    stats: Pages,
}

/// The maximum number of overrides in `/rlconfig`. There may be a million.
const MAX_OVERRIDES: usize = 1_000;
/// The maximum number of leases in `/leases`.
const MAX_LEASES: usize = 1000;

const PAGES: &str = "/: this list\n\
    /leases: print out the leases that hold the most hits\n\
    /rlconfig: print out the currently loaded configuration for debugging\n\
    /stats: print out stats\n";

impl Service {
    pub(crate) async fn page(self: Arc<Self>, request: Request<Bytes>) -> Answer {
        let service = self.clone();
        let page = match request.uri().path() {
            "/leases" => self.copies.leases.get(move || service.leases()).await,
            "/rlconfig" => self.copies.rules.get(move || service.rules()).await,
            "/stats" => self.statistics().await,
            "/" => return text(StatusCode::OK, PAGES),
            _ => return text(StatusCode::NOT_FOUND, PAGES),
        };
        page.map_or_else(|Panicked| internal_error(), |page| text(StatusCode::OK, page))
    }

    /// The metrics, at their path.
    pub(crate) async fn metrics(self: Arc<Self>, request: Request<Bytes>, path: Arc<str>) -> Answer {
        if request.uri().path() != &*path {
            return text(StatusCode::NOT_FOUND, format!("Not found. The metrics are at {path}\n"));
        }
        let page = self.statistics().await;
        page.map_or_else(|Panicked| internal_error(), |page| typed(StatusCode::OK, CONTENT_TYPE, page))
    }

    async fn statistics(self: Arc<Self>) -> Result<Bytes, Panicked> {
        let service = self.clone();
        self.copies.stats.get(move || service.stats.render(&service.gauges())).await
    }

    /// The leases, one a line, those with the most hits first.
    fn leases(&self) -> String {
        let mut page = String::new();
        for lease in self.store.top_leases(MAX_LEASES, SystemClock.now()) {
            let LeaseState { key, limit, left, counter, requests_per_second } = lease;
            // The name of a counter consists of values for the most part.
            let key = shown(&key, self.recent.values());
            let counter = counter.map_or_else(|| "unknown".to_owned(), |counter| counter.to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(
                page,
                "{key}: left={left} counter={counter} limit={limit} requests_per_second={requests_per_second:.0}"
            );
        }
        page
    }

    /// The loaded rules, one a line, after the errors of newer rules that were rejected.
    fn rules(&self) -> String {
        let mut page = String::new();
        let (state, served) = (self.source.state(), self.source.current());
        if let (false, Some((_, errors))) = (state.is_current, &state.last_error) {
            page.push_str(if served.is_some() {
                "# Newer rules were rejected with these errors. The rules below are in force.\n"
            } else {
                "# The rules were rejected with these errors. No rules are in force.\n"
            });
            for error in errors {
                let _ = writeln!(page, "# {error}");
            }
        }
        if let Some(served) = served {
            let mut lines: Vec<String> = served.rules.rules().into_iter().map(ToString::to_string).collect();
            lines.sort_unstable();
            for line in lines {
                let _ = writeln!(page, "{line}");
            }
        }
        self.overrides(&mut page);
        page
    }

    /// The overrides in force, as comments, which tools that read rules skip.
    fn overrides(&self, page: &mut String) {
        let index = self.keeper.index();
        if index.is_empty() {
            return;
        }
        let _ = writeln!(page, "# {} overrides (tollgate override list):", index.len());
        let (values, mut left) = (self.recent.values(), MAX_OVERRIDES);
        index.for_each(|one| {
            let end = one.expires.map(|end| format!(" until {}", timestamp(end))).unwrap_or_default();
            let target = one.target.with_values(|value| shown(value, values).into_owned());
            let _ = writeln!(page, "# override {target}: {}{end}", one.action);
            left = left.saturating_sub(1);
            left > 0
        });
        let more = index.len().saturating_sub(MAX_OVERRIDES);
        if more > 0 {
            let _ = writeln!(page, "# and {more} more");
        }
    }

    /// The state of the parts that do not count in the statistics.
    pub(crate) fn gauges(&self) -> Gauges {
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

    /// The most refused keys of all rules, at most `METRICS_TOP_KEYS`.
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
