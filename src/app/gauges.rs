//! The gauges of the metrics: the state of all parts, read when the metrics are rendered or sent.

use std::{cmp::Reverse, time::Duration};

use super::parts::App;
use clock::{Clock, SystemClock, Time};
use overrides::Usage;
use recent::{DecisionLog, TopKey};
use rules_source::{ReloadState, xds};
use telemetry::metrics::{
    Gauges, LocalCacheGauges, OverrideGauges, RulesGauges, SpanGauges, TopRefusedGauge, XdsGauges,
};
use telemetry::tracing::{Dropped, Tracer};

impl App {
    /// The state of the parts that do not count in the statistics.
    pub(super) fn gauges(&self) -> Gauges {
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
