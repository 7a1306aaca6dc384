//! `GET /api/v1/rules`: every rule with its place, its limits, and its hits and rates from samples of the counters.

use std::{
    cell::Cell,
    cmp::Ordering,
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use http::StatusCode;

use super::{
    Api,
    history::rates_of,
    reply::{Call, Problem, Reply},
    view::{Parts, View},
};
use api::{RuleListed, RulesFile, RulesFiles, Whose};
use clock::{Clock as _, SystemClock, Time};
use faults::mutex::lock;
use fleet::RuleHits;
use limit::Limits;
use limiter::Served;
use metrics::{RuleCounter, RuleStats};
use recent::LimitShown;
use rules::{Rule, RuleId, SourceFile};
use serde::{Serialize, Serializer};

const SECONDS: usize = 2;

/// The last samples of the rules' counters.
#[derive(Default)]
pub(super) struct RuleRates(Mutex<VecDeque<Sample>>);

/// The counters of a set of rules at one moment, by the ids of the rules.
struct Sample {
    time: Time,
    served: Arc<Served>,
    /// See [`hits_of`].
    hits: Vec<[u64; 4]>,
}

/// The rules that a call lists.
#[derive(Default)]
pub(super) struct Wanted<'a> {
    pub(super) most: usize,
    /// By their rates, not by their names.
    pub(super) by_hits: bool,
    pub(super) domain: Option<&'a str>,
    /// The full key of the only one.
    pub(super) rule: Option<&'a str>,
}

pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = &call.query;
    let wanted = Wanted {
        most: query.number("n"),
        by_hits: query.word("by") == "hits",
        domain: query.text("domain"),
        rule: query.text("rule"),
    };
    list(api, &api.view(query, Parts { rules: true, ..Parts::default() }).await?, &wanted)
}

pub(super) fn list(api: &Api, View { merged, whose }: &View, wanted: &Wanted<'_>) -> Result<Reply, Problem> {
    let served = api.managed.source.current();
    let counted = RuleHitsByKey {
        all: merged.rules.iter().map(|hits| (&*hits.rule, hits)).collect(),
        others: merged.other_rules > 0,
        has_rates: api.rule_rates.has_rates(served.as_ref()),
        now: SystemClock.now(),
    };
    let mut found = served.as_ref().map(|served| rules(served, wanted.domain)).unwrap_or_default();
    if let Some(name) = wanted.rule {
        found.retain(|(rule, _)| &*rule.full_key == name);
    }
    let rate = |(rule, _): &(&Rule, bool)| {
        let [allowed, refused, _, shadowed] = counted.of(rule).per_second;
        allowed + refused + shadowed
    };
    found.sort_unstable_by(|one, other| {
        let by_rate = if wanted.by_hits { rate(other).total_cmp(&rate(one)) } else { Ordering::Equal };
        by_rate.then_with(|| one.0.full_key.cmp(&other.0.full_key))
    });
    let total = found.len();
    found.truncate(wanted.most);
    let served = served.iter().cycle();
    let rules = served
        .zip(found)
        .map(|(served, (rule, has_fixed_name))| json(served, rule, has_fixed_name, &counted));
    Reply::json(api, &Listed { rules: Rows(Cell::new(Some(rules))), total, whose })
}

/// `GET /api/v1/rules/files`: the text of the rules in force.
pub(super) async fn files(api: &Api, _: &Call<'_>) -> Result<Reply, Problem> {
    let source = &api.managed.source;
    let served = source.current().filter(|served| !served.files.is_empty()).ok_or_else(|| {
        let message = "no rules of files are in force; those of a control plane have no files";
        Problem::new(StatusCode::CONFLICT, message)
    })?;
    let file = |file: &SourceFile| RulesFile { name: file.name.clone(), text: file.readable() };
    let files = served.files.iter().map(file).collect();
    Reply::json(api, &RulesFiles { files, merge_domains: source.options().merge_domains })
}

/// [`api::Rules`], whose rows are made one at a time.
#[derive(Serialize)]
struct Listed<'v, R> {
    rules: R,
    total: usize,
    #[serde(flatten)]
    whose: &'v Whose,
}

struct Rows<I>(Cell<Option<I>>);

impl<I: Iterator<Item: Serialize>> Serialize for Rows<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

/// What the rules have counted, by their full keys.
struct RuleHitsByKey<'a> {
    all: HashMap<&'a str, &'a RuleHits>,
    /// Others were counted, too.
    others: bool,
    has_rates: bool,
    now: Time,
}

