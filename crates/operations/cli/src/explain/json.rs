//! An explanation as JSON.

use serde_json::{Value, json};

use super::{
    Counting, Explained, LimitOutcome, Outcome, full_key,
    path::{PathStep, words},
    text,
};
use ::text::duration;
use limit::{HoldRule, MostHeld, holds::Unknown};
use limiter::{Code, OverrideLimits};
use overrides::{Action, Found, Target, model::timestamp};
use rules::model::Node;

pub(super) fn explanation(explained: &Explained<'_>) -> String {
    let descriptors = explained.outcomes.iter().map(|outcome| descriptor(outcome, explained));
    let value = json!({
        "domain": explained.query.domain,
        "error": explained.unknown_domain,
        "matches": explained.all_match(),
        "hits": explained.query.hits,
        "switch": explained.switch.as_ref().map(|switch| overriding(&(switch.clone(), Vec::new()))),
        "descriptors": descriptors.collect::<Vec<_>>(),
        "over_limit_response": over_limit_response(explained),
    });
    format!("{value:#}\n")
}

fn descriptor(outcome: &Outcome<'_>, explained: &Explained<'_>) -> Value {
    let entries: Vec<Value> =
        outcome.descriptor.0.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    let levels = outcome.path.levels.iter().zip(&entries).map(|(step, entry)| level(step, entry, explained));
    let rule = outcome.path.matched().map(|(node, rule)| {
        json!({
            "key": rule.full_key,
            "place": place(node, explained),
            "unlimited": rule.limits().is_none(),
            "shadow_mode": rule.shadow_mode,
            "quota_mode": rule.quota_mode,
            "overrides_only": rule.overrides_only,
            "replaces": rule.replaces,
        })
    });
    json!({
        "entries": entries,
        "matches": rule.is_some(),
        "summary": text::summary(outcome, explained),
        "rule": rule,
        "override": outcome.applied.as_ref().map(overriding),
        "replaced_by": outcome.replaced_by().map(full_key),
        "levels": levels.collect::<Vec<_>>(),
        "limits": outcome.limits.iter().map(|one| limit(one, explained)).collect::<Vec<_>>(),
    })
}

fn overriding((found, limits): &(Found, OverrideLimits)) -> Value {
    let is_whole = found.limit_name.is_none() && matches!(found.action, Action::Limit { .. });
    let (limit, counter) =
        limits.first().filter(|_| is_whole).map(|(limit, counter)| (limit, counter)).unzip();
    let in_force = limits.iter().map(|(limit, counter)| {
        json!({
            "name": limit.name.as_deref(),
            "requests_per_unit": limit.requests_per_unit,
            "unit": limit.unit.name(),
            "unit_multiplier": limit.multiplier,
            "counter": counter,
        })
    });
    let target = found.is_apart().then_some(&found.target);
    json!({
        "domain": target.map(Target::domain),
        "entry": target.and_then(Target::entry).map(|(key, value)| json!({"key": key, "value": value})),
        "action": found.action.name(),
        "effect": found.effect(),
        "expires_at": found.expires.map(timestamp),
        "requests_per_unit": limit.map(|limit| limit.requests_per_unit),
        "unit": limit.map(|limit| limit.unit.name()),
        "calendar": limit.and_then(|limit| limit.period().calendar()),
        "algorithm": limit.map(|limit| limit.algorithm.kind().name()),
        "counter": counter,
        "limits": in_force.collect::<Vec<_>>(),
    })
}

fn level(step: &PathStep<'_>, entry: &Value, explained: &Explained<'_>) -> Value {
    let described = |node: &Node, reason: &str| json!({"text": node.text, "place": place(node, explained), "reason": reason});
    let near = step.near.iter().map(|near| described(near.node, near.why.words().0));
    json!({
        "entry": entry,
        "match": step.matched.map(|matched| described(matched.node, words(matched.how).0)),
        "near": near.collect::<Vec<_>>(),
        "others": step.others,
    })
}

fn place(node: &Node, explained: &Explained<'_>) -> Value {
    let origin = explained.rules.origin(node);
    origin.map_or(Value::Null, |(file, line)| json!({"file": file, "line": line}))
}

fn limit(LimitOutcome { limit, counting }: &LimitOutcome<'_>, explained: &Explained<'_>) -> Value {
    let (counter, replaced_by) = match counting {
        Counting::By(key) => (Some(key), None),
        Counting::ReplacedBy(node) => (None, full_key(node)),
    };
    let schedule = limit.scheduled(explained.now);
    let limit = limit.at(explained.now);
    json!({
        "name": limit.name.as_deref(),
        "requests_per_unit": limit.requests_per_unit,
        "unit": limit.unit.name(),
        "unit_multiplier": limit.multiplier,
        "calendar": limit.period().calendar(),
        "window_seconds": limit.period().seconds(explained.now),
        "algorithm": limit.algorithm.kind().name(),
        "counting": limit.counting.name(),
        "capacity": limit.algorithm.capacity(),
        "hold": limit.hold.as_deref().map(hold),
        "schedule": schedule.as_deref().map(|in_force| json!({
            "text": in_force.words,
            "entry": in_force.entry,
            "until": in_force.until.map(|until| timestamp(until.seconds())),
        })),
        "counter": counter,
        "replaced_by": replaced_by,
    })
}

fn hold(hold: &HoldRule) -> Value {
    let unknown = match hold.unknown {
        Unknown::Held => json!("held"),
        Unknown::Hits(hits) => json!(hits),
    };
    let most = hold.most.map(|most| match most {
        MostHeld::Hits(hits) => json!(hits),
        MostHeld::Percent(_) => json!(most.to_string()),
    });
    json!({
        "amount": hold.amount,
        "most": most,
        "ttl": duration::written(hold.ttl),
        "unknown": unknown,
        "in": Some(&*hold.currency).filter(|currency| !currency.is_empty()),
    })
}

/// Null if the request cannot be over a limit.
fn over_limit_response(explained: &Explained<'_>) -> Value {
    let response = &explained.over_limit;
    if response.code == Code::Ok {
        return Value::Null;
    }
    let headers = response.response_headers.iter();
    let headers = headers.map(|header| json!({"name": *header.name, "value": header.value}));
    json!({"headers": headers.collect::<Vec<_>>(), "body": response.body})
}
