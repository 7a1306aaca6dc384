//! `GET /api/v1/top`: the keys with the most refused or allowed hits of the last minutes; and `GET /api/v1/refusals`: the
//! last refused requests, with their reasons.

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use clock::{Clock, SystemClock};
use recent::{
    Decision, MAX_REFUSALS, Recent, TopKey,
    decision::{DecisionJson, entries},
};

/// The first `n` keys of a domain or a rule, by their refused or allowed hits.
pub(super) fn top(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "rule", "by"])?;
    let most = query.number("n", 20, 1..=1000)?;
    let by_refused = query.word("by", &["refused", "allowed"])? == "refused";
    let (domain, rule) = (query.text("domain"), query.text("rule"));
    let (now, recent) = (SystemClock.now(), &api.managed.recent);
    let served = api.managed.source.current();
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
    Reply::json(&json!({
        "keys": keys.iter().map(|key| top_key(key, recent)).collect::<Vec<_>>(),
        "window_seconds": Recent::window_seconds(api.managed.started, now),
        // Requests since the start that were not recorded because the tables were being read.
        "missed": recent.missed(),
        "key_values": recent.values().name(),
    }))
}

fn top_key(key: &TopKey, recent: &Recent) -> Json {
    let mut json = json!({
        "domain": key.rule.domain,
        "rule": key.rule.full_key,
        "descriptor": entries(&key.key, recent.values()),
        "allowed": key.allowed,
        "refused": key.refused,
        "error": key.error,
    });
    if let (true, Some(fields)) = (key.key.is_cut(), json.as_object_mut()) {
        fields.insert("descriptor_cut".to_owned(), true.into());
    }
    json
}

#[derive(Serialize)]
struct Refusals<'a> {
    refusals: Vec<DecisionJson<'a>>,
    key_values: &'static str,
}

/// The newest `n` refusals of a domain, of descriptors with these entries, and with an id above `after`; the newest
/// first.
pub(super) fn refusals(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "descriptor", "after"])?;
    let most = query.number("n", 100, 1..=MAX_REFUSALS)?;
    let after = query.number("after", 0, 0..=usize::MAX)? as u64;
    let (domain, entries) = (query.text("domain"), query.descriptor("descriptor")?);
    let matches = |decision: &Decision| {
        decision.id > after
            && domain.is_none_or(|domain| decision.domain() == domain)
            && entries.iter().flatten().all(|(key, value)| {
                decision.descriptor.entries().any(|entry| entry == (key.as_str(), value.as_str()))
            })
    };
    let recent = &api.managed.recent;
    let found = recent.refusals(most, matches);
    let refusals = found.iter().map(|decision| decision.json(recent.values())).collect();
    Reply::json(&Refusals { refusals, key_values: recent.values().name() })
}