impl RuleHitsByKey<'_> {
    fn of(&self, rule: &Rule) -> RuleHits {
        let none = || RuleHits { is_partial: self.others, ..RuleHits::default() };
        self.all.get(&*rule.full_key).map_or_else(none, |hits| RuleHits::clone(hits))
    }
}

/// The rules of a domain or of all domains, each with whether its metrics have its full key as their name.
fn rules<'a>(served: &'a Served, domain: Option<&str>) -> Vec<(&'a Rule, bool)> {
    let domains = served.rules.domains().filter(|known| domain.is_none_or(|name| *known.name == *name));
    domains.flat_map(|domain| domain.rules()).collect()
}

fn json(
    served: &Served,
    rule: &Rule,
    has_fixed_name: bool,
    counted: &RuleHitsByKey<'_>,
) -> RuleListed<LimitShown> {
    let info = served.attached.recent(rule.id);
    let place = info.and_then(|info| info.place.as_ref());
    let RuleHits { hits, per_second, is_partial, .. } = counted.of(rule);
    let shown = |limit| LimitShown::at(limit, counted.now);
    RuleListed {
        domain: info.map(|info| info.domain.to_string()).unwrap_or_default(),
        rule: rule.full_key.to_string(),
        file: place.map(|(file, _)| file.to_string()),
        line: place.map(|(_, line)| *line),
        limits: rule.limits().into_iter().flat_map(Limits::iter).map(shown).collect(),
        unlimited: rule.limits().is_none(),
        shadow_mode: rule.shadow_mode,
        quota_mode: rule.quota_mode,
        has_fixed_name,
        hits: hits.into(),
        per_second: counted.has_rates.then(|| per_second.into()),
        partial: is_partial,
    }
}

/// Allowed, refused, near and shadowed hits. `SHADOW_MODE` shadows all that are over the limit.
fn hits_of(stats: &RuleStats, shadow_mode: bool) -> [u64; 4] {
    let over = stats.get(RuleCounter::OverLimit);
    let shadowed = if shadow_mode { over } else { stats.get(RuleCounter::ShadowMode) };
    [
        stats.get(RuleCounter::WithinLimit),
        over.saturating_sub(shadowed),
        stats.get(RuleCounter::NearLimit),
        shadowed,
    ]
}

impl RuleRates {
    /// Samples the counters of the rules in force; called once a second.
    pub(super) fn sample(&self, served: Option<Arc<Served>>, shadow_mode: bool, now: Time) {
        let Some(served) = served else { return };
        let ids = (0..served.rules.rule_count()).map(RuleId);
        let hits_of_rule =
            |id| served.attached.stats(id).map(|stats| hits_of(stats, shadow_mode)).unwrap_or_default();
        let hits = ids.map(hits_of_rule).collect();
        let sample = Sample { time: now, hits, served };
        let mut samples = lock(&self.0);
        // After a reload the ids differ, and a clock that was set back gives no rate.
        if samples.back().is_some_and(|last| !Arc::ptr_eq(&last.served, &sample.served) || last.time >= now) {
            samples.clear();
        }
        samples.push_back(sample);
        while samples.len() > SECONDS + 1 {
            samples.pop_front();
        }
    }

    /// False in the first second after a reload.
    fn has_rates(&self, served: Option<&Arc<Served>>) -> bool {
        let samples = lock(&self.0);
        samples.len() > 1
            && samples.back().zip(served).is_some_and(|(last, served)| Arc::ptr_eq(&last.served, served))
    }

    /// What the rules with hits have counted, and their rates as last sampled.
    pub(super) fn hits(&self, shadow_mode: bool) -> Vec<RuleHits> {
        let samples = lock(&self.0);
        let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return Vec::new() };
        let micros = last.time.micros().saturating_sub(first.time.micros()).max(1);
        let stats = &last.served.attached;
        let hits_of_rule = |id| stats.stats(id).map(|stats| hits_of(stats, shadow_mode)).unwrap_or_default();
        let sampled = (0..).map(RuleId).zip(first.hits.iter().zip(&last.hits));
        let rule = |(id, (before, after)): (RuleId, (&[u64; 4], &[u64; 4]))| RuleHits {
            rule: last.served.rules.rule(id).full_key.to_string(),
            hits: hits_of_rule(id),
            per_second: rates_of(*before, *after, micros),
            is_partial: false,
        };
        sampled.map(rule).filter(|rule| rule.hits != [0; 4]).collect()
    }
}
