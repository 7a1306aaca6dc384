//! `GET /api/v1/rules`: every rule, where it is defined, what it allows, and its hits in a second.

use std::{cmp::Ordering, sync::Arc};

use serde::Serialize;

use super::{
    Api,
    reply::{Call, Problem, Reply},
    rule_rates::{Hits, PerSecond},
};
use crate::{
    limiter::Served,
    recent::LimitShown,
    rules::{Limits, Rule},
};

#[derive(Serialize)]
struct Rules<'a> {
    rules: Vec<RuleJson<'a>>,
    /// How many rules there are, beyond those that are shown too.
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
    /// False where metrics have the request's values in their names: then its hits are not counted here.
    has_fixed_name: bool,
    hits: Hits,
    per_second: Option<PerSecond>,
}

/// The first `n` rules of a domain, in the order of their names or of their hits in a second.
pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "by"])?;
    let most = query.number("n", 1000, 1..=100_000)?;
    let by_hits = query.word("by", &["name", "hits"])? == "hits";
    let Some(served) = api.options.shown.source.current() else {
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

/// The rules of a domain, or of all, and whether metrics name each by its full key.
fn rules<'a>(served: &'a Arc<Served>, domain: Option<&str>) -> Vec<(&'a Rule, bool)> {
    let domains = served.rules.domains().filter(|known| domain.is_none_or(|name| *known.name == *name));
    domains.flat_map(|domain| domain.rules()).collect()
}

fn json<'a>(
    served: &'a Arc<Served>,
    rule: &'a Rule,
    has_fixed_name: bool,
    rates: &[PerSecond],
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
