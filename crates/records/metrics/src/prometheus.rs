//! Every sample, in the order of the page, and the page that Prometheus scrapes.
//!
//! Called for each scrape and each flush to statsd. It reads the counters while others add to them; a lookup of a known
//! name waits for none of its locks.

use std::{sync::Arc, time::Duration};

use super::{
    Exposition, HoldBound, HoldEnd, Holds, Stats,
    labels::Labels,
    names::{self, Metric, MetricType, RuleCounter},
    page::{Page, Samples, Value},
    rule::RuleStats,
    service::{
        ConnectionClosed, ConnectionRefused, Method, PeerError, Port, RejectReason, ServiceStats,
        Unauthorized,
    },
};
use crate::{FailureReason, usage};
use faults::{OnStoreFailure, mutex::lock, panics};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Yields the samples of the parts that do not count here, in the order of the page.
pub type Gauges<'g> = dyn Fn(&mut Samples<'_>) + 'g;

impl Stats {
    /// The page that Prometheus scrapes: the counters, and the gauges.
    ///
    /// Its cost grows with the number of series, so it is not for a thread that answers requests.
    pub fn render(&self, gauges: &Gauges<'_>) -> String {
        let in_milliseconds = match &self.exposition {
            Exposition::Mapped(mapped) => return mapped.render(self, gauges),
            Exposition::Own { in_milliseconds } => *in_milliseconds,
        };
        let mut page = Page { in_milliseconds, ..Page::default() };
        rules(&mut page, self);
        self.samples(gauges, &mut |metric, labels, value| page.sample(metric, labels, value));
        page.text
    }

    /// Every sample but those of the rules' statsd counters.
    pub fn samples(&self, gauges: &Gauges<'_>, take: &mut dyn FnMut(&Metric, &[&str], Value<'_>)) {
        let samples = &mut Samples(take);
        domains(samples, self);
        service(samples, &self.service);
        store_failures(samples, &self.service);
        requests(samples, self);
        rule_hits(samples, self);
        program(samples, self.commit);
        bounds(samples, self);
        holds(samples, &self.holds);
        samples.values(&names::ADMIN_CHANGES, self.service.admin_changes.totals());
        let unauthorized =
            |reason: Unauthorized| ([reason.name()], self.service.admin_unauthorized(reason).get());
        samples.values(&names::ADMIN_UNAUTHORIZED, Unauthorized::ALL.map(unauthorized));
        gauges(samples);
        series(samples, self);
        #[cfg(target_os = "linux")]
        process(samples, &self.process);
    }
}

/// The metrics of the process. The collector cuts off the fraction of its CPU seconds.
#[cfg(target_os = "linux")]
fn process(samples: &mut Samples<'_>, collector: &::prometheus::process_collector::ProcessCollector) {
    use ::prometheus::core::Collector as _;
    for family in collector.collect() {
        let metric = names::PROCESS.iter().find(|metric| metric.name == family.name());
        for (metric, sample) in metric.into_iter().zip(family.get_metric()) {
            let value = match metric.kind {
                MetricType::Counter => cpu_seconds().unwrap_or_else(|| sample.get_counter().get_value()),
                _ => sample.get_gauge().get_value(),
            };
            samples.value(metric, value);
        }
    }
}

#[cfg(target_os = "linux")]
fn cpu_seconds() -> Option<f64> {
    let stat = procfs::process::Process::myself().and_then(|process| process.stat()).ok()?;
    let millis = (stat.utime + stat.stime) * 1_000;
    Some(Duration::from_millis(millis.checked_div(procfs::ticks_per_second())?).as_secs_f64())
}

pub(super) const RULE_METRICS: [&Metric; RuleCounter::ALL.len()] = [
    &names::TOTAL_HITS,
    &names::OVER_LIMIT,
    &names::NEAR_LIMIT,
    &names::WITHIN_LIMIT,
    &names::OVER_LIMIT_WITH_LOCAL_CACHE,
    &names::SHADOW_MODE,
    &names::TOTAL_NEGATIVE_HITS,
];

