//! `GET /api/v1/top`: the keys with the most refused or allowed hits of the last minutes, or descriptors that meet no
//! rule; and `GET /api/v1/refusals`: refusals by key, or one by one.

use std::cmp::Reverse;

use super::{
    Api,
    reply::{Call, Problem, Query, Reply},
    view::{Parts, THIS, View},
};
use api::{Entry, KeyHits, Refusals, RefusedKeys, Top, Unmatched, UnmatchedShape, Whose, Window};
use fleet::KeyRefusals;
use recent::{Decision, KeyValues, shown};

/// The first `n` keys of a domain or a rule, by their refused, shadowed or allowed hits, or the key with these entries.
pub(super) async fn top(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = &call.query;
    let (by, is_unmatched) = (query.word("by"), query.is_true("unmatched"));
    let (domain, rule) = (query.text("domain"), query.text("rule"));
    let key = query.descriptor("descriptor")?;
    let parts = Parts { keys: !is_unmatched, domain, rule, key: key.as_deref(), ..Parts::default() };
    let View { mut merged, whose } = api.view(query, parts).await?;
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
    keys.truncate(query.number("n"));
    let window = Window {
        window_seconds: merged.window_seconds,
        missed: merged.missed,
        key_values: values.name().to_owned(),
        whose,
    };
    if !is_unmatched {
        return Reply::json(api, &Top { keys, window });
    }
    let shape = |key: KeyHits| UnmatchedShape {
        reason: key.rule,
        domain: key.domain,
        descriptor: key.descriptor,
        descriptor_cut: key.descriptor_cut,
        count: key.allowed,
        error: key.error,
    };
    let unmatched = keys.into_iter().map(shape).collect();
    Reply::json(api, &Unmatched { unmatched, total: merged.unmatched_total, window })
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
    let query = &call.query;
    let (domain, entries) = (query.text("domain"), query.descriptor("descriptor")?);
    if query.text("after").is_some() {
        return one_by_one(api, query, entries.as_deref());
    }
    let values = api.managed.recent.values();
    let parts = Parts { refusals: true, ..Parts::default() };
    let View { merged, whose } = api.view(query, parts).await?;
    let has_entry = |refusal: &KeyRefusals, (key, value): &(String, String)| {
        let value = shown(value, values);
        refusal.descriptor.iter().any(|entry| entry.key == *key && entry.value == value)
    };
    let (mut refusals, others) = if query.is_true("shadowed") {
        (merged.shadowed, merged.other_shadowed)
    } else {
        (merged.refusals, merged.other_refusals)
    };
    refusals.retain(|refusal| {
        domain.is_none_or(|domain| refusal.domain == domain)
            && entries.iter().flatten().all(|entry| has_entry(refusal, entry))
    });
    refusals.sort_by_cached_key(|refusal| Reverse((refusal.last.clone(), refusal.descriptor.clone())));
    refusals.truncate(query.number("n"));
    Reply::json(api, &RefusedKeys { refusals, others, key_values: values.name().to_owned(), whose })
}

fn one_by_one(api: &Api, query: &Query<'_>, entries: Option<&[(String, String)]>) -> Result<Reply, Problem> {
    if let Some(name) = query.text("replica").filter(|name| *name != THIS) {
        let message = format!("replica={name:?}: refusals one by one are those of this replica");
        return Err(Problem::bad_request(message));
    }
    let after = query.number("after") as u64;
    let domain = query.text("domain");
    let matches = |decision: &Decision| {
        decision.id > after
            && domain.is_none_or(|domain| decision.domain() == domain)
            && entries.into_iter().flatten().all(|(key, value)| {
                decision.descriptor.entries().any(|entry| entry == (key.as_str(), value.as_str()))
            })
    };
    let recent = &api.managed.recent;
    let found = recent.refusals(query.number("n"), query.is_true("shadowed"), matches);
    let values: KeyValues = recent.values();
    let refusals = found.iter().map(|decision| decision.json(values)).collect();
    let whose = Whose { scope: THIS.to_owned(), replicas: None };
    Reply::json(api, &Refusals { refusals, key_values: values.name().to_owned(), whose })
}
