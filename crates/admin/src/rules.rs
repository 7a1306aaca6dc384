//! `GET /api/v1/rules`: every rule with its place, its limits, its hits, and its rates from samples of the counters.

use std::{
    cmp::Ordering,
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use serde::Serialize;

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use clock::Time;
use containment::mutex::lock;
use limiter::Served;
use recent::LimitShown;
use rules::{Limits, Rule, RuleId};
use telemetry::metrics::{RuleCounter, RuleStats};

const SECONDS: usize = 2;

#[derive(Serialize)]
struct Rules<'a> {
    rules: Vec<RuleJson<'a>>,
    /// The number of rules, including those that are not in the reply.
    total: usize,
}

#[derive(Serialize)]
struct RuleJson<'a> {
    domain: &'a str,
    rule: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    limits: Vec<LimitShown>,
    unlimited: bool,
    shadow_mode: bool,
    quota_mode: bool,
    /// False if the names of its metrics contain values of requests: then its hits are not counted here.
    has_fixed_name: bool,
    hits: Hits<u64>,
    per_second: Option<Hits<f64>>,
}

/// The hits of a rule: in total, or in a second.
#[derive(Serialize, Clone, Copy, PartialEq, Debug, Default)]
struct Hits<N> {
    allowed: N,
    refused: N,
    near: N,
    shadowed: N,
}

/// The last samples of the rules' counters.
#[derive(Default)]
pub(super) struct RuleRates(Mutex<VecDeque<Sample>>);

/// The counters of a set of rules at one moment, by the ids of the rules.
struct Sample {
    time: Time,
    served: Arc<Served>,
    hits: Vec<Hits<u64>>,
}

/// The first `n` rules of a domain, by their names or by their rates.
pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "by"])?;
    let most = query.number("n", 1000, 1..=100_000)?;
    let by_hits = query.word("by", &["name", "hits"])? == "hits";
    let Some(served) = api.managed.source.current() else {
        return Reply::json(&Rules { rules: Vec::new(), total: 0 });
    };
    let rates = api.rule_rates.of(&served);
    let mut found = rules(&served, query.text("domain"));
    let hits = |(rule, _): &(&Rule, bool)| {
        let rate = rates.get(rule.id.0 as usize).copied().unwrap_or_default();
        rate.allowed + rate.refused + rate.shadowed
    };
    found.sort_unstable_by(|one, other| {
        let by_rate = if by_hits { hits(other).total_cmp(&hits(one)) } else { Ordering::Equal };
        by_rate.then_with(|| one.0.full_key.cmp(&other.0.full_key))
    });
    let total = found.len();
    found.truncate(most);
    let rules = found.into_iter().map(|(rule, has_fixed_name)| json(&served, rule, has_fixed_name, &rates));
    Reply::json(&Rules { rules: rules.collect(), total })
}

/// The rules of a domain or of all domains, each with whether its metrics have its full key as their name.
fn rules<'a>(served: &'a Arc<Served>, domain: Option<&str>) -> Vec<(&'a Rule, bool)> {
    let domains = served.rules.domains().filter(|known| domain.is_none_or(|name| *known.name == *name));
    domains.flat_map(|domain| domain.rules()).collect()
}

fn json<'a>(
    served: &'a Arc<Served>,
    rule: &'a Rule,
    has_fixed_name: bool,
    rates: &[Hits<f64>],
) -> RuleJson<'a> {
    let info = served.attached.recent(rule.id);
    let place = info.and_then(|info| info.place.as_ref());
    let stats = served.attached.stats(rule.id);
    RuleJson {
        domain: info.map(|info| &*info.domain).unwrap_or_default(),
        rule: &rule.full_key,
        file: place.map(|(file, _)| &**file),
        line: place.map(|(_, line)| *line),
        limits: rule.limits().into_iter().flat_map(Limits::iter).map(LimitShown::from).collect(),
        unlimited: rule.limits().is_none(),
        shadow_mode: rule.shadow_mode,
        quota_mode: rule.quota_mode,
        has_fixed_name,
        hits: stats.map(|stats| Hits::of(stats)).unwrap_or_default(),
        per_second: rates.get(rule.id.0 as usize).copied(),
    }
}

impl Hits<u64> {
    fn of(stats: &RuleStats) -> Self {
        let shadowed = stats.get(RuleCounter::ShadowMode);
        Self {
            allowed: stats.get(RuleCounter::WithinLimit),
            refused: stats.get(RuleCounter::OverLimit).saturating_sub(shadowed),
            near: stats.get(RuleCounter::NearLimit),
            shadowed,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "rates are for people")]
    fn per_second(self, before: Self, micros: u64) -> Hits<f64> {
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 * 1e6 / micros as f64;
        Hits {
            allowed: rate(self.allowed, before.allowed),
            refused: rate(self.refused, before.refused),
            near: rate(self.near, before.near),
            shadowed: rate(self.shadowed, before.shadowed),
        }
    }
}

impl RuleRates {
    /// Samples the counters of the rules in force; called once a second.
    pub(super) fn sample(&self, served: Option<Arc<Served>>, now: Time) {
        let Some(served) = served else { return };
        let ids = (0..served.rules.rule_count()).map(RuleId);
        let hits = ids.map(|id| served.attached.stats(id).map(|stats| Hits::of(stats)).unwrap_or_default());
        let sample = Sample { time: now, hits: hits.collect(), served };
        let mut samples = lock(&self.0);
        // After a reload the ids differ, and a clock that was set back gives no rate.
        if samples.back().is_some_and(|last| !Arc::ptr_eq(&last.served, &sample.served) || last.time >= now) {
            samples.clear();
        }
        samples.push_back(sample);
        while samples.len() > SECONDS.saturating_add(1) {
            samples.pop_front();
        }
    }

    /// The rates of the rules by their ids; empty in the first second after a reload.
    fn of(&self, served: &Arc<Served>) -> Vec<Hits<f64>> {
        let samples = lock(&self.0);
        let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return Vec::new() };
        let micros = last.time.micros().saturating_sub(first.time.micros());
        if micros == 0 || !Arc::ptr_eq(&last.served, served) {
            return Vec::new();
        }
        last.hits.iter().zip(&first.hits).map(|(after, before)| after.per_second(*before, micros)).collect()
    }
}
