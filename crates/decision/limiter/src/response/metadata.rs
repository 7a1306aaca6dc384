//! The dynamic metadata of an answer: the request, the metadata of the rules whose descriptors passed and, with
//! `RESPONSE_DYNAMIC_METADATA_LIMITS`, the limit that decided each descriptor and why.

use std::{collections::btree_map::Entry as Slot, fmt::Write};

use smallvec::SmallVec;

use crate::{
    answer::{Code, MetadataDetail, Status},
    conclude::Conclusion,
    outcome::LimitOutcome,
    plan::{Limited, Planned},
    quota_groups::{BACKEND, GroupKey, MODEL},
    request::{Descriptor, LimitOverride},
};
use counters::Decider;
use limit::{
    Limit, Unit,
    calendar::{Calendar, CalendarFields},
};
use overrides::{Found, model::timestamp};
use rules::{Metadata, Value};

/// `{domain, descriptors, hitsAddend?, metadata?, passedBackends?}`.
pub(super) fn metadata(conclusion: &Conclusion<'_, '_>) -> Option<Metadata> {
    let detail = conclusion.scope.policy.response.metadata;
    if detail == MetadataDetail::None {
        return None;
    }
    let request = &**conclusion.request;
    let descriptors = request.descriptors.iter().enumerate().map(|(index, one)| {
        let decision = (detail == MetadataDetail::WithLimits).then(|| decision(conclusion, index));
        let status =
            conclusion.statuses.get(index).filter(|_| conclusion.scope.policy.response.metadata_codes);
        descriptor(one, status, decision)
    });
    let mut passed = Metadata::new();
    let available = available(conclusion);
    for index in &available {
        if let Some(limited) = conclusion.limited(*index).filter(|limited| limited.has_metadata)
            && let Some(metadata) =
                conclusion.scope.rule_of_limits(limited).and_then(|rule| rule.metadata.as_ref())
        {
            merge(&mut passed, metadata);
        }
    }
    Some(fields([
        ("domain", Some(text(request.domain))),
        ("descriptors", Some(Value::List(descriptors.collect()))),
        ("hitsAddend", (request.hits_addend != 0).then(|| Value::Number(request.hits_addend.into()))),
        ("metadata", (!passed.is_empty()).then_some(Value::Map(passed))),
        ("passedBackends", passed_backends(conclusion, &available)),
    ]))
}

