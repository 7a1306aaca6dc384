//! `GET /api/v1/top`: the keys with the most refused or allowed hits of the last minutes.

use serde::Serialize;

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use crate::{
    clock::{Clock, SystemClock},
    recent::{
        Recent, TopKey,
        decision::{EntryJson, entries},
    },
    settings::KeyValues,
};

#[derive(Serialize)]
struct Top<'a> {
    keys: Vec<KeyJson<'a>>,
    /// The hits are of so many seconds until now.
    window_seconds: u64,
    /// Requests since the start that were not noted because the tables were being read.
    missed: u64,
    /// How values are shown.
    key_values: &'static str,
}

#[derive(Serialize)]
struct KeyJson<'a> {
    domain: &'a str,
    rule: &'a str,
    descriptor: Vec<EntryJson<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    descriptor_cut: bool,
    allowed: u64,
    refused: u64,
    error: u64,
}

/// The first `n` keys of a domain or a rule, in the order of their refused or allowed hits.
pub(super) fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "rule", "by"])?;
    let most = query.number("n", 20, 1..=1000)?;
    let by_refused = query.word("by", &["refused", "allowed"])? == "refused";
    let (domain, rule) = (query.text("domain"), query.text("rule"));
    let shown = &api.options.shown;
    let (now, recent) = (SystemClock.now(), &shown.recent);
    let served = shown.source.current();
    let rules = served.iter().flat_map(|served| served.attached.all_recent()).filter(|info| {
        domain.is_none_or(|domain| *info.domain == *domain) && rule.is_none_or(|rule| *info.full_key == *rule)
    });
    let mut keys = recent.top(rules, now);
    let order =
        |key: &TopKey| if by_refused { (key.refused, key.allowed) } else { (key.allowed, key.refused) };
    keys.retain(|key| order(key).0 > 0);
    keys.sort_by(|one, other| {
        order(other).cmp(&order(one)).then_with(|| one.rule.full_key.cmp(&other.rule.full_key))
    });
    keys.truncate(most);
    Reply::json(&Top {
        keys: keys.iter().map(|key| json(key, recent.values())).collect(),
        window_seconds: Recent::window_seconds(api.options.started, now),
        missed: recent.missed(),
        key_values: recent.values().name(),
    })
}

fn json(key: &TopKey, values: KeyValues) -> KeyJson<'_> {
    KeyJson {
        domain: &key.rule.domain,
        rule: &key.rule.full_key,
        descriptor: entries(&key.key, values),
        descriptor_cut: key.key.is_cut(),
        allowed: key.allowed,
        refused: key.refused,
        error: key.error,
    }
}
