//! `GET /api/v1/top`: the keys with the most refused or allowed hits of the last minutes, or descriptors that meet no
//! rule; and `GET /api/v1/refusals`: refusals by key, or one by one.

use std::cmp::Reverse;

use serde_json::json;

use super::{
    Api,
    reply::{Call, Problem, Query, Reply},
    view::{Parts, REPLICA, View},
};
use fleet::{KeyHits, KeyRefusals, summary::Entry};
use recent::{Decision, KeyValues, MAX_REFUSALS, shown};

/// The first `n` keys of a domain or a rule, by their refused, shadowed or allowed hits, or the key with these entries.
pub(super) async fn top(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "rule", "descriptor", "by", "unmatched", REPLICA])?;
    let most = query.number("n", 20, 1..=1000)?;
    let by = query.word("by", &["refused", "shadowed", "allowed"])?;
    let is_unmatched = query.word("unmatched", &["false", "true"])? == "true";
    let (domain, rule) = (query.text("domain"), query.text("rule"));
    let key = query.descriptor("descriptor")?;
    let parts = Parts { keys: !is_unmatched, domain, rule, key: key.as_deref(), ..Parts::default() };
    let View { mut merged, scope, replicas } = api.view(query.text(REPLICA), parts).await?;
    let mut keys = std::mem::take(if is_unmatched { &mut merged.unmatched } else { &mut merged.keys });
    let values = api.managed.recent.values();
    let wanted = key.as_ref().map(|key| as_shown(key, values));
    let order = |key: &KeyHits| match by {
        _ if is_unmatched => (key.allowed, 0),
        "allowed" => (key.allowed, key.refused),
        "shadowed" => (key.shadowed, key.allowed),
        // Those that shadow mode allows come after those that are refused.
        _ => (key.refused, key.shadowed),
    };
    keys.retain(|key| {
        let is_listed = order(key).0 > 0 || by == "refused" && key.shadowed > 0;
        let is_named = domain.is_none_or(|domain| key.domain == domain)
            && rule.is_none_or(|rule| key.rule.as_deref() == Some(rule));
        is_named
            && (is_listed || wanted.is_some())
            && wanted.as_ref().is_none_or(|one| *one == key.descriptor)
    });
    keys.sort_by(|one, other| {
        let names = |key: &KeyHits| (key.rule.clone(), key.descriptor.clone());
        order(other).cmp(&order(one)).then_with(|| names(one).cmp(&names(other)))
    });
    keys.truncate(most);
    let shapes = |key: &KeyHits| {
        json!({
            "reason": key.rule, "domain": key.domain, "descriptor": key.descriptor,
            "descriptor_cut": key.descriptor_cut, "count": key.allowed, "error": key.error,
        })
    };
    let mut reply = json!({
        "window_seconds": merged.window_seconds,
        // Requests since the start that were not recorded because the tables were being read.
        "missed": merged.missed,
        "key_values": values.name(),
        "scope": scope.name(),
        "replicas": replicas,
    });
    if is_unmatched {
        reply["unmatched"] = keys.iter().map(shapes).collect();
        reply["total"] = json!(merged.unmatched_total);
    } else {
        reply["keys"] = json!(keys);
    }
    Reply::json(&reply)
}

/// The entries of a key, as replies show them.
fn as_shown(key: &[(String, String)], values: KeyValues) -> Vec<Entry> {
    let entry = |(key, value): &(String, String)| Entry {
        key: key.clone(),
        value: shown(value, values).into_owned(),
    };
    key.iter().map(entry).collect()
}

/// The newest `n` refused keys of a domain, and with these entries, the newest first; with `shadowed=true` those that
/// shadow mode allowed. With `after`, the newest `n` refusals of this replica with a larger id, one by one.
pub(super) async fn refusals(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = call.query(&["n", "domain", "descriptor", "shadowed", "after", REPLICA])?;
    let most = query.number("n", 100, 1..=MAX_REFUSALS)?;
    let (domain, entries) = (query.text("domain"), query.descriptor("descriptor")?);
    if query.text("after").is_some() {
        return one_by_one(api, &query, most, entries.as_deref());
    }
    let values = api.managed.recent.values();
    let parts = Parts { refusals: true, ..Parts::default() };
    let View { merged, scope, replicas } = api.view(query.text(REPLICA), parts).await?;
    let has_entry = |refusal: &KeyRefusals, (key, value): &(String, String)| {
        let value = shown(value, values);
        refusal.descriptor.iter().any(|entry| entry.key == *key && entry.value == value)
    };
    let (mut refusals, others) = if is_shadowed(&query)? {
        (merged.shadowed, merged.other_shadowed)
    } else {
        (merged.refusals, merged.other_refusals)
    };
    refusals.retain(|refusal| {
        domain.is_none_or(|domain| refusal.domain == domain)
            && entries.iter().flatten().all(|entry| has_entry(refusal, entry))
    });
    refusals.sort_by_cached_key(|refusal| Reverse((refusal.last.clone(), refusal.descriptor.clone())));
    refusals.truncate(most);
    Reply::json(&json!({
        "refusals": refusals,
        "others": others,
        "key_values": values.name(),
        "scope": scope.name(),
        "replicas": replicas,
    }))
}

fn is_shadowed(query: &Query<'_>) -> Result<bool, Problem> {
    Ok(query.word("shadowed", &["false", "true"])? == "true")
}

fn one_by_one(
    api: &Api,
    query: &Query<'_>,
    most: usize,
    entries: Option<&[(String, String)]>,
) -> Result<Reply, Problem> {
    if let Some(name) = query.text(REPLICA).filter(|name| *name != "this") {
        let message = format!("{REPLICA}={name:?}: refusals one by one are those of this replica");
        return Err(Problem::bad_request(message));
    }
    let after = query.number("after", 0, 0..=usize::MAX)? as u64;
    let domain = query.text("domain");
    let matches = |decision: &Decision| {
        decision.id > after
            && domain.is_none_or(|domain| decision.domain() == domain)
            && entries.into_iter().flatten().all(|(key, value)| {
                decision.descriptor.entries().any(|entry| entry == (key.as_str(), value.as_str()))
            })
    };
    let recent = &api.managed.recent;
    let found = recent.refusals(most, is_shadowed(query)?, matches);
    let values: KeyValues = recent.values();
    let refusals: Vec<_> = found.iter().map(|decision| decision.json(values)).collect();
    Reply::json(&json!({"refusals": refusals, "key_values": values.name(), "scope": "this"}))
}
