//! Every sample, in the order of the page, and the page that Prometheus scrapes.
//!
//! Called for each scrape and each flush to statsd. It reads the counters while others add to them; a lookup of a known
//! name waits for none of its locks.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    Exposition, Stats,
    labels::Labels,
    names::{Metric, MetricType, RuleCounter},
    page::{Page, Samples, Value},
    rows,
    rule::RuleStats,
};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Yields the samples of the parts that do not count here, in the order of the page.
pub type Gauges<'g> = dyn Fn(&mut Samples<'_>) + 'g;

impl Stats {
    /// Writes the page that Prometheus scrapes: the counters, and the gauges.
    ///
    /// Its cost grows with the number of series, so it is not for a thread that answers requests.
    pub fn write(&self, gauges: &Gauges<'_>, out: &mut dyn fmt::Write) -> fmt::Result {
        let in_milliseconds = match &self.exposition {
            Exposition::Mapped(mapped) => return mapped.write(self, gauges, out),
            Exposition::Own { in_milliseconds } => *in_milliseconds,
        };
        let mut page = Page::new(out, in_milliseconds);
        self.every_sample(gauges, &mut |metric, labels, value| page.sample(metric, labels, value));
        page.written
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn render(&self, gauges: &Gauges<'_>) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(gauges, &mut text);
        text
    }

    /// Every sample, in the order of the page; the samples of a metric come together.
    pub fn every_sample(&self, gauges: &Gauges<'_>, take: &mut dyn FnMut(&Metric, &[&str], Value<'_>)) {
        rules(&mut Samples(take), self);
        self.samples(gauges, take);
    }

    /// Every sample but those of the rules' statsd counters.
    pub fn samples(&self, gauges: &Gauges<'_>, take: &mut dyn FnMut(&Metric, &[&str], Value<'_>)) {
        let samples = &mut Samples(take);
        rows::requests(samples, self);
        rule_hits(samples, self);
        rows::service(samples, self);
        gauges(samples);
        rows::series(samples, self);
        #[cfg(target_os = "linux")]
        process(samples, &self.process);
    }
}

/// The metrics of the process. The collector cuts off the fraction of its CPU seconds.
#[cfg(target_os = "linux")]
fn process(samples: &mut Samples<'_>, collector: &::prometheus::process_collector::ProcessCollector) {
    use ::prometheus::core::Collector as _;
    for family in collector.collect() {
        let metric = rows::PROCESS.iter().find(|metric| metric.name == family.name());
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

fn rules(samples: &mut Samples<'_>, stats: &Stats) {
    let totals = stats.registry.totals();
    for (counter, metric) in RuleCounter::ALL.into_iter().zip(rows::RULES) {
        for (labels, sums) in &totals {
            let n = shown(counter, labels, &sums.counts);
            // A series named by a caller's value appears with its first hit, and one of refunds with the first refund.
            if n > 0 || sums.is_of_rules && counter != RuleCounter::TotalNegativeHits {
                samples.values(metric, [(labels.values(), n)]);
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
                samples.values(&rows::RULE_HITS, [([domain, path, outcome], n)]);
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