fn rules(page: &mut Page, stats: &Stats) {
    let totals = stats.registry.totals();
    for (counter, metric) in RuleCounter::ALL.into_iter().zip(RULE_METRICS) {
        for (labels, sums) in &totals {
            let n = shown(counter, labels, &sums.counts);
            // A series named by a caller's value appears with its first hit, and one of refunds with the first refund.
            if n > 0 || sums.is_of_rules && counter != RuleCounter::TotalNegativeHits {
                let Labels { domain, key1, key2 } = labels;
                let values = [domain, key1, key2.as_deref().unwrap_or("")];
                page.sample(metric, &values[..if key2.is_some() { 3 } else { 2 }], n.into());
            }
        }
    }
}

/// The value of a series from its rules' counts.
///
/// The Go service's mapping counts the `over_limit_with_local_cache` of a rule with a second key as `over_limit` too,
/// because its pattern does not match the end of the name. So hits rejected by the local cache count twice there, and
/// here, for those who compare replicas of both services.
fn shown(counter: RuleCounter, labels: &Labels, counts: &[u64; RuleCounter::ALL.len()]) -> u64 {
    let own = counts[counter as usize];
    if counter == RuleCounter::OverLimit && labels.key2.is_some() {
        own.saturating_add(counts[RuleCounter::OverLimitWithLocalCache as usize])
    } else {
        own
    }
}

fn domains(samples: &mut Samples<'_>, stats: &Stats) {
    let unknown = stats.unknown_domains.totals();
    samples.values(&names::DOMAIN_NOT_FOUND, unknown.iter().map(|(domain, n)| ([domain.as_str()], *n)));
}

fn holds(samples: &mut Samples<'_>, holds: &Holds) {
    let rules = holds.by_rule();
    samples.values(&names::HOLDS_SETTLED, rules.iter().map(|rule| ([&*rule.full_key], rule.settled.get())));
    let ends = rules
        .iter()
        .flat_map(|rule| HoldEnd::ALL.map(|how| ([&*rule.full_key, how.name()], rule.ended(how).get())));
    samples.values(&names::HOLDS_ENDED, ends);
    samples.value(&names::HOLDS_LATE, holds.late.get());
    samples.value(&names::HOLDS_OVERSPENT, holds.overspent_hits.get());
    samples.value(&names::HOLDS_UNKNOWN_IDS, holds.unknown_ids.get());
    let refused = HoldBound::ALL.map(|bound| ([bound.name()], holds.refused(bound).get()));
    samples.values(&names::HOLDS_REFUSED, refused);
}

fn requests(samples: &mut Samples<'_>, stats: &Stats) {
    let totals = stats.domains.totals();
    samples.values(&names::REQUESTS, totals.iter().map(|(domain, code, n)| ([&**domain, code.name()], *n)));
    let unmatched = stats.domains.unmatched();
    samples.values(&names::UNMATCHED, unmatched.iter().map(|(domain, n)| ([&**domain], *n)));
    let not_enforced = lock(&stats.not_enforced);
    samples.values(
        &names::NOT_ENFORCED,
        not_enforced.iter().map(|labels| (labels.each_ref().map(|label| &**label), 1)),
    );
}

/// The outcomes of hits, and their numbers from the counters.
const OUTCOMES: [&str; 3] = ["allowed", "over_limit", "shadow"];

fn outcomes(counts: &[u64; RuleCounter::ALL.len()], shadow_mode: bool) -> [u64; OUTCOMES.len()] {
    let [_, over, _, within, _, shadow, _] = *counts;
    // The Go service counts hits that shadow mode allows as over the limit too, and with SHADOW_MODE only so.
    let shadow = if shadow_mode { over } else { shadow };
    [within, over.saturating_sub(shadow), shadow]
}