/// The descriptors that passed, without those of exhausted groups; by index.
fn available(conclusion: &Conclusion<'_, '_>) -> SmallVec<[usize; 4]> {
    let request = &**conclusion.request;
    let code = |index: usize| conclusion.statuses.get(index).map(|status| status.code);
    let passed = (0..conclusion.statuses.len()).filter(|index| code(*index) == Some(Code::Ok));
    if !conclusion.scope.policy.quota_groups {
        return passed.collect();
    }
    let is_quota = |planned: &Planned| conclusion.scope.is_quota(planned);
    let quotas = conclusion.planned.plan.iter().enumerate().filter(|(_, planned)| is_quota(planned));
    let exhausted = quotas.filter(|(index, _)| code(*index) == Some(Code::OverLimit));
    let exhausted: SmallVec<[GroupKey<'_>; 4]> =
        exhausted.map(|(index, _)| GroupKey::of(request.entries(index))).collect();
    let is_available = |index: &usize| {
        !conclusion.planned.plan.get(*index).is_some_and(is_quota)
            || !exhausted.contains(&GroupKey::of(request.entries(*index)))
    };
    passed.filter(is_available).collect()
}

/// The backends and models with quota left, each once, as the load balancer of Envoy's AI gateway reads them; `None`
/// without quotas.
fn passed_backends(conclusion: &Conclusion<'_, '_>, available: &[usize]) -> Option<Value> {
    let is_quota = |planned: &Planned| conclusion.scope.is_quota(planned);
    if !conclusion.scope.policy.quota_groups || !conclusion.planned.plan.iter().any(is_quota) {
        return None;
    }
    let mut pairs = Vec::new();
    for index in available {
        // As in the Go service, an unlimited descriptor is no candidate.
        let is_unlimited = matches!(conclusion.planned.plan.get(*index), Some(Planned::Unlimited(_)));
        if let GroupKey::Backend { backend, model } = GroupKey::of(conclusion.request.entries(*index))
            && !is_unlimited
            && !pairs.contains(&(backend, model))
        {
            pairs.push((backend, model));
        }
    }
    let pair =
        |(backend, model)| Value::Map(fields([(BACKEND, Some(text(backend))), (MODEL, Some(text(model)))]));
    (!pairs.is_empty()).then(|| Value::List(pairs.into_iter().map(pair).collect()))
}

fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Metadata {
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn descriptor(descriptor: &Descriptor<'_>, status: Option<&Status>, decision: Option<Metadata>) -> Value {
    let limit = status.and_then(|status| status.current_limit.as_ref());
    let entries =
        descriptor.entries.iter().map(|entry| Value::Text(format!("{}={}", entry.key, entry.value)));
    Value::Map(fields([
        ("entries", Some(Value::List(entries.collect()))),
        ("limit", descriptor.limit.map(|limit| Value::Text(override_text(limit)))),
        ("hitsAddend", descriptor.hits_addend.map(number)),
        ("code", status.map(|status| text(if status.code == Code::Ok { "OK" } else { "OVER_LIMIT" }))),
        ("limitName", limit.and_then(|limit| limit.name.as_deref()).map(text)),
        ("decision", decision.map(Value::Map)),
    ]))
}

/// `{why, rule?, override?, limit?, spent?, held?, remaining?, reset?, retryAfter?, governs?}`: the rule, and the state of the limit that
/// governs the descriptor.
fn decision(conclusion: &Conclusion<'_, '_>, index: usize) -> Metadata {
    let outcome = conclusion.outcome(index);
    let planned = conclusion.planned.plan.get(index);
    let (why, overridden) = match planned {
        Some(Planned::Unlimited(_)) => ("unlimited", None),
        Some(Planned::Allowed(_, found)) => ("allowed", Some(found)),
        Some(Planned::Replaced(_)) => ("replaced", None),
        Some(Planned::Closes) => ("hold", None),
        Some(Planned::Limited(limited)) => {
            let by = limited.overridden.as_ref().or(limited.switch.as_deref());
            (outcome.map_or("no_rule", |outcome| why(limited, &outcome)), by)
        }
        Some(Planned::NoLimit | Planned::Exempt) | None => ("no_rule", None),
    };
    let held = outcome.and_then(|outcome| outcome.held());
    let retry_after =
        outcome.filter(|outcome| outcome.decision.over).and_then(|outcome| outcome.retry_after());
    fields([
        ("why", Some(text(why))),
        (
            "rule",
            planned.and_then(|planned| conclusion.scope.rule_of(planned)).map(|rule| text(&rule.full_key)),
        ),
        ("override", overridden.map(of_override)),
        ("limit", outcome.map(|outcome| limit(outcome.limit))),
        ("spent", held.map(|held| number(held.spent))),
        ("held", held.map(|held| number(held.held))),
        ("remaining", outcome.map(|outcome| number(outcome.verdict.remaining))),
        ("reset", outcome.map(|outcome| number(outcome.seconds_until_reset()))),
        ("retryAfter", retry_after.map(number)),
        ("governs", (conclusion.governs == Some(index)).then_some(Value::Bool(true))),
    ])
}

/// `{action, expiresAt?, entry?, domain?}` of an operator's override; the domain is that of a switch.
fn of_override(found: &Found) -> Value {
    let target = found.is_apart().then_some(&found.target);
    let entry = target.filter(|target| target.entry().is_some()).map(|target| target.plain().descriptor());
    Value::Map(fields([
        ("action", Some(text(found.action.name()))),
        ("expiresAt", found.expires.map(|end| text(&timestamp(end)))),
        ("domain", target.filter(|_| entry.is_none()).map(|target| text(target.domain()))),
        ("entry", entry.map(Value::Text)),
    ]))
}

fn why(limited: &Limited, outcome: &LimitOutcome<'_>) -> &'static str {
    match outcome.decider() {
        _ if outcome.decision.over && limited.is_shadow => "shadow",
        None => "blocked",
        Some(Decider::Policy { .. }) => "store_failure",
        Some(Decider::Neighbor | Decider::Block) => "not_counted",
        Some(Decider::OverLimitCache) => "local_cache",
        Some(Decider::Store | Decider::Transient | Decider::Fallback) if outcome.decision.over => {
            "over_limit"
        }
        Some(Decider::Store | Decider::Transient | Decider::Fallback) => "within_limit",
    }
}

fn limit(limit: &Limit) -> Value {
    Value::Map(fields([
        ("name", limit.name.as_deref().map(text)),
        ("requestsPerUnit", Some(number(limit.requests_per_unit))),
        ("unit", Some(text(limit.unit.name()))),
        ("unitMultiplier", Some(Value::Number(limit.multiplier.get().into()))),
        ("calendar", limit.period().calendar().map(calendar)),
        ("algorithm", Some(text(limit.algorithm.kind().name()))),
    ]))
}

fn calendar(calendar: Calendar) -> Value {
    let CalendarFields { time_zone, week_start, anchor_day } = calendar.fields();
    Value::Map(fields([
        ("timeZone", Some(text(time_zone))),
        ("weekStart", week_start.map(text)),
        ("anchorDay", anchor_day.map(number)),
    ]))
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn number(number: u64) -> Value {
    Value::Number(number as f64)
}

/// A limit of a request in protobuf's text format, as the Go service writes it: with two spaces, and a week as a number.
fn override_text(limit: LimitOverride) -> String {
    let mut text = String::new();
    if limit.requests_per_unit != 0 {
        let _ = write!(text, "requests_per_unit:{}", limit.requests_per_unit);
    }
    if limit.unit != 0 {
        let separator = if text.is_empty() { "" } else { "  " };
        let _ = match Unit::from_number(limit.unit).filter(|_| limit.unit != 7) {
            Some(unit) => write!(text, "{separator}unit:{unit}"),
            None => write!(text, "{separator}unit:{}", limit.unit),
        };
    }
    text
}

/// Adds missing entries. Maps are merged; of other values the first one wins.
fn merge(into: &mut Metadata, from: &Metadata) {
    for (key, value) in from {
        match into.entry(key.clone()) {
            Slot::Vacant(slot) => {
                slot.insert(value.clone());
            }
            Slot::Occupied(mut slot) => {
                if let (Value::Map(into), Value::Map(from)) = (slot.get_mut(), value) {
                    merge(into, from);
                }
            }
        }
    }
}
