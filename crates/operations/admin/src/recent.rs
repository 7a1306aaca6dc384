//! `GET /api/v1/top`: the keys with the most refused or allowed hits of the last minutes, or descriptors that meet no
//! rule; and `GET /api/v1/refusals`: refusals by key, or one by one.

use super::{
    Api,
    reply::{Call, Problem, Query, Reply},
    view::{Parts, THIS, View},
};
use api::{Entry, KeyHits, Refusals, RefusedKeys, Top, Unmatched, UnmatchedShape, Whose, Window};
use fleet::{KeyRefusals, Merged};
use recent::{Decision, KeyValues, shown};

/// The hits by which keys are listed.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Keys that shadow mode allows come after those that are refused.
    Refused,
    Shadowed,
    Allowed,
    Any,
}

/// The first `n` keys of a domain or a rule, by their refused, shadowed or allowed hits, or the key with these entries.
pub(super) async fn top(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let query = &call.query;
    let is_unmatched = query.is_true("unmatched");
    let domain = query.text("domain");
    let rule = query.text("rule");
    let key = query.descriptor("descriptor")?;
    let parts = Parts { keys: !is_unmatched, domain, rule, key: key.as_deref(), ..Parts::default() };
    let mut view = api.view(query, parts).await?;
    let by = match (&key, query.word("by")) {
        (Some(_), _) => Order::Any,
        (None, "allowed") => Order::Allowed,
        (None, "shadowed") => Order::Shadowed,
        (None, _) => Order::Refused,
    };
    let named = key.map(|key| as_shown(&key, api.managed.recent.values()));
    let is_wanted = |key: &KeyHits| {
        domain.is_none_or(|domain| key.domain == domain)
            && rule.is_none_or(|rule| key.rule.as_deref() == Some(rule))
            && named.as_ref().is_none_or(|named| *named == key.descriptor)
    };
    if is_unmatched {
        view.merged.unmatched.retain(is_wanted);
        return unmatched(api, &view, query.number("n"));
    }
    view.merged.keys.retain(is_wanted);
    top_keys(api, &view, by, query.number("n"))
}

pub(super) fn top_keys(api: &Api, view: &View, by: Order, most: usize) -> Result<Reply, Problem> {
    Reply::json(api, &Top { keys: first(&view.merged.keys, by, most), window: window(api, view) })
}

/// The shapes of descriptors that meet no rule, and the number of all of them.
pub(super) fn unmatched(api: &Api, view: &View, most: usize) -> Result<Reply, Problem> {
    let shape = |key: KeyHits| UnmatchedShape {
        reason: key.rule,
        domain: key.domain,
        descriptor: key.descriptor,
        descriptor_cut: key.descriptor_cut,
        count: key.allowed,
        error: key.error,
    };
    let unmatched = first(&view.merged.unmatched, Order::Allowed, most).into_iter().map(shape).collect();
    let total = view.merged.unmatched_total.clone();
    Reply::json(api, &Unmatched { unmatched, total, window: window(api, view) })
}

/// The first keys that have such hits; those with the same hits by their names.
fn first(keys: &[KeyHits], by: Order, most: usize) -> Vec<KeyHits> {
    let hits = |key: &KeyHits| match by {
        Order::Refused => (key.refused, key.shadowed),
        Order::Shadowed => (key.shadowed, 0),
        Order::Allowed => (key.allowed, 0),
        Order::Any => (key.refused.max(key.shadowed).max(key.allowed), 0),
    };
    let mut listed: Vec<_> = keys.iter().filter(|key| hits(key) != (0, 0)).collect();
    listed.sort_by(|one, other| {
        let by_hits = hits(other).cmp(&hits(one));
        by_hits.then_with(|| (&one.rule, &one.descriptor).cmp(&(&other.rule, &other.descriptor)))
    });
    listed.into_iter().take(most).cloned().collect()
}

fn window(api: &Api, View { merged, whose }: &View) -> Window {
    Window {
        window_seconds: merged.window_seconds,
        missed: merged.missed,
        key_values: api.managed.recent.values().name().to_owned(),
        whose: whose.clone(),
    }
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
    let domain = query.text("domain");
    let entries = query.descriptor("descriptor")?;
    if query.text("after").is_some() {
        return one_by_one(api, query, entries.as_deref());
    }
    let values = api.managed.recent.values();
    let mut view = api.view(query, Parts { refusals: true, ..Parts::default() }).await?;
    let has_entry = |refusal: &KeyRefusals, (key, value): &(String, String)| {
        let value = shown(value, values);
        refusal.descriptor.iter().any(|entry| entry.key == *key && entry.value == value)
    };
    let is_wanted = |refusal: &KeyRefusals| {
        domain.is_none_or(|domain| refusal.domain == domain)
            && entries.iter().flatten().all(|entry| has_entry(refusal, entry))
    };
    let Merged { refusals, shadowed, .. } = &mut view.merged;
    let is_shadowed = query.is_true("shadowed");
    if is_shadowed {
        shadowed.retain(is_wanted);
    } else {
        refusals.retain(is_wanted);
    }
    refused_keys(api, &view, is_shadowed, query.number("n"))
}

/// The keys that were refused last, or allowed last in shadow mode.
pub(super) fn refused_keys(
    api: &Api,
    View { merged, whose }: &View,
    is_shadowed: bool,
    most: usize,
) -> Result<Reply, Problem> {
    let (all, others) = if is_shadowed {
        (&merged.shadowed, merged.other_shadowed)
    } else {
        (&merged.refusals, merged.other_refusals)
    };
    let mut refusals: Vec<_> = all.iter().collect();
    refusals.sort_by(|one, other| (&other.last, &other.descriptor).cmp(&(&one.last, &one.descriptor)));
    refusals.truncate(most);
    let key_values = api.managed.recent.values().name().to_owned();
    Reply::json(api, &RefusedKeys { refusals, others, key_values, whose: whose.clone() })
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