/// The hits of every rule by its full path. Current rules are shown from the start if all of their series are at most
/// `METRICS_MAX_SERIES`; otherwise, and for names that callers make, a series appears with its first hit.
fn rule_hits(samples: &mut Samples<'_>, stats: &Stats) {
    let idle = stats.idle_in_service();
    let mut show = |rule: &RuleStats, counts| {
        let (domain, path) = rule.path();
        for (outcome, n) in OUTCOMES.into_iter().zip(outcomes(&counts, stats.shadow_mode)) {
            if n > 0 || !rule.is_of_caller() {
                samples.values(&names::RULE_HITS, [([domain, path, outcome], n)]);
            }
        }
    };
    for rule in &idle {
        show(rule, rule.counts().unwrap_or_default());
    }
    stats.for_each_rule(|rule, counts| {
        // It may have counted for the first time since.
        if idle.binary_search_by_key(&std::ptr::from_ref(rule), Arc::as_ptr).is_err() {
            show(rule, counts);
        }
    });
}

fn service(samples: &mut Samples<'_>, service: &ServiceStats) {
    let errors =
        [(["redis_error"], service.redis_error.get()), (["service_error"], service.service_error.get())];
    samples.values(&names::SHOULD_RATE_LIMIT_ERROR, errors);
    let requests = Method::ALL.map(|method| ([method.name()], service.requests(method).get()));
    samples.values(&names::TOTAL_REQUESTS, requests);
    let times = Method::ALL.map(|method| (method.name(), service.response_time(method).snapshot()));
    let times = times.iter().map(|(method, times)| ([*method], Value::Times(times)));
    samples.values(&names::RESPONSE_TIME, times);
    samples.value(&names::GLOBAL_SHADOW_MODE, service.global_shadow_mode.get());
}

fn store_failures(samples: &mut Samples<'_>, service: &ServiceStats) {
    let decided = OnStoreFailure::ALL.into_iter().flat_map(|policy| {
        FailureReason::ALL
            .map(|reason| ([policy.name(), reason.name()], service.store_failures(policy, reason).get()))
    });
    samples.values(&names::STORE_FAILURE_DECISIONS, decided);
}

fn program(samples: &mut Samples<'_>, commit: &str) {
    let labels = [env!("CARGO_PKG_VERSION"), commit, std::env::consts::OS, std::env::consts::ARCH];
    samples.values(&names::BUILD_INFO, [(labels, 1.0)]);
}

fn bounds(samples: &mut Samples<'_>, stats: &Stats) {
    let service = &stats.service;
    let refused = RejectReason::ALL.map(|reason| ([reason.name()], service.refused(reason).get()));
    samples.values(&names::REQUESTS_REFUSED, refused);
    samples.values(&names::PANICS, panics::counts().map(|(name, n)| ([name], n)));
    samples.value(&names::LOG_LINES_DROPPED, usage::log_lines_dropped());
    samples.value(&names::CONNECTIONS_OPEN, service.connections_open());
    samples.value(&names::CONNECTIONS_ACCEPTED, service.connections_accepted.get());
    let refused = Port::ALL.into_iter().flat_map(|port| {
        ConnectionRefused::ALL
            .map(|reason| ([port.name(), reason.name()], service.connections_refused(port, reason).get()))
    });
    samples.values(&names::CONNECTIONS_REFUSED, refused);
    let closed = Port::ALL.into_iter().flat_map(|port| {
        ConnectionClosed::ALL.map(|reason| {
            ([port.name(), reason.name()], service.connections_closed_by_us(port, reason).get())
        })
    });
    samples.values(&names::CONNECTIONS_CLOSED, closed);
    let peer_errors = PeerError::ALL.map(|reason| ([reason.name()], service.peer_errors(reason).get()));
    samples.values(&names::PEER_ERRORS, peer_errors);
}

fn series(samples: &mut Samples<'_>, stats: &Stats) {
    samples.value(&names::SERIES, stats.room.taken() as u64);
    samples.value(&names::SERIES_MAX, stats.room.max as u64);
    let refused = stats.registry.refused();
    samples.values(&names::SERIES_OVERFLOW, refused.iter().map(|(domain, n)| ([domain.as_str()], *n)));
}
